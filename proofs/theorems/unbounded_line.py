"""The order in which requests are served."""

from __future__ import annotations

from collections.abc import Iterator

import proofs.unbounded.mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.actions import abort, add_request, prove_action, schedule, update
from proofs.unbounded.invariant import Part
from proofs.unbounded.line import (
    BETWEEN,
    IS_READY_IF_IT_WAITS,
    ONE_IN_FLIGHT,
    READY,
    judge_line,
    keeps_order,
    keeps_places,
    nothing,
)
from proofs.unbounded.settle import settle
from proofs.unbounded.state import ASYNCHRONOUS, SYNCHRONOUS


def _parts() -> Iterator[Part]:
    questions = (
        ("places", SYNCHRONOUS, schedule, keeps_places()),
        ("places, one step in flight", ASYNCHRONOUS, schedule, keeps_places(ONE_IN_FLIGHT)),
        ("readiness, one step in flight", ASYNCHRONOUS, nothing, READY),
        ("order", ASYNCHRONOUS, schedule, keeps_order(IS_READY_IF_IT_WAITS)),
        *[("order", ASYNCHRONOUS, action, BETWEEN) for action in (add_request, abort, update)],
    )
    for label, dialect, action, question in questions:
        prover = prove_action(action, dialect, question)
        yield f"{label}, {action.__name__}, {dialect.name}", dialect, prover


@unbounded(
    mutants=("a_victim_joins_the_tail", "the_tail_is_admitted"),
    assumptions=(
        "any_number_steps_keep_the_invariant, and what it assumes",
        f"asynchronous, either: {ONE_IN_FLIGHT.sentence}",
        f"or: {IS_READY_IF_IT_WAITS.sentence}",
    ),
)
def any_number_nobody_is_passed(proof: Proof, export: ObligationSink) -> None:
    """Whoever stands before a request in the line, running, then waiting, stays before it.

    A step leaves everybody's place alone, whatever it preempts and admits; who arrives joins the
    end. With more than one step in flight, who waits for its own voided steps may be passed.
    """
    settle(proof, export, _parts(), [judge_line])
