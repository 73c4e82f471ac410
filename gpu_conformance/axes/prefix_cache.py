"""Whether a prompt begins with KV that another request has computed."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import Arrival, Sights, Way

OFF = "off"
STEPS_BETWEEN = {"same step": 0, "next step": 1, "much later": 40}
"""Steps from one arrival to the next: KV of this very step, of one that runs, of one that ended."""


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_hit_tokens > 0


@axis(baseline=OFF, values=tuple(STEPS_BETWEEN), few=("next step",), is_reached=_is_reached)
def prefix_cache(way: Way, value: Value) -> Way:
    """Prompts that begin alike share blocks, and arrive together or one after the other."""
    if value == OFF:
        return way
    between = STEPS_BETWEEN[str(value)]
    arrivals = tuple(
        Arrival(request, number * between) for number, request in enumerate(way.requests)
    )
    config = attrs.evolve(way.config, enable_prefix_caching=True)
    return attrs.evolve(way, arrivals=arrivals, config=config)
