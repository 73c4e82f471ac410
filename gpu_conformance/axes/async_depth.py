"""How far the scheduler is ahead of what it knows."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import Sights, Way


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.max_in_flight == value


@axis(baseline=1, values=(2, 3), is_reached=_is_reached)
def async_depth(way: Way, value: Value) -> Way:
    """So many steps run before the scheduler hears of the first of them."""
    depth = int(value)
    config = attrs.evolve(way.config, async_scheduling=depth > 1)
    return attrs.evolve(way, config=config, max_in_flight=depth)
