"""Planning a step."""

from __future__ import annotations

import proofs.unbounded.mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.invariant import ASSUMPTIONS, prove_steps
from proofs.unbounded.settle import settle
from proofs.unbounded.state import ASYNCHRONOUS, SYNCHRONOUS


@unbounded(
    mutants=(
        "a_grant_takes_no_blocks",
        "a_grant_costs_nothing",
        "freed_blocks_are_lost",
        "there_is_always_a_seat",
        "a_victim_keeps_its_computed_tokens",
        "who_was_looked_at_is_looked_at_again",
    ),
    assumptions=ASSUMPTIONS,
)
def any_number_steps_keep_the_invariant(proof: Proof, export: ObligationSink) -> None:
    """A step keeps the invariant, both budgets and max_num_seqs, and each of its loops ends."""
    settle(proof, export, prove_steps(SYNCHRONOUS, ASYNCHRONOUS))
