"""Prefix hits."""

from __future__ import annotations

from collections.abc import Iterator

import proofs.unbounded.mutants  # noqa: F401  (registers them)
from proofs.theorem import ObligationSink, Proof, unbounded
from proofs.unbounded.invariant import ASSUMPTIONS, Part, prove_actions, prove_steps
from proofs.unbounded.priority import prove_priorities
from proofs.unbounded.settle import settle
from proofs.unbounded.state import ASYNCHRONOUS_CACHING, CACHING, PRIORITY_CACHING


def _parts() -> Iterator[Part]:
    yield from prove_steps(CACHING, ASYNCHRONOUS_CACHING)
    yield from prove_actions(CACHING, ASYNCHRONOUS_CACHING)
    yield from prove_priorities(PRIORITY_CACHING)


@unbounded(
    mutants=(
        "a_hit_is_computed_again",
        "a_victim_keeps_its_computed_tokens",
        "there_is_always_a_seat",
    ),
    assumptions=(
        "a pool that may find any full blocks that leave a token to compute, whoever holds them",
        "it gives back any part of what is freed (as AnyHitsPool); its blocks are counted",
        *ASSUMPTIONS[1:],
    ),
    is_slow=True,
)
def any_number_hits_keep_the_invariant(proof: Proof, export: ObligationSink) -> None:
    """All this holds with a prefix cache, whatever it finds; free blocks stay within the pool.

    First come, first served, synchronous and asynchronous; with priorities, synchronous.
    """
    settle(proof, export, _parts())
