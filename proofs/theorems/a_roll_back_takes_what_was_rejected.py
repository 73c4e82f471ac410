"""Speculative decoding: what an update takes back for drafts, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.bounded import Claim, Run, Scenario, bounded
from proofs.symbolic.state import Shape, State
from proofs.symbolic.values import all_of, any_of, implies


def roll_back(state: State) -> None:
    """Settles the drafts of the one request that there is."""
    request = state.scheduler.requests["r0"]
    num_drafts, num_sampled = state.numbers("drafts"), state.numbers("sampled")
    state.scheduler._roll_back(request, num_drafts, num_sampled)  # noqa: SLF001  (one effect)


def a_row_of_drafts(state: State) -> Iterator[Any]:
    """some drafts"""  # noqa: D400, D403, D415  (stands in the middle of a label)
    num_drafts, num_sampled = state.numbers("drafts"), state.numbers("sampled")
    yield num_drafts >= 1
    yield all_of(num_sampled >= 0, num_sampled <= num_drafts + 1)


ROLL_BACK = tuple(
    Scenario(roll_back, shape, a_row_of_drafts)
    for shape in (
        Shape(num_running=1, num_waiting=0),
        Shape(num_running=1, num_waiting=0, is_async=True),
        Shape(num_running=0, num_waiting=1, is_async=True),
    )
)
"""Who waits was preempted while its step was in flight."""


@bounded(
    *ROLL_BACK,
    mutants=("an_empty_row_rejects_every_draft", "drafts_of_a_voided_step_are_rolled_back"),
)
def a_roll_back_takes_what_was_rejected(run: Run) -> Iterator[Claim]:
    """Rejected drafts are neither computed nor sampled; no block is lost, and nothing else changes.

    A step that samples nothing, or that a preemption has voided, rejects nothing.
    """
    before, after = run.before.scheduler.requests["r0"], run.after.scheduler.requests["r0"]
    num_drafts, num_sampled = run.before.numbers("drafts"), run.before.numbers("sampled")
    num_rejected = num_drafts + 1 - num_sampled
    is_silent = any_of(num_sampled == 0, before.num_stale_output_tokens > 0)
    num_taken = before.num_computed_tokens - after.num_computed_tokens
    yield "a silent step takes nothing", implies(is_silent, num_taken == 0)
    yield "others take what is rejected", any_of(is_silent, num_taken == num_rejected)
    num_freed = before.num_output_placeholders - after.num_output_placeholders
    yield (
        "placeholders go with it",
        implies(before.num_output_placeholders > 0, num_freed == num_taken),
    )
    yield (
        "no token and no block is lost",
        all_of(
            after.num_tokens == before.num_tokens,
            after.num_in_flight_tokens == before.num_in_flight_tokens,
            after.num_blocks == before.num_blocks,
            run.after.scheduler.block_pool.num_free_blocks
            == run.before.scheduler.block_pool.num_free_blocks,
        ),
    )
