"""Who holds which block."""

from __future__ import annotations

import proofs.unbounded.mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.pool import prove_allocate, prove_free
from proofs.unbounded.settle import decide, say_open, take
from proofs.unbounded.watch_pool import find_pool_breach


@unbounded(
    mutants=(
        "a_hit_block_stays_free",
        "new_blocks_are_taken_before_hits",
        "a_new_block_is_held_by_nobody",
        "a_shared_block_is_freed",
        "a_block_is_lost_with_its_last_holder",
        "a_freed_table_is_kept",
    ),
    assumptions=(
        "the blocks of a hit are distinct, of the pool, and not in the table yet",
        "there is room for the free blocks of the hit and the new ones (every caller asks first)",
    ),
)
def any_number_blocks_are_never_used_twice(proof: Proof, export: ObligationSink) -> None:
    """No block is used twice or lost when blocks are handed out or freed, however they are shared.

    What a request gives back is what nobody else holds; so do the pools that stand for this one.
    """
    for name, prove in (("allocate", prove_allocate), ("free", prove_free)):
        prover = prove()
        take(proof, export, prover)
        if prover.unproved is not None:
            decide(proof, name, prover.unproved, find_pool_breach(say_open(proof, name)))
            return
