"""Who holds which block."""

from __future__ import annotations

import proofs.unbounded.mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.pool import prove_allocate
from proofs.unbounded.settle import decide, take
from proofs.unbounded.watch_pool import find_pool_breach


@unbounded(
    mutants=(
        "a_hit_block_stays_free",
        "new_blocks_are_taken_before_hits",
        "a_new_block_is_held_by_nobody",
    ),
    assumptions=(
        "the blocks of a hit are distinct, of the pool, and not in the table yet",
        "there is room for the free blocks of the hit and the new ones (every caller asks first)",
        "`free` is not covered here: it is proved for tables of up to 3 blocks",
    ),
)
def any_number_blocks_are_never_used_twice(proof: Proof, export: ObligationSink) -> None:
    """Handing out blocks uses none twice, loses none, and counts them as the counted pool does."""
    prover = prove_allocate()
    take(proof, export, prover)
    if prover.unproved is not None:
        decide(proof, "allocate", prover.unproved, find_pool_breach())
