"""Whatever our scheduler may come to, all at once."""

from __future__ import annotations

import random

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import Arrival, Sights, Way, num_blocks_for

NONE = "none"
MAX_SEED = 2**32 - 1


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_partial_chunks > 0


@axis(baseline=NONE, values=range(1, 13), greatest=MAX_SEED, is_reached=_is_reached)
def engine_walk(way: Way, value: Value) -> Way:
    """Arrivals, aborts, priorities, budgets, drafts, and a small pool of blocks, by a seed."""
    if value == NONE:
        return way
    rng = random.Random(int(value))
    arrivals = [
        Arrival(attrs.evolve(request, priority=rng.randrange(3)), rng.randrange(12))
        for request in way.requests
    ]
    longest = max(len(r.prompt_token_ids) + r.max_tokens for r in way.requests)
    depth, num_drafts = rng.choice((1, 2, 3)), rng.choice((0, 0, 1, 3))
    block_size = rng.choice((1, 2, 4, 8, 16))
    config = attrs.evolve(
        way.config,
        max_num_batched_tokens=(budget := rng.choice((7, 20, 50))),
        max_num_scheduled_tokens=budget,
        max_num_seqs=rng.choice((3, 8)),
        long_prefill_token_threshold=rng.choice((0, 5, 17)),
        policy=rng.choice(("fcfs", "priority")),
        block_size=block_size,
        num_blocks=num_blocks_for(longest + num_drafts, block_size) + rng.randrange(4),
        num_speculative_tokens=num_drafts,
        scheduler_reserve_full_isl=rng.random() < 0.5,
        enable_prefix_caching=rng.random() < 0.7,
        async_scheduling=depth > 1,
    )
    return attrs.evolve(
        way,
        arrivals=tuple(arrivals),
        config=config,
        aborts=((rng.randrange(4, 14), rng.choice(way.requests).request_id),),
        max_in_flight=depth,
        num_drafts=num_drafts,
        placement="scattered",
        order_seed=int(value),
    )
