"""What the unbounded proofs use of two small functions of the spec, shown of the real ones.

Entry point: `prove_lemmas`. A heap of requests and either of these functions are each easy for the
solver, and hard together; so the proofs use what is said here in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import z3

import spec.stop
from proofs.symbolic.lending import lend
from proofs.symbolic.prover import Prover
from proofs.symbolic.values import CURRENT, SymInt, all_of, implies
from proofs.unbounded.state import (
    SYNCHRONOUS,
    SymbolicScheduler,
    make_scheduler,
    may_be_stop,
)
from spec.block_pool import cdiv
from spec.scheduler import ReferenceScheduler
from spec.stop import check_stop


def prove_lemmas() -> Iterator[Prover]:
    """Shows what is used of `cdiv`, for any block size, and of `check_stop`, in every order."""
    for show in (_show_rounding, _show_full_blocks, _show_stop):
        prover = Prover()
        prover.prove(partial(show, prover))
        yield prover


class _Number(SymInt):
    """An integer that may be divided by any positive one.

    Rounded down, the quotient of a and b is the q with q * b <= a < q * b + b.
    """

    def __sub__(self, other: Any) -> _Number:
        return _Number(super().__sub__(other).term)

    def __add__(self, other: Any) -> _Number:
        return _Number(super().__add__(other).term)

    def __floordiv__(self, other: Any) -> SymInt:
        prover: Any = CURRENT.brancher
        quotient: SymInt = prover.any_integer("quotient")
        product = SymInt(quotient.term * other.term)
        prover.assume(all_of(product <= self, self < product + other))
        return quotient


def _show_rounding(prover: Prover) -> None:
    """What `proofs.unbounded.state.facts_of_blocks` says."""
    block_size, fewer, more = (
        _Number(prover.any_integer(name).term) for name in ("block_size", "fewer", "more")
    )
    prover.assume(block_size >= 1)
    rounded: Any = cdiv
    prover.place = "rounding up"
    none, few, many = (rounded(each, block_size) for each in (_Number(z3.IntVal(0)), fewer, more))
    prover.oblige("no tokens need no block", none == 0)
    prover.oblige("a token needs a block", implies(fewer >= 1, few >= 1))
    prover.oblige("more tokens need no fewer blocks", implies(fewer <= more, few <= many))


def _show_full_blocks(prover: Prover) -> None:
    """What `proofs.unbounded.state.may_be_hit` says of full blocks, and of the longest hit."""
    block_size, num_blocks, most = (
        _Number(prover.any_integer(name).term) for name in ("block_size", "hit", "most")
    )
    prover.assume(block_size >= 1, num_blocks >= 0, num_blocks <= most // block_size)
    num_tokens = _Number(num_blocks.term * block_size.term)
    rounded: Any = cdiv
    prover.place = "full blocks"
    prover.oblige("they hold tokens", num_tokens >= 0)
    prover.oblige("they hold no more than there are", num_tokens <= most)
    prover.oblige("their tokens need them all", rounded(num_tokens, block_size) == num_blocks)


def _show_stop(prover: Prover) -> None:
    """What `proofs.unbounded.state.may_be_stop` says."""
    scheduler = make_scheduler(prover, SYNCHRONOUS, SymbolicScheduler, ReferenceScheduler, {})
    request: Any = scheduler.see(prover.any_integer("request").term)
    token_id: Any = prover.any_integer("token")
    prover.place = "a sampled token"
    with lend(spec.stop, ends_in_repetition=lambda *_: prover.any_truth("repeats itself")):
        status = check_stop(request, token_id, scheduler.config)
    prover.oblige("ends it, or leaves room", may_be_stop(request, status, scheduler.config))
