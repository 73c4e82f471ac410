"""The line: `running`, then `waiting`. Nobody passes whoever stands before it.

Entry points: `keeps_places` and `keeps_order`, the questions about a step, and `BETWEEN`, about
whatever else happens; `READY`, why whoever waits is ready while one step is in flight; and
`judge_line`, for plain integers. `start` is the memory before the action.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from proofs.symbolic.heap import NOWHERE
from proofs.unbounded.actions import Question
from proofs.unbounded.cuts import CutScheduler
from proofs.unbounded.order import AHEAD, BEHIND
from proofs.unbounded.progress import Assumption, facts_of
from proofs.unbounded.state import FLIGHT_FIELDS, RUNNING, SKIPPED, WAITING
from proofs.unbounded.watch import Seen
from spec.interface import SchedulerOutput

ANYBODY = z3.Int("anybody")
PLANNING_PLACES = ("pass 1", "making room", "pass 2", "putting back")
"""The loops of a step before it is counted as computed."""


def _one_step_is_in_flight(scheduler: Any) -> Any:
    start, key = scheduler.start, z3.Int("request")
    oldest, *others = [start[name][key] for name in FLIGHT_FIELDS]
    waits = start["where"][key] == WAITING
    return z3.ForAll(
        [key],
        z3.And(*[other == 0 for other in others], z3.Implies(waits, oldest == 0)),
        patterns=[start["where"][key]],
    )


def _is_ready_if_it_waits(scheduler: Any) -> Any:
    start = scheduler.start
    is_ready = start["num_stale_output_tokens"][AHEAD] == 0
    return z3.Implies(start["where"][AHEAD] == WAITING, is_ready)


ONE_IN_FLIGHT = Assumption(
    "one_in_flight",
    "At most one step is in flight when a step is planned (who waits has no part in it).",
    _one_step_is_in_flight,
)
IS_READY_IF_IT_WAITS = Assumption(
    "is_ready_if_it_waits",
    "Who is not to be passed runs, or has no voided step in flight.",
    _is_ready_if_it_waits,
)


def is_alive(cells: Any, key: Any) -> Any:
    """Whether a request is in a list."""
    return cells["where"][key] != NOWHERE


def place(cells: Any, key: Any) -> Any:
    """How many stand before a request in the line, while nobody is set aside."""
    pos, lo = cells["pos"][key], cells["running.lo"]
    num_before_waiting = cells["running.hi"] - lo + pos - cells["waiting.lo"]
    return z3.If(cells["where"][key] == RUNNING, pos - lo, num_before_waiting)


def _is_ahead(cells: Any, key: Any, other: Any) -> Any:
    """Whether one stands before another; whoever is set aside stands between the two lists."""
    where, pos = cells["where"], cells["pos"]
    return z3.Or(
        z3.And(where[key] == where[other], pos[key] < pos[other]),
        z3.And(where[key] == RUNNING, where[other] != RUNNING),
        z3.And(where[key] == SKIPPED, where[other] == WAITING),
    )


def _stand_in_line(scheduler: Any) -> dict[str, Any]:
    """One is in the line; the other is behind it, or is yet to come."""
    start = scheduler.start
    is_behind = z3.Or(z3.Not(is_alive(start, BEHIND)), _is_ahead(start, AHEAD, BEHIND))
    return {
        "one is in the line": is_alive(start, AHEAD),
        "the other is behind, or not there": z3.And(is_behind, AHEAD != BEHIND),
    }


def _nobody_passes(scheduler: Any) -> dict[str, Any]:
    memory = scheduler.memory
    return {
        "who is ahead stays ahead": z3.Or(
            z3.Not(is_alive(memory, AHEAD)),
            z3.Not(is_alive(memory, BEHIND)),
            _is_ahead(memory, AHEAD, BEHIND),
        )
    }


# ---- a step is planned ---------------------------------------------------------------------------


def keeps_places(*assumptions: Assumption) -> Question:
    """Asks whether a step leaves everybody's place in the line alone.

    Who is preempted was the last to run and is the first to wait; who is admitted, the reverse.
    """

    def assume(scheduler: Any) -> dict[str, Any]:
        is_there = is_alive(scheduler.start, ANYBODY)
        return {"anybody is in the line": is_there} | facts_of(scheduler, assumptions)

    return Question(
        shows_invariant=False,
        assume=assume,
        extras={**dict.fromkeys(PLANNING_PLACES, _nobody_moves), "end": _keeps_its_place},
    )


def _keeps_its_place(scheduler: Any) -> dict[str, Any]:
    memory = scheduler.memory
    return {
        "anybody keeps its place": z3.And(
            is_alive(memory, ANYBODY), place(memory, ANYBODY) == place(scheduler.start, ANYBODY)
        )
    }


def _nobody_moves(scheduler: Any) -> dict[str, Any]:
    memory, key = scheduler.memory, z3.Int("request")
    where, is_ready = memory["where"][key], memory["num_stale_output_tokens"][key] == 0
    may_be_admitted = z3.And(where == WAITING, memory["num_preempted"] == 0)
    return _keeps_its_place(scheduler) | {
        "nobody is set aside": memory["skipped.lo"] == memory["skipped.hi"],
        "who may be admitted is ready": z3.ForAll(
            [key], z3.Implies(may_be_admitted, is_ready), patterns=[where]
        ),
    }


def keeps_order(*assumptions: Assumption) -> Question:
    """Asks whether who is ahead in the line is still ahead after a step."""
    return Question(
        shows_invariant=False,
        assume=lambda scheduler: _stand_in_line(scheduler) | facts_of(scheduler, assumptions),
        extras={**dict.fromkeys(PLANNING_PLACES, _while_planning), "end": _is_planned},
    )


def _while_planning(scheduler: Any) -> dict[str, Any]:
    """Whoever is ahead is not set aside, since it is ready, or else was just preempted."""
    memory = scheduler.memory
    where = memory["where"]
    is_ready = memory["num_stale_output_tokens"][AHEAD] == 0
    return _nobody_passes(scheduler) | {
        "who is ahead is in the line": z3.Or(where[AHEAD] == RUNNING, where[AHEAD] == WAITING),
        "who is ahead is ready, or nobody is admitted": z3.Implies(
            where[AHEAD] == WAITING, z3.Or(is_ready, memory["num_preempted"] > 0)
        ),
    }


def _is_planned(scheduler: Any) -> dict[str, Any]:
    memory = scheduler.memory
    newest = memory[FLIGHT_FIELDS[scheduler.num_steps - 1]]
    return _nobody_passes(scheduler) | {
        "who is ahead is still there": is_alive(memory, AHEAD),
        "who waits has no part in the newest step": z3.Implies(
            memory["where"][AHEAD] == WAITING, newest[AHEAD] == 0
        ),
    }


# ---- whatever else happens -----------------------------------------------------------------------


def _nobody_passes_or_comes_to_wait(scheduler: Any) -> dict[str, Any]:
    waits, waited = (
        cells["where"][AHEAD] == WAITING for cells in (scheduler.memory, scheduler.start)
    )
    return _nobody_passes(scheduler) | {"who runs does not come to wait": z3.Implies(waits, waited)}


BETWEEN = Question(
    shows_invariant=False,
    assume=_stand_in_line,
    extras=dict.fromkeys(("settling", "end"), _nobody_passes_or_comes_to_wait),
)
"""Whether who is ahead in the line stays ahead between two steps; who arrives joins its end."""


def nothing(scheduler: CutScheduler) -> None:
    """Nothing happens, so what is claimed follows from the invariant."""


READY = Question(
    shows_invariant=False,
    assume=lambda scheduler: facts_of(scheduler, (ONE_IN_FLIGHT,)),
    extras={"end": lambda scheduler: facts_of(scheduler, (IS_READY_IF_IT_WAITS,))},
)
"""Whether all who wait are ready while one step is in flight."""


def judge_line(before: Seen, after: Seen, output: SchedulerOutput) -> Iterator[str]:
    """The same of a step on plain integers."""
    places = {name: number for number, name in enumerate((*after.running, *after.waiting))}
    line = (*before.running, *before.waiting)
    for number, name in enumerate(line):
        is_passed = any(places[other] < places[name] for other in line[number + 1 :])
        if is_passed and name not in before.not_ready:
            yield "end: who is ahead stays ahead"
