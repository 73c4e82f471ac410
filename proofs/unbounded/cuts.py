"""The loops of `schedule`, cut.

Entry point: `CutScheduler`, a class to be put in front of the spec's. Each rule is the real one,
run once from any state of its point; what else is claimed there, a question adds in `extras`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from proofs.symbolic.heap import sum_of
from proofs.symbolic.loops import Loop, cut_elements, cut_rule
from proofs.symbolic.prover import FrameError
from proofs.symbolic.values import symbolic_len, term
from proofs.unbounded.points import (
    Point,
    advancing,
    general_facts,
    in_pass_1,
    in_pass_2,
    making_room,
    num_left,
    quantified,
    reserving,
)
from proofs.unbounded.ranks import claims_of_choice
from proofs.unbounded.state import (
    CHANGING_FIELDS,
    FLIGHT_FIELDS,
    NUMBERS,
    STEP_FIELDS,
    SymbolicScheduler,
)
from spec.interface import SchedulerOutput
from spec.request import Request

ADVANCED_FIELDS = ("num_computed_tokens", "num_in_flight_tokens", "num_output_placeholders")
"""What `_advance` writes."""
Extra = Callable[[Any], dict[str, Any]]
"""What a theorem claims at a point beside the invariant, given the scheduler."""


def no_extra(scheduler: Any) -> dict[str, Any]:
    """Claims nothing more."""
    return {}


class CutScheduler(SymbolicScheduler):
    """Cuts each loop of a step at the point of its rule."""

    extras: dict[str, Extra]
    """By point."""
    known_attributes: frozenset[str]
    """What the scheduler and its pool have before the action, all of it known to these proofs."""
    start: dict[str, Any]
    """What the cells held before the action."""
    true_of_sums: Extra
    """What the sums say of requests that a question is about."""
    shows_invariant: bool
    """Whether the invariant itself is obliged; else it is taken as shown elsewhere."""

    def add_ghosts(self) -> None:
        """Adds what a question keeps beside the spec to memory: nothing."""

    def _schedule_next_running(self) -> bool:
        loop = self.loop("pass 1", in_pass_1, self._all_cells())
        return cut_rule(loop, lambda: num_left(self), super()._schedule_next_running)

    def _compute_num_new_tokens(self, request: Request) -> int:
        """Names the count, so that it is the same term on every path to the loop that keeps it."""
        num_new_tokens = super()._compute_num_new_tokens(request)
        named: int = self.prover.name_for_all_paths("num_new_tokens", num_new_tokens)
        return named

    def _preempt_next_for(self, request: Request, num_new_tokens: int) -> bool:
        most = num_left(self)
        point = making_room(request, num_new_tokens, most)
        about = (term(request.request_id), term(num_new_tokens), term(most))
        loop = self.loop("making room", point, self._all_cells(), *about)
        return cut_rule(
            loop,
            lambda: symbolic_len(self.running),
            lambda: super(CutScheduler, self)._preempt_next_for(request, num_new_tokens),
        )

    def _choose_victim(self) -> Request:
        running = self.lists["running"]
        kept, running.loop = running.loop, self._choose
        victim = super()._choose_victim()
        running.loop = kept
        return victim

    def _choose(self) -> Iterator[Any]:
        running, memory = self.lists["running"], self.memory
        loop = Loop(
            "choosing",
            memory,
            lambda: claims_of_choice(memory, running, memory["cursor"]),
            dict,
            ["cursor", "victim"],
            forgets=False,
        )
        return cut_elements(loop, "cursor", running)

    def _admit_next_waiting(self) -> bool:
        loop = self.loop("pass 2", in_pass_2, self._all_cells())
        return cut_rule(loop, lambda: symbolic_len(self.waiting.items), super()._admit_next_waiting)

    def _put_back_next_skipped(self) -> bool:
        loop = self.loop("putting back", in_pass_2, self._all_cells())
        return cut_rule(
            loop, lambda: symbolic_len(self.lists["skipped"]), super()._put_back_next_skipped
        )

    def _publish_step(self) -> None:
        self.lists["running"].loop = self._iterate("publishing", in_pass_2, [])
        super()._publish_step()
        self.lists["running"].loop = self._iterate("advancing", advancing, ADVANCED_FIELDS)

    def _num_reserved_blocks(self) -> int:
        running = self.lists["running"]
        kept, running.loop = (
            running.loop,
            self._iterate("reserving", reserving, ["num_reserved_blocks"]),
        )
        num_blocks = super()._num_reserved_blocks()
        running.loop = kept
        return num_blocks

    def _end_step(self) -> SchedulerOutput:
        """Puts the step in flight, since the spec starts a new output here."""
        self.prover.place = "the step is planned"
        self.prover.oblige_all(lambda: self.extras.get("planned", no_extra)(self))
        self.memory[FLIGHT_FIELDS[self.num_steps]] = self.memory["scheduled"]
        self.num_steps += 1
        self.check_attributes()
        return super()._end_step()

    def _iterate(
        self, place: str, point: Point, writes: Sequence[str]
    ) -> Callable[[], Iterator[Any]]:
        loop = self.loop(place, point, ["cursor", *writes], forgets=False)
        return lambda: cut_elements(loop, "cursor", self.running)

    def loop(
        self, place: str, point: Point, writes: list[str], *about: Any, forgets: bool = True
    ) -> Loop:
        """Describes a loop at whose place a point holds, and what a theorem adds to it."""
        extra = self.extras.get(place, no_extra)

        def obliged() -> dict[str, Any]:
            said = quantified(self, point, *about) if self.shows_invariant else {}
            return said | extra(self)

        def assumed() -> dict[str, Any]:
            said = {} if self.shows_invariant else quantified(self, point, *about)
            return said | general_facts(self) | self.true_of_sums(self)

        self.check_attributes()
        return Loop(place, self.memory, obliged, assumed, writes, about, forgets)

    def check_attributes(self) -> None:
        """Raises `FrameError` if the spec keeps something outside of memory."""
        unknown = sorted({*vars(self), *vars(self.block_pool)} - self.known_attributes)
        if unknown:
            raise FrameError(
                f"a step sets {', '.join(unknown)}, which proofs.unbounded.state does not know; "
                "make it a Cell there"
            )

    def _all_cells(self) -> list[str]:
        """Everything that a step may write: the fixed fields and the steps in flight are kept."""
        return [
            *NUMBERS,
            *CHANGING_FIELDS,
            *STEP_FIELDS,
            *map(sum_of, sorted(self.memory.sums)),
            "where",
            "pos",
            *[cell for each in self.lists.values() for cell in each.cells],
        ]
