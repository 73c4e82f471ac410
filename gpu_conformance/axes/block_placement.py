"""Where the blocks of a request lie."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.renaming import PLACEMENTS
from gpu_conformance.way import Sights, Way

AS_GIVEN, *OTHERS = PLACEMENTS


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_steps > 0


@axis(baseline=AS_GIVEN, values=OTHERS, few=("scattered",), is_reached=_is_reached)
def block_placement(way: Way, value: Value) -> Way:
    """Blocks lie elsewhere in the cache than the scheduler's numbers say."""
    return attrs.evolve(way, placement=str(value))
