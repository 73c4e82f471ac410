"""Head-of-line admission: what a step does to two requests of which one waits behind the other.

Entry points: `ORDER`, the question, and `judge_order`, for plain integers. Two arbitrary requests
stand for all pairs, so no claim is about all pairs. `start` is the memory before the step; what is
needed of it is claimed again at each place, since a cut forgets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from proofs.unbounded.actions import Question
from proofs.unbounded.state import RUNNING, SKIPPED, WAITING
from proofs.unbounded.watch import Seen
from spec.interface import SchedulerOutput

AHEAD, BEHIND = z3.Ints("ahead behind")


def _stood(scheduler: Any) -> dict[str, Any]:
    """Both waited at the start, one behind the other."""
    where, pos = scheduler.start["where"], scheduler.start["pos"]
    return {
        "both waited": z3.And(where[AHEAD] == WAITING, where[BEHIND] == WAITING),
        "one behind the other": pos[AHEAD] < pos[BEHIND],
    }


def _was_ready(scheduler: Any, key: Any) -> Any:
    return scheduler.start["num_stale_output_tokens"][key] == 0


def _are_untouched(scheduler: Any) -> dict[str, Any]:
    """Neither has moved."""
    memory, said = scheduler.memory, _stood(scheduler)
    for name, key in (("ahead", AHEAD), ("behind", BEHIND)):
        said[f"the one {name} has not moved"] = z3.And(
            memory["where"][key] == WAITING, *_is_where_it_stood(scheduler, key)
        )
    return said


def _is_where_it_stood(scheduler: Any, key: Any) -> list[Any]:
    return [
        scheduler.memory[name][key] == scheduler.start[name][key]
        for name in ("pos", "num_stale_output_tokens")
    ]


def _while_admitting(scheduler: Any) -> dict[str, Any]:
    """Each still waits where it stood, or was admitted because it was ready, or else set aside."""
    memory, said = scheduler.memory, _stood(scheduler)
    where, pos = memory["where"], memory["pos"]
    for name, key in (("ahead", AHEAD), ("behind", BEHIND)):
        waits = z3.And(where[key] == WAITING, *_is_where_it_stood(scheduler, key))
        said[f"the one {name} waits, runs or is set aside"] = z3.Or(
            waits, _is_running(scheduler, key), _is_set_aside(scheduler, key)
        )
    said["the one behind is not looked at first"] = z3.Implies(
        where[AHEAD] == WAITING, where[BEHIND] == WAITING
    )
    both_aside = z3.And(where[AHEAD] == SKIPPED, where[BEHIND] == SKIPPED)
    said["those set aside keep their order"] = z3.Implies(both_aside, pos[AHEAD] < pos[BEHIND])
    return said


def _is_running(scheduler: Any, key: Any) -> Any:
    """Whether a request was admitted: it was ready, and nobody was preempted."""
    return z3.And(
        scheduler.memory["where"][key] == RUNNING,
        _was_ready(scheduler, key),
        scheduler.memory["num_preempted"] == 0,
    )


def _is_set_aside(scheduler: Any, key: Any) -> Any:
    return z3.And(scheduler.memory["where"][key] == SKIPPED, z3.Not(_was_ready(scheduler, key)))


def _while_putting_back(scheduler: Any) -> dict[str, Any]:
    """Nobody was overtaken, and whoever is put back comes before whoever stood behind it."""
    memory = scheduler.memory
    where, pos, said = memory["where"], memory["pos"], _stood(scheduler)
    for name, key in (("ahead", AHEAD), ("behind", BEHIND)):
        said[f"the one {name} waits, runs or is set aside"] = z3.Or(
            where[key] == WAITING, _is_running(scheduler, key), _is_set_aside(scheduler, key)
        )
    said["the one ahead was not overtaken, unless it was not ready"] = z3.Implies(
        z3.And(where[BEHIND] == RUNNING, _was_ready(scheduler, AHEAD)), where[AHEAD] == RUNNING
    )
    said["the one behind is put back first"] = z3.Implies(
        where[AHEAD] == WAITING, where[BEHIND] != SKIPPED
    )
    said["both keep their order"] = z3.Implies(
        z3.And(where[AHEAD] == where[BEHIND], where[AHEAD] != RUNNING), pos[AHEAD] < pos[BEHIND]
    )
    return said


def _in_the_end(scheduler: Any) -> dict[str, Any]:
    """What the theorem says."""
    memory = scheduler.memory
    where, pos = memory["where"], memory["pos"]
    runs_behind = where[BEHIND] == RUNNING
    return {
        "a ready request is not overtaken": z3.Implies(
            z3.And(runs_behind, _was_ready(scheduler, AHEAD)), where[AHEAD] == RUNNING
        ),
        "who is not ready is not admitted": z3.Implies(runs_behind, _was_ready(scheduler, BEHIND)),
        "nobody is admitted beside a preemption": z3.Implies(
            runs_behind, memory["num_preempted"] == 0
        ),
        "who still waits keeps its place": z3.Implies(
            z3.And(where[AHEAD] == WAITING, where[BEHIND] == WAITING), pos[AHEAD] < pos[BEHIND]
        ),
        "who does not run waits": z3.Or(where[BEHIND] == RUNNING, where[BEHIND] == WAITING),
    }


ORDER = Question(
    shows_invariant=False,
    assume=_stood,
    extras={
        "pass 1": _are_untouched,
        "making room": _are_untouched,
        "pass 2": _while_admitting,
        "putting back": _while_putting_back,
        "planned": _in_the_end,
    },
)
"""What becomes of the two."""


def judge_order(before: Seen, after: Seen, output: SchedulerOutput) -> Iterator[str]:
    """The same of a step on plain integers."""
    admitted = [name for name in before.waiting if name in after.running]
    left = [name for name in before.waiting if name in after.waiting]
    if admitted and output.preempted_req_ids:
        yield "planned: nobody is admitted beside a preemption"
    if before.not_ready.intersection(admitted):
        yield "planned: who is not ready is not admitted"
    ready = [name for name in before.waiting if name not in before.not_ready]
    if admitted != ready[: len(admitted)]:
        yield "planned: a ready request is not overtaken"
    if left != [name for name in after.waiting if name in left]:
        yield "planned: who still waits keeps its place"
