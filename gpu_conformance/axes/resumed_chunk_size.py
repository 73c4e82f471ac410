"""How much of what a preempted request has lost a step computes again."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import NotHere, Value, axis
from gpu_conformance.way import WHOLE, Arrival, Sights, Way, make_way, num_blocks_for

NUM_REQUESTS = 3
MAX_PROMPT_TOKENS = 7
MAX_TOKENS = 20
BLOCK_SIZE = 4
NUM_SPARE_BLOCKS = 3
"""Beside those of the longest request: with 10 blocks of 4 tokens, three requests of a pace have
some 12 tokens each when the last of them is preempted, 5 of its answer among them."""


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_partial_output_chunks > 0 and seen.longest_chunk == value


@axis(baseline=WHOLE, values=(1, 3), is_reached=_is_reached)
def resumed_chunk_size(way: Way, value: Value) -> Way:
    """Requests are preempted in mid-answer, and compute it again in chunks of so many tokens."""
    if value == WHOLE:
        return way
    if int(value) >= MAX_TOKENS:
        raise NotHere(f"no answer is longer than {MAX_TOKENS} tokens")
    shortest = sorted(way.requests, key=lambda request: len(request.prompt_token_ids))
    requests = [
        attrs.evolve(
            request,
            prompt_token_ids=request.prompt_token_ids[:MAX_PROMPT_TOKENS],
            max_tokens=MAX_TOKENS,
        )
        for request in shortest[:NUM_REQUESTS]
    ]
    longest = max(len(r.prompt_token_ids) + r.max_tokens for r in requests)
    config = attrs.evolve(
        make_way(requests).config,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks_for(longest, BLOCK_SIZE) + NUM_SPARE_BLOCKS,
        long_prefill_token_threshold=int(value),
        threshold_spares_lone_request=False,
        scheduler_reserve_full_isl=False,
    )
    return attrs.evolve(way, arrivals=tuple(map(Arrival, requests)), config=config)
