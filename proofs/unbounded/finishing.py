"""Every request finishes, as far as it is proved: with each step a measure of it falls.

The measure of a request is (how many stand before it in the line, what the first in the line may
yet compute, what the first has in flight), the earlier part before the later. That a step leaves
the first part alone is shown in `proofs.unbounded.line`. Entry points: `stays_first`, the questions
about a step and the rest of the measure, and `GAINS`, about when none of it falls; `waits_closer`,
about whatever else happens; `judge_first`, for plain integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import z3

from proofs.symbolic.values import term
from proofs.unbounded.actions import Question
from proofs.unbounded.cuts import Extra
from proofs.unbounded.line import ANYBODY, PLANNING_PLACES, is_alive, place
from proofs.unbounded.progress import (
    FITS,
    NOT_AT_THE_END,
    OLDEST,
    facts_of,
    somebody_else_counts,
)
from proofs.unbounded.state import FLIGHT_FIELDS, RUNNING
from proofs.unbounded.watch import Seen
from spec.interface import SchedulerOutput

COMPUTED, IN_FLIGHT = "num_computed_tokens", "num_in_flight_tokens"


def _beside(question: Question, assume: Extra, extras: dict[str, Extra]) -> Question:
    """Asks more about the same action."""
    more = {
        name: _both(question.extras.get(name), extras.get(name))
        for name in {**question.extras, **extras}
    }
    return attrs.evolve(question, assume=_both(question.assume, assume), extras=more)


def _both(*extras: Extra | None) -> Extra:
    given = [each for each in extras if each is not None]
    return lambda scheduler: {
        name: fact for each in given for name, fact in each(scheduler).items()
    }


# ---- the parts of the measure --------------------------------------------------------------------


def _gained(scheduler: Any, name: str) -> Any:
    """By how much a number of the first has grown."""
    return scheduler.memory[name][OLDEST] - scheduler.start[name][OLDEST]


def _left(scheduler: Any) -> Any:
    """What the first may still compute."""
    computed = scheduler.memory[COMPUTED][OLDEST]
    return term(scheduler.config.max_model_len) - 1 - computed


def _is_first(cells: Any) -> Any:
    return z3.And(is_alive(cells, OLDEST), place(cells, OLDEST) == 0)


def _stands_in_line(scheduler: Any) -> dict[str, Any]:
    return {
        "somebody is the first": _is_first(scheduler.start),
        "anybody is in the line": is_alive(scheduler.start, ANYBODY),
    }


# ---- a step is planned ---------------------------------------------------------------------------


def _runs_and_fits(scheduler: Any) -> dict[str, Any]:
    return {"it runs": scheduler.start["where"][OLDEST] == RUNNING} | facts_of(scheduler, (FITS,))


def _still_runs(scheduler: Any) -> dict[str, Any]:
    return {"it runs": scheduler.memory["where"][OLDEST] == RUNNING} | facts_of(scheduler, (FITS,))


RESTS = Question(
    shows_invariant=False,
    assume=_runs_and_fits,
    true_of_sums=somebody_else_counts,
    extras=dict.fromkeys(PLANNING_PLACES, _still_runs),
)
"""A step in which the first runs, and need not gain a token."""


def stays_first(question: Question, *, gains: bool = True) -> Question:
    """Asks whether the first stays it and loses nothing; `question` is whether it gains a token."""

    def end(scheduler: Any) -> dict[str, Any]:
        gained = _gained(scheduler, COMPUTED)
        return {
            "the first stays the first": _is_first(scheduler.memory),
            "what it gains is in flight": gained == _gained(scheduler, IN_FLIGHT),
            "it gains a token" if gains else "it loses nothing": gained >= (1 if gains else 0),
            "the measure is not negative": z3.And(
                _left(scheduler) >= 0, scheduler.memory[IN_FLIGHT][OLDEST] >= 0
            ),
        }

    extras: dict[str, Extra] = {
        **dict.fromkeys(PLANNING_PLACES, _is_uncounted),
        "advancing": _is_counted_in_turn,
        "end": end,
    }
    return _beside(question, _stands_in_line, extras)


def _is_uncounted(scheduler: Any) -> dict[str, Any]:
    return {
        "the first stays the first": _is_first(scheduler.memory),
        "nothing is counted yet": _has_gained(scheduler, 0),
    }


def _is_counted_in_turn(scheduler: Any) -> dict[str, Any]:
    memory = scheduler.memory
    was_its_turn = place(memory, OLDEST) < memory["cursor"]
    num_counted = z3.If(was_its_turn, memory["scheduled"][OLDEST], 0)
    return {"what is planned is counted in turn": _has_gained(scheduler, num_counted)}


def _has_gained(scheduler: Any, num_tokens: Any) -> Any:
    return z3.And(*[_gained(scheduler, name) == num_tokens for name in (COMPUTED, IN_FLIGHT)])


def _is_settled(scheduler: Any) -> dict[str, Any]:
    is_settled = scheduler.start[IN_FLIGHT][OLDEST] == 0
    return {"nothing of it is in flight": is_settled} | _runs_and_fits(scheduler)


GAINS = Question(
    shows_invariant=False,
    assume=_is_settled,
    extras={"end": lambda scheduler: facts_of(scheduler, (NOT_AT_THE_END,))},
)
"""Whether the first, if it runs, may only rest while something of it is in flight."""


# ---- whatever else happens -----------------------------------------------------------------------


def _settles(scheduler: Any) -> dict[str, Any]:
    part = FLIGHT_FIELDS[0]
    num_settled = scheduler.start[part][OLDEST] - scheduler.memory[part][OLDEST]
    return _comes_no_farther(scheduler, num_settled)


def _comes_no_farther(scheduler: Any, num_settled: Any) -> dict[str, Any]:
    """It ends, or moves up, or the first only gives back what has returned of it."""
    memory, now = scheduler.memory, place(scheduler.memory, ANYBODY)
    before = place(scheduler.start, ANYBODY)
    is_left_alone = z3.And(
        _is_first(memory),
        _gained(scheduler, COMPUTED) == 0,
        _gained(scheduler, IN_FLIGHT) == -num_settled,
    )
    return {
        "anybody ends, moves up, or waits for the same": z3.Or(
            z3.Not(is_alive(memory, ANYBODY)),
            z3.And(now >= 0, now < before),
            z3.And(now == before, is_left_alone),
        )
    }


def waits_closer(*, returns: bool) -> Question:
    """Asks whether what happens between steps takes nobody farther from its end."""

    def end(scheduler: Any) -> dict[str, Any]:
        num_settled = scheduler.start[FLIGHT_FIELDS[0]][OLDEST] if returns else 0
        return _comes_no_farther(scheduler, num_settled)

    return Question(
        shows_invariant=False,
        assume=_stands_in_line,
        extras={"settling": _settles, "end": end},
    )


def judge_first(before: Seen, after: Seen, output: SchedulerOutput) -> Iterator[str]:
    """The same of a step on plain integers; the pool must hold the longest request."""
    if not before.running and before.not_ready:
        return
    line, line_after = (*before.running, *before.waiting), (*after.running, *after.waiting)
    if not line:
        return
    first = line[0]
    if line_after[0] != first:
        yield "end: the first stays the first"
    gained = after.num_computed_tokens[first] - before.num_computed_tokens[first]
    if gained < (0 if first in before.at_the_end else 1):
        yield "end: it gains a token"
