"""Whether every request comes to its end."""

from __future__ import annotations

from collections.abc import Iterator

import proofs.unbounded.mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.actions import abort, add_request, prove_action, schedule, update
from proofs.unbounded.finishing import GAINS, RESTS, judge_first, stays_first, waits_closer
from proofs.unbounded.invariant import Part
from proofs.unbounded.line import nothing
from proofs.unbounded.progress import (
    FITS,
    IS_READY,
    NOT_AT_THE_END,
    assumptions_of,
    running_head,
    waiting_head,
)
from proofs.unbounded.settle import settle
from proofs.unbounded.state import ASYNCHRONOUS, SYNCHRONOUS


def _parts() -> Iterator[Part]:
    for dialect in (SYNCHRONOUS, ASYNCHRONOUS):
        running = running_head(*assumptions_of(dialect, is_running=True))
        waiting = waiting_head(*assumptions_of(dialect, is_running=False))
        questions = (
            ("the first runs", schedule, stays_first(running)),
            ("the first waits", schedule, stays_first(waiting)),
            ("arrival", add_request, waits_closer(returns=False)),
            ("abort", abort, waits_closer(returns=False)),
            ("return", update, waits_closer(returns=True)),
        )
        for label, action, question in questions:
            yield f"{label}, {dialect.name}", dialect, prove_action(action, dialect, question)
    rests = stays_first(RESTS, gains=False)
    yield "the first rests", ASYNCHRONOUS, prove_action(schedule, ASYNCHRONOUS, rests)
    yield "why it rests", ASYNCHRONOUS, prove_action(nothing, ASYNCHRONOUS, GAINS)


@unbounded(
    mutants=(
        "the_first_running_is_preempted",
        "the_last_token_is_not_counted",
        "a_returned_step_is_computed_again",
        "a_grant_is_a_token_short",
    ),
    assumptions=(
        "any_number_nobody_is_passed, any_number_steps_keep_the_invariant, and what they assume",
        f"of a step: {FITS.sentence}",
        f"of a step in which the first gains a token: {NOT_AT_THE_END.sentence}",
        f"of the same, if the first waits: {IS_READY.sentence}",
        "that steps are planned, and return, for ever is up to the engine",
    ),
)
def any_number_every_request_comes_closer_to_its_end(proof: Proof, export: ObligationSink) -> None:
    """Each step, planned or returned, in which the first in the line has part, lowers a measure.

    It is the same for everybody behind, nothing else raises it, and it is never negative; so, if
    steps go on, the first ends, and then everybody behind that nobody passes. If the first has no
    part in a step, something of it is in flight, and the return of that lowers the measure.
    """
    settle(proof, export, _parts(), [judge_first])
