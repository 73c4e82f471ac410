"""The gate that keeps its promise, for any number of prompts."""

from __future__ import annotations

from collections.abc import Iterator

import proofs.unbounded.mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.actions import abort, add_request, prove_action, schedule, update
from proofs.unbounded.invariant import Part
from proofs.unbounded.reserve import BETWEEN, PLANNING, RESERVING, judge_reserve
from proofs.unbounded.settle import settle
from proofs.unbounded.state import RESERVE_AWARE


def _parts() -> Iterator[Part]:
    for dialect in (RESERVING, RESERVE_AWARE):
        yield f"schedule, {dialect.name}", dialect, prove_action(schedule, dialect, PLANNING)
        for action in (add_request, abort, update):
            label = f"{action.__name__}, {dialect.name}"
            yield label, dialect, prove_action(action, dialect, BETWEEN)


@unbounded(
    mutants=("nothing_is_reserved", "only_the_chunk_must_fit", "a_block_less_is_reserved"),
    assumptions=(
        "any_number_dialects_keep_the_invariant, and what it assumes",
        "of each step: no request that runs has an output token, known or being sampled",
    ),
)
def any_number_prompts_are_protected(proof: Proof, export: ObligationSink) -> None:
    """With the reserve-aware gate nobody is preempted while only prompts run.

    What running prompts lack is free when nobody runs yet, and stays free through all that happens
    but a step in which somebody has output, who may take a block that nobody reserved.
    """
    settle(proof, export, _parts(), [judge_reserve])
