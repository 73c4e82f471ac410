"""How the KV of a request is cut into blocks."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import BLOCK_SIZE, Sights, Way


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_steps > 0


@axis(baseline=BLOCK_SIZE, values=(1, 8, 32, 64), is_reached=_is_reached)
def block_size(way: Way, value: Value) -> Way:
    """A block holds so many tokens."""
    size = int(value)
    # No request needs more blocks than of the usual size, times what these hold more.
    num_blocks = way.config.num_blocks * max(1, BLOCK_SIZE // size)
    config = attrs.evolve(way.config, block_size=size, num_blocks=num_blocks)
    return attrs.evolve(way, config=config)
