"""Whatever happens between two steps."""

from __future__ import annotations

from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.invariant import ASSUMPTIONS, prove_actions
from proofs.unbounded.settle import settle
from proofs.unbounded.state import ASYNCHRONOUS, SYNCHRONOUS


@unbounded(
    mutants=(
        "a_pool_starts_a_block_short",
        "freed_blocks_are_lost",
        "a_returned_step_stays_in_flight",
        "all_wait_with_those_who_hold_kv",
    ),
    assumptions=ASSUMPTIONS,
)
def any_number_actions_keep_the_invariant(proof: Proof, export: ObligationSink) -> None:
    """A new scheduler satisfies the invariant; arrivals, aborts and returning steps keep it."""
    settle(proof, export, prove_actions(SYNCHRONOUS, ASYNCHRONOUS))
