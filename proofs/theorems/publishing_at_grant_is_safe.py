"""The rule of vLLM 0.33.0 as released, and it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.actions import schedule
from proofs.bounded import Claim, Run, Scenario, bounded
from proofs.invariant import totals_of
from proofs.publication import claims_of_publication, published_is_promised
from proofs.symbolic.state import Shape, State


def blocks_are_not_shared(state: State) -> Iterator[Any]:
    """published blocks are computed, none is shared"""  # noqa: D400, D403, D415  (part of a label)
    yield from published_is_promised(state)
    totals = totals_of(state.scheduler)
    num_blocks = state.scheduler.config.num_blocks
    yield totals.num_free_blocks + totals.num_held_blocks == num_blocks
    for number, request in enumerate(state.scheduler.running, 1):
        yield request.num_computed_tokens >= 1
        # The pool is free to choose how many blocks come back; here all do.
        yield state.numbers(f"choice{number}") >= num_blocks


@bounded(
    Scenario(
        schedule,
        Shape(
            num_running=2,
            num_waiting=0,
            policy="priority",
            pool="publication",
            block_size=2,
            switches=frozenset({("publish_at_grant", True)}),
        ),
        blocks_are_not_shared,
    ),
    mutants=(),
    assumptions=("the pool is abstracted to counts of published tokens",),
    expected="refuted",
)
def publishing_at_grant_is_safe(run: Run) -> Iterator[Claim]:
    """With publish_at_grant, a published block was computed by a step sent to the worker."""
    yield from claims_of_publication(run)
