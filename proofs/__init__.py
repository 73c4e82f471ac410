"""Why it holds for every number. Runs the code of `spec` on symbols; one theorem a file."""
