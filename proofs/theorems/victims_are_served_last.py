"""Whom a step preempts."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import SCHEDULE
from proofs.symbolic.overheard import Preemption
from proofs.symbolic.values import all_of, any_of, negate
from spec.request import Request


@bounded(*SCHEDULE, mutants=("the_first_running_is_preempted",))
def victims_are_served_last(run: Run) -> Iterator[Claim]:
    """Each victim is the last running request; with priorities the first of those served last."""
    for number, each in enumerate(run.after.scheduler.heard.preemptions):
        yield f"victim {number} is served last", _is_served_last(run, each)


def _is_served_last(run: Run, each: Preemption) -> object:
    if run.after.scheduler.config.policy == "fcfs":
        return each.victim == each.running[-1]
    place = each.running.index(each.victim)
    return all_of(
        *[_is_after(each.victim, other) for other in each.running[:place]],
        *[negate(_is_after(other, each.victim)) for other in each.running[place:]],
    )


def _is_after(a: Request, b: Request) -> object:
    return any_of(
        a.priority > b.priority,
        all_of(a.priority == b.priority, a.arrival_time > b.arrival_time),
    )
