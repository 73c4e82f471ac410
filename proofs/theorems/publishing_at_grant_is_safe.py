"""The rule of vLLM 0.33.0 as released, and it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.actions import schedule
from proofs.bounded import Claim, Run, Scenario, bounded
from proofs.invariant import totals_of
from proofs.publication import claims_of_publication, published_is_promised
from proofs.symbolic.state import Shape, State
from proofs.symbolic.values import all_of, implies


def after_two_steps(state: State) -> Iterator[Any]:
    """no block is shared, r0 ran a step alone and one beside r1"""  # noqa: D400, D403, D415  (part of a label)
    yield from published_is_promised(state)
    totals, config = totals_of(state.scheduler), state.scheduler.config
    yield totals.num_free_blocks + totals.num_held_blocks == config.num_blocks
    for number in (1, 2):
        # The pool is free to choose how many blocks come back; here all do.
        yield state.numbers(f"choice{number}") >= config.num_blocks
    # Such a state is reached, so the refutation is of use.
    first, second = state.scheduler.running
    budget, threshold = config.max_num_scheduled_tokens, config.long_prefill_token_threshold
    yield all_of(threshold > 0, threshold < budget)
    yield first.num_computed_tokens == budget + threshold
    yield second.num_computed_tokens == budget - threshold
    yield first.arrival_time < second.arrival_time


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
        after_two_steps,
    ),
    mutants=(),
    assumptions=("the pool is abstracted to counts of published tokens",),
    expected="refuted",
)
def publishing_at_grant_is_safe(run: Run) -> Iterator[Claim]:
    """With publish_at_grant, a published block was computed by a step sent to the worker."""
    num_free_tokens = run.after.scheduler.block_pool.num_free_blocks * run.after.shape.block_size
    # A block that was handed out again is not found any more, so more must be left over than the
    # victim had computed.
    is_left = [
        num_free_tokens > each.num_computed_tokens for each in run.after.scheduler.heard.preemptions
    ]
    for claim, fact in claims_of_publication(run):
        yield claim, implies(all_of(*is_left), fact)
