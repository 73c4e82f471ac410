"""The planted bugs, by what they get wrong. Importing this package registers them all."""

from tests.quality.bugs import blocks, counters, ends, grants, prefix_cache, queues, worker

__all__ = ["blocks", "counters", "ends", "grants", "prefix_cache", "queues", "worker"]
