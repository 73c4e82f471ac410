"""Planning a step where engines differ."""

from __future__ import annotations

from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.invariant import ASSUMPTIONS, prove_actions, prove_steps
from proofs.unbounded.settle import settle
from proofs.unbounded.state import CHUNK_GATE, RESERVE_AWARE, WHOLE_PROMPTS


@unbounded(mutants=("a_grant_takes_no_blocks",), assumptions=ASSUMPTIONS, is_slow=True)
def any_number_dialects_keep_the_invariant(proof: Proof, export: ObligationSink) -> None:
    """All this holds without chunks, with a chunk's gate only, and with the reserve-aware gate."""
    settle(proof, export, prove_steps(CHUNK_GATE, WHOLE_PROMPTS, RESERVE_AWARE))
    if proof.verdict == "proved":
        settle(proof, export, prove_actions(CHUNK_GATE, WHOLE_PROMPTS, RESERVE_AWARE))
