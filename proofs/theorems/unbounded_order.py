"""Head-of-line admission."""

from __future__ import annotations

import proofs.unbounded.mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.actions import prove_action, schedule
from proofs.unbounded.order import ORDER, judge_order
from proofs.unbounded.settle import settle
from proofs.unbounded.state import ASYNCHRONOUS, CHUNK_GATE


@unbounded(
    mutants=(
        "admission_goes_on_after_a_preemption",
        "nobody_waits_for_stale_output",
        "skipped_requests_join_the_tail",
    ),
    assumptions=("any_number_steps_keep_the_invariant, and what it assumes",),
)
def any_number_nobody_ready_is_overtaken(proof: Proof, export: ObligationSink) -> None:
    """Of two waiting requests the one behind is admitted only if the one ahead is, or is not ready.

    Who is not ready keeps its place, and nobody is admitted in a step that preempts.
    """
    parts = (
        (dialect.name, dialect, prove_action(schedule, dialect, ORDER))
        for dialect in (ASYNCHRONOUS, CHUNK_GATE)
    )
    settle(proof, export, parts, [judge_order])
