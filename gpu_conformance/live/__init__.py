"""A whole engine under test: requests in, tokens and log-probabilities out."""
