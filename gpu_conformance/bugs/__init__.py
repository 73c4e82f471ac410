"""Bugs of a model runner, by what they get wrong. Importing this package registers them all."""

from gpu_conformance.bugs import blocks, positions, requests, sums

__all__ = ["blocks", "positions", "requests", "sums"]
