"""The reserve-aware gate: what running prompts still lack is free, so none of them is preempted.

Entry points: `PLANNING` and `BETWEEN`, the questions about a step and about whatever else happens,
and `judge_reserve`, for plain integers. Two ghosts with sums are kept beside the spec: the blocks
that each running prompt lacks, and those that the gate has set aside for each. The loop of the gate
adds up the second; a sum that is smaller has a smaller part, and that is all that relates the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import z3

from proofs.symbolic.heap import sum_of
from proofs.symbolic.prover import PathDoneError
from proofs.symbolic.values import SymInt, choose, symbolic_max, term
from proofs.unbounded.actions import Question
from proofs.unbounded.cuts import CutScheduler
from proofs.unbounded.points import Point
from proofs.unbounded.state import RUNNING, Dialect, blocks_for
from proofs.unbounded.watch import Seen
from spec.block_pool import CacheHit
from spec.interface import EngineCoreOutput, SchedulerOutput
from spec.request import Request

LACKED, RESERVED = "lacked", "reserved"
RESERVING = Dialect("reserve-aware gate", (("reserve_admitted_prefills", True),))
"""Synchronous."""


class ReservingScheduler(CutScheduler):
    """Keeps, for each request, the blocks that it lacks and those that are set aside for it."""

    def add_ghosts(self) -> None:
        """Adds both, and their sums."""
        for name in (LACKED, RESERVED):
            self.memory.add_arrays(name)
            self.memory.add_integers(sum_of(name))
        self.memory.sums |= {LACKED, RESERVED}

    def _grant(self, request: Request, num_new_tokens: int, hit: CacheHit) -> list[int]:
        new_block_ids = super()._grant(request, num_new_tokens, hit)
        self._count_again(request)
        return new_block_ids

    def _preempt(self, victim: Request) -> None:
        # Nobody comes here: the proof fails at once if somebody might.
        self.prover.oblige("nobody is preempted", False)
        raise PathDoneError

    def _deliver(
        self, request: Request, sampled_token_ids: list[int], is_stale: bool
    ) -> EngineCoreOutput:
        output = super()._deliver(request, sampled_token_ids, is_stale)
        self._count_again(request)
        return output

    def _finish(self, request: Request, status: int) -> None:
        super()._finish(request, status)
        self._count_again(request)

    def _count_again(self, request: Request) -> None:
        key = term(request.request_id)
        self.memory.store(LACKED, key, _lacked(self, key))

    def _num_reserved_blocks(self) -> int:
        self.memory.clear(RESERVED)
        return super()._num_reserved_blocks()

    def _reserve(self, request: Request) -> None:
        before = self.num_reserved_blocks
        super()._reserve(request)
        num_blocks = self.num_reserved_blocks - before
        self.memory.store(RESERVED, term(request.request_id), term(num_blocks))

    def _iterate(
        self, place: str, point: Point, writes: Sequence[str]
    ) -> Callable[[], Iterator[Any]]:
        ghosts = [RESERVED, sum_of(RESERVED)] if place == "reserving" else []
        return super()._iterate(place, point, [*writes, *ghosts])

    def _all_cells(self) -> list[str]:
        return [*super()._all_cells(), LACKED, RESERVED]


def _lacked(scheduler: Any, key: Any) -> Any:
    """Blocks that a running request without output lacks for its prompt."""
    request = scheduler.see(key)
    needed = blocks_for(request.num_prompt_tokens, scheduler.config.block_size)
    is_prompt = SymInt(scheduler.memory["where"][key]) == RUNNING
    num_lacked = symbolic_max(needed - request.num_blocks, 0)
    return term(choose(is_prompt, choose(request.num_output_tokens == 0, num_lacked, 0), 0))


def _lacks_are_counted(scheduler: Any) -> dict[str, Any]:
    memory, key = scheduler.memory, z3.Int("request")
    lacked, where = memory[LACKED][key], memory["where"][key]
    is_counted = lacked == _lacked(scheduler, key)
    return {"what is lacked is counted": z3.ForAll([key], is_counted, patterns=[lacked, where])}


def what_is_lacked_is_free(scheduler: Any) -> dict[str, Any]:
    """What running prompts lack is free."""
    memory = scheduler.memory
    return _lacks_are_counted(scheduler) | {
        "what is lacked is free": memory[sum_of(LACKED)] <= memory["num_free_blocks"]
    }


# ---- a step is planned ---------------------------------------------------------------------------


def only_prompts_run(scheduler: Any) -> dict[str, Any]:
    """Nobody who runs has an output token, known or being sampled."""
    memory, key = scheduler.memory, z3.Int("request")
    where = memory["where"][key]
    has_output = z3.Or(
        memory["num_output_tokens"][key] != 0, memory["num_output_placeholders"][key] != 0
    )
    return {
        "only prompts run": z3.ForAll(
            [key], z3.Implies(where == RUNNING, z3.Not(has_output)), patterns=[where]
        )
    }


def _while_prompts_run(scheduler: Any) -> dict[str, Any]:
    return what_is_lacked_is_free(scheduler) | only_prompts_run(scheduler)


def _while_reserving(scheduler: Any) -> dict[str, Any]:
    """What is set aside so far is added up; for whom it is their turn yet, it is nothing."""
    memory, key = scheduler.memory, z3.Int("request")
    where, reserved = memory["where"][key], memory[RESERVED][key]
    index = memory["pos"][key] - memory["running.lo"]
    is_enough = z3.If(index < memory["cursor"], reserved >= memory[LACKED][key], reserved == 0)
    return {
        "what is set aside is added up": memory["num_reserved_blocks"] == memory[sum_of(RESERVED)],
        "nothing negative is set aside": z3.ForAll([key], reserved >= 0, patterns=[reserved]),
        "what a prompt lacks is set aside in turn": z3.ForAll(
            [key], z3.Implies(where == RUNNING, is_enough), patterns=[where]
        ),
    }


def _a_smaller_sum_has_a_smaller_part(scheduler: Any) -> dict[str, Any]:
    """If less is set aside than is lacked, that is so of somebody.

    That `where` is not negative says nothing new; it makes the solver look where that one is.
    """
    memory, key = scheduler.memory, scheduler.prover.fresh("shortchanged", z3.IntSort())
    is_smaller = z3.And(memory[RESERVED][key] < memory[LACKED][key], memory["where"][key] >= 0)
    return {
        "a smaller sum has a smaller part": z3.Implies(
            memory[sum_of(RESERVED)] < memory[sum_of(LACKED)], is_smaller
        )
    }


PLANNING = Question(
    shows_invariant=False,
    front=ReservingScheduler,
    assume=_while_prompts_run,
    true_of_sums=_a_smaller_sum_has_a_smaller_part,
    extras={
        **dict.fromkeys(("pass 1", "making room"), _while_prompts_run),
        **dict.fromkeys(("pass 2", "putting back", "end"), what_is_lacked_is_free),
        "reserving": _while_reserving,
    },
)
"""Whether a step in which only prompts run preempts nobody, and leaves the reserve alone."""

BETWEEN = Question(
    shows_invariant=False,
    front=ReservingScheduler,
    assume=what_is_lacked_is_free,
    extras=dict.fromkeys(("settling", "end"), what_is_lacked_is_free),
)
"""Whether nothing that happens between steps touches the reserve."""


def judge_reserve(before: Seen, after: Seen, output: SchedulerOutput) -> Iterator[str]:
    """The same of a step on plain integers."""
    if not before.protects_prompts or before.num_spare_blocks < 0:
        return
    if output.preempted_req_ids:
        yield "end: nobody is preempted"
    if after.num_spare_blocks < 0:
        yield "end: what is lacked is free"
