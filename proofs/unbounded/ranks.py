"""The priority policy: a queue sorted by rank, and a victim anywhere in `running`.

Entry points: `RankedQueue`, the waiting queue of a proof, and `claims_of_choice`, what holds while
a victim is chosen. `proofs.unbounded.priority` shows that the real queue finds the place that is
assumed here.
"""

from __future__ import annotations

from typing import Any

import z3

from proofs.symbolic.heap import Memory, SymList
from proofs.symbolic.values import all_of, term
from spec.request_queue import PriorityRequestQueue


def is_served_after(memory: Memory, a: Any, b: Any) -> z3.BoolRef:
    """What `spec.request.is_served_after` decides, as one term: nothing forks."""
    priority, arrival_time = memory["priority"], memory["arrival_time"]
    is_tie = z3.And(priority[a] == priority[b], arrival_time[a] > arrival_time[b])
    return z3.Or(priority[a] > priority[b], is_tie)


class RankedQueue(PriorityRequestQueue):
    """The sorted queue, which lets a request join where the real one does."""

    items: Any

    def __init__(self, items: SymList) -> None:
        self.items = items

    def add_request(self, request: Any) -> None:
        """Puts a request to any place that `claims_of_rank` allows."""
        prover = self.items.memory.prover
        rank = prover.any_integer("rank")
        prover.assume(*claims_of_rank(self.items, rank, request).values())
        self.items.insert(rank, request)


def claims_of_rank(items: SymList, rank: Any, request: Any) -> dict[str, Any]:
    """A request joins behind those who are served no later, and ahead of those no earlier."""
    place = z3.Int("place")
    other, is_behind = items.arr[place], z3.And(items.lo + term(rank) <= place, place < items.hi)
    is_earlier = is_served_after(items.memory, request.key, other)
    return claims_of_search(items, rank, request) | {
        "nobody behind is served earlier": z3.ForAll(
            [place], z3.Implies(is_behind, z3.Not(is_earlier)), patterns=[other]
        ),
    }


def claims_of_search(items: SymList, rank: Any, request: Any) -> dict[str, Any]:
    """What is known of a rank while it is searched for."""
    place = z3.Int("place")
    other, is_ahead = items.arr[place], z3.And(items.lo <= place, place < items.lo + term(rank))
    is_later = is_served_after(items.memory, other, request.key)
    return {
        "the rank is a place": all_of(rank >= 0, rank <= items.symbolic_len()),
        "nobody ahead is served later": z3.ForAll(
            [place], z3.Implies(is_ahead, z3.Not(is_later)), patterns=[other]
        ),
    }


def claims_of_choice(memory: Memory, running: SymList, num_seen: Any) -> dict[str, Any]:
    """The victim is the first of the last to be served among those of `running` seen so far."""
    victim, place = memory["victim"], z3.Int("place")
    other, stands = running.arr[place], memory["pos"][victim]
    is_seen = z3.And(running.lo <= place, place < running.lo + num_seen)
    return {
        "the victim runs": memory["where"][victim] == running.code,
        "the victim was seen, or is the first": z3.Or(
            stands == running.lo, stands < running.lo + num_seen
        ),
        "nobody seen is served after the victim": z3.ForAll(
            [place],
            z3.Implies(is_seen, z3.Not(is_served_after(memory, other, victim))),
            patterns=[other],
        ),
        "the victim is the first of those": z3.ForAll(
            [place],
            z3.Implies(z3.And(is_seen, place < stands), is_served_after(memory, victim, other)),
            patterns=[other],
        ),
    }
