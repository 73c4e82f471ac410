"""What may be found in the prefix cache, and whether somebody computes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.bounded import Claim, Run
from proofs.symbolic.pools import PublicationPool
from proofs.symbolic.state import State
from proofs.symbolic.values import all_of


def published_is_promised(state: State) -> Iterator[Any]:
    """published blocks are computed"""  # noqa: D400, D403, D415  (stands in the middle of a label)
    published = pool_of(state).num_published_tokens
    for request in state.scheduler.running:
        num_tokens = published[request.request_id]
        yield num_tokens >= 0
        yield num_tokens <= request.num_computed_tokens
        yield num_tokens <= request.num_tokens
    for request in state.scheduler.waiting.items:
        yield published[request.request_id] == 0


def claims_of_publication(run: Run) -> Iterator[Claim]:
    """What is findable was computed by a step sent to the worker, or will be by this one."""
    pool = pool_of(run.after)
    for name, request in run.after.scheduler.requests.items():
        num_tokens = pool.num_published_tokens[name]
        yield (
            f"{name} has published what is promised",
            all_of(num_tokens <= request.num_computed_tokens, num_tokens <= request.num_tokens),
        )
    for name, num_tokens in pool.num_left_tokens.items():
        # Steps in flight will still run, void or not; what this step took back will not.
        num_promised_tokens = run.before.scheduler.requests[name].num_computed_tokens
        yield f"{name} leaves behind what is promised", num_tokens <= num_promised_tokens


def pool_of(state: State) -> PublicationPool:
    """The pool that records publications."""
    pool = state.scheduler.block_pool
    assert isinstance(pool, PublicationPool), "the shape says so"
    return pool
