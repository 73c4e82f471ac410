"""What no request is denied for ever."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.actions import prove_action, schedule
from proofs.unbounded.invariant import Part
from proofs.unbounded.progress import (
    FITS,
    IS_READY,
    NOT_AT_THE_END,
    assumptions_of,
    judge_progress,
    running_head,
    waiting_head,
)
from proofs.unbounded.settle import settle
from proofs.unbounded.state import ASYNCHRONOUS, SYNCHRONOUS


def _parts() -> Iterator[Part]:
    for dialect in (SYNCHRONOUS, ASYNCHRONOUS):
        running = running_head(*assumptions_of(dialect, is_running=True))
        waiting = waiting_head(*assumptions_of(dialect, is_running=False))
        yield f"running, {dialect.name}", dialect, prove_action(schedule, dialect, running)
        yield f"waiting, {dialect.name}", dialect, prove_action(schedule, dialect, waiting)


@unbounded(
    mutants=("the_first_running_is_preempted", "a_grant_is_a_token_short"),
    assumptions=(
        "any_number_steps_keep_the_invariant, and what it assumes",
        *(each.sentence for each in (FITS, NOT_AT_THE_END, IS_READY)),
    ),
)
def any_number_the_oldest_gains_a_token(proof: Proof, export: ObligationSink) -> None:
    """The first of running is scheduled in every step; if nobody runs, the first of waiting is."""
    settle(proof, export, _parts(), [judge_progress])
