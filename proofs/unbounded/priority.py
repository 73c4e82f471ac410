"""The priority policy: the steps and actions, and the place at which a request joins the queue.

Entry points: `prove_priorities`, in parts, and `prove_rank`, which shows of the real queue what
`proofs.unbounded.ranks.RankedQueue` stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import define

from proofs.symbolic.heap import NOWHERE, Cell, Memory, SymList
from proofs.symbolic.loops import Loop, cut_rule
from proofs.symbolic.prover import Prover
from proofs.symbolic.values import symbolic_len
from proofs.unbounded.invariant import ASSUMPTIONS, Part, prove_actions, prove_steps
from proofs.unbounded.points import between_steps, quantified
from proofs.unbounded.ranks import claims_of_rank, claims_of_search
from proofs.unbounded.state import (
    PRIORITY,
    Dialect,
    SymbolicOutput,
    SymbolicScheduler,
    injected,
    make_scheduler,
)
from spec.request_queue import PriorityRequestQueue
from spec.scheduler import ReferenceScheduler

PRIORITY_ASSUMPTIONS = (
    "the priority policy; a pool that counts its blocks; no prefix cache",
    *ASSUMPTIONS[1:],
)


def prove_priorities(*dialects: Dialect) -> Iterator[Part]:
    """Yields the search for a rank, the steps, and the actions."""
    yield "joining the queue", PRIORITY, prove_rank()
    yield from prove_steps(*dialects)
    yield from prove_actions(*dialects)


def prove_rank() -> Prover:
    """Shows that a request joins a sorted queue once, at a place that `claims_of_rank` allows."""
    prover = Prover()

    def body() -> None:
        scheduler = make_scheduler(prover, PRIORITY, SymbolicScheduler, ReferenceScheduler, {})
        memory, items = scheduler.memory, scheduler.lists["waiting"]
        request = scheduler.see(prover.any_integer("joining").term)
        with injected(scheduler):
            scheduler.output = SymbolicOutput(memory)  # type: ignore[assignment]
            prover.assume(
                *quantified(scheduler, between_steps).values(),
                memory.select("where", request.key) == NOWHERE,
            )
            places = _Places(items)
            joining: Any = request
            _CutQueue(memory, places).add_request(joining)
        prover.oblige("it joins once", places.num_joined == 1)

    prover.prove(body)
    return prover


@define
class _Places:
    """The items of a queue; a request may join where `claims_of_rank` allows, and does not."""

    items: SymList
    num_joined: int = 0

    def symbolic_len(self) -> Any:
        """Answers `len`."""
        return self.items.symbolic_len()

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def insert(self, index: Any, request: Any) -> None:
        """Looks at the place."""
        prover = self.items.memory.prover
        prover.place = "joining"
        prover.oblige_all(lambda: claims_of_rank(self.items, index, request))
        self.num_joined += 1


class _CutQueue(PriorityRequestQueue):
    """The real queue, the search for a rank cut."""

    rank = Cell()  # type: ignore[assignment]
    items: Any

    def __init__(self, memory: Memory, places: _Places) -> None:
        self.memory = memory
        self.items = places

    def _pass_next(self, request: Any) -> bool:
        loop = Loop(
            "finding a rank",
            self.memory,
            lambda: claims_of_search(self.items.items, self.rank, request),
            dict,
            ["rank"],
            forgets=False,
        )
        return cut_rule(
            loop,
            lambda: symbolic_len(self.items) - self.rank,
            lambda: super(_CutQueue, self)._pass_next(request),
        )
