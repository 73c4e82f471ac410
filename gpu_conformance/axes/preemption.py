"""Whether a request loses its KV on the way, and computes it again."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import Sights, Way, num_blocks_for

ROOM_FOR_ALL = "room for all"


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_resumptions > 0


@axis(baseline=ROOM_FOR_ALL, values=(0, 1, 2), few=(0,), is_reached=_is_reached)
def preemption(way: Way, value: Value) -> Way:
    """So many blocks are left beside those of the longest request, so others are preempted."""
    if value == ROOM_FOR_ALL:
        return way
    longest = max(len(r.prompt_token_ids) + r.max_tokens for r in way.requests)
    num_tokens = longest + way.config.num_speculative_tokens
    config = attrs.evolve(
        way.config,
        num_blocks=num_blocks_for(num_tokens, way.config.block_size) + int(value),
        # Chunks are admitted as they fit, so that prompts are preempted half-way, too.
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=7,
    )
    return attrs.evolve(way, config=config)
