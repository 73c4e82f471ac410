"""Whether a step is filled up to a fixed size, and on CUDA played from a recorded graph."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import Sights, Way


def _is_reached(seen: Sights, value: Value) -> bool:
    return 0 < seen.shortest_step <= int(value)


@axis(baseline=0, values=(8, 64, 256), is_reached=_is_reached)
def graph_bucket(way: Way, value: Value) -> Way:
    """Steps of up to so many tokens are computed as steps of so many; 0 fills up none."""
    return attrs.evolve(way, graph_bucket=int(value))
