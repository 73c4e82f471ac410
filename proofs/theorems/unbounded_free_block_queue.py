"""In which order our engine hands out free blocks."""

from __future__ import annotations

import proofs.pool_mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.free_block_queue import prove_queue
from proofs.unbounded.settle import decide, take
from proofs.unbounded.watch_queue import find_queue_breach


@unbounded(
    mutants=(
        "links_go_one_way",
        "who_leaves_is_remembered_behind",
        "the_new_head_points_back",
        "blocks_that_join_are_not_counted",
        "the_tail_is_overtaken",
    ),
    assumptions=(
        "only blocks in the queue are taken, only others join it (our_pool_equals_the_spec)",
        "a new queue is in order: shown of up to 64 blocks only",
    ),
)
def any_number_our_free_block_queue_is_a_list(proof: Proof, export: ObligationSink) -> None:
    """Each method changes the ring of free blocks, of any length, as it would change a list."""
    for label, prover in prove_queue():
        take(proof, export, prover)
        if prover.unproved is not None:
            decide(proof, label, prover.unproved, find_queue_breach())
            return
