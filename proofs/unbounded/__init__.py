"""Proofs for any number of requests, any integers and any block size, about the code of `spec`.

Entry points: the theorems stand in `proofs.theorems` (`unbounded_*.py`). Here `state` builds the
symbolic scheduler, `points` says what holds in the middle of a step, `cuts` cuts the loops,
`actions` runs what may happen, and `watch` says the same claims of runs on plain integers.
"""
