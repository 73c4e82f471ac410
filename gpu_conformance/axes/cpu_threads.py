"""How many threads of the CPU compute a row."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import Sights, Way


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_steps > 0


@axis(baseline=1, values=(2,), greatest=128, is_reached=_is_reached)
def cpu_threads(way: Way, value: Value) -> Way:
    """Matrices are computed by so many threads."""
    return attrs.evolve(way, num_threads=int(value))
