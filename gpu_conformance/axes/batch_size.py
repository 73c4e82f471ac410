"""Who is computed together."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import Sights, Way

ALL = "all"


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.max_num_reqs == value


@axis(baseline=ALL, values=(1, 2, 3, 5), few=(2,), is_reached=_is_reached)
def batch_size(way: Way, value: Value) -> Way:
    """At most so many requests run at once, so that decodes meet prompts of others."""
    if value == ALL:
        return way
    return attrs.evolve(way, config=attrs.evolve(way.config, max_num_seqs=int(value)))
