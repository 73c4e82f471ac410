"""The priority policy."""

from __future__ import annotations

import proofs.unbounded.mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.priority import PRIORITY_ASSUMPTIONS, prove_priorities
from proofs.unbounded.settle import settle
from proofs.unbounded.state import ASYNCHRONOUS_PRIORITY, PRIORITY


@unbounded(
    mutants=(
        "an_arrival_jumps_the_queue",
        "the_last_running_is_preempted",
        "a_taken_back_chunk_stays_paid_for",
        "the_cursor_follows_every_victim",
        "a_victim_keeps_its_computed_tokens",
    ),
    assumptions=PRIORITY_ASSUMPTIONS,
    is_slow=True,
)
def any_number_priorities_keep_the_invariant(proof: Proof, export: ObligationSink) -> None:
    """All this holds with priorities; `waiting` stays sorted, the last to be served is preempted.

    That is the first of the greatest (priority, arrival_time) in `running`, wherever it stands and
    whether or not the step has scheduled it already.
    """
    settle(proof, export, prove_priorities(PRIORITY, ASYNCHRONOUS_PRIORITY))
