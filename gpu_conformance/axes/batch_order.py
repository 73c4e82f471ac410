"""In which order the requests of a step stand."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import Sights, Way

AS_SCHEDULED = "as scheduled"
MAX_SEED = 2**32 - 1


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.max_num_reqs > 1


@axis(baseline=AS_SCHEDULED, values=(1, 2, 3), greatest=MAX_SEED, is_reached=_is_reached)
def batch_order(way: Way, value: Value) -> Way:
    """The requests of each step are shuffled, by a seed."""
    if value == AS_SCHEDULED:
        return way
    return attrs.evolve(way, order_seed=int(value))
