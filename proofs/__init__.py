"""Why it holds for every number. Runs the code of `spec` on symbols; one theorem a file.

Entry points: `invariant`, what holds between any two calls; `theorem`, the registry; `bounded`,
proofs about a fixed number of requests; `unbounded`, about any number; `cli`, which runs them.
"""
