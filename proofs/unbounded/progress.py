"""The oldest request gains a token in every step.

Entry points: `running_head` and `waiting_head`, the questions about the head of `running`, or, if
nobody runs, of `waiting`, and `assumptions_of`, without any of which the claim is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import z3
from attrs import frozen

from proofs.symbolic.heap import sum_of
from proofs.symbolic.values import term
from proofs.unbounded.actions import Question
from proofs.unbounded.state import RUNNING, WAITING, Dialect, blocks_for
from proofs.unbounded.watch import Seen
from spec.interface import SchedulerOutput

OLDEST = z3.Int("oldest")
KEPT_FIELDS = ("num_output_tokens", "num_computed_tokens", "num_output_placeholders")


@frozen
class Assumption:
    """Something that the oldest request needs to gain a token."""

    name: str
    sentence: str
    fact: Callable[[Any], Any]
    """Given the scheduler at the start."""


def _fits(scheduler: Any) -> Any:
    longest = blocks_for(scheduler.config.max_model_len, scheduler.config.block_size)
    return longest.term <= term(scheduler.config.num_blocks)


def _is_not_at_the_end(scheduler: Any) -> Any:
    start = scheduler.start
    computed = start["num_computed_tokens"][OLDEST]
    placeholders = start["num_output_placeholders"][OLDEST]
    prompt, most = start["num_prompt_tokens"][OLDEST], start["max_tokens"][OLDEST]
    samples_last = z3.And(placeholders > 0, computed + 2 - placeholders >= prompt + most)
    return z3.And(computed < term(scheduler.config.max_model_len) - 1, z3.Not(samples_last))


def _is_ready(scheduler: Any) -> Any:
    return scheduler.start["num_stale_output_tokens"][OLDEST] == 0


FITS = Assumption("fits", "The pool holds a request of max_model_len tokens.", _fits)
NOT_AT_THE_END = Assumption(
    "not_at_the_end",
    "No step in flight samples its last token (async scheduling).",
    _is_not_at_the_end,
)
IS_READY = Assumption("is_ready", "No voided step of it is in flight.", _is_ready)


def assumptions_of(dialect: Dialect, *, is_running: bool) -> tuple[Assumption, ...]:
    """What the oldest request needs, by where it stands.

    A synchronous step is planned with nothing in flight; that is all that the others are about.
    """
    if not dialect.is_async:
        return (FITS,)
    return (FITS, NOT_AT_THE_END) if is_running else (FITS, IS_READY)


# ---- the head of running -------------------------------------------------------------------------


def running_head(*assumptions: Assumption) -> Question:
    """Asks whether the first of `running` gains a token."""

    def assume(scheduler: Any) -> dict[str, Any]:
        start = scheduler.start
        is_first = z3.And(
            start["where"][OLDEST] == RUNNING, start["pos"][OLDEST] == start["running.lo"]
        )
        return {"it is the first": is_first} | facts_of(scheduler, assumptions)

    def in_pass_1(scheduler: Any) -> dict[str, Any]:
        return facts_of(scheduler, assumptions) | _keeps_its_place(scheduler)

    return Question(
        shows_invariant=False,
        assume=assume,
        true_of_sums=somebody_else_counts,
        extras={
            "pass 1": in_pass_1,
            "making room": in_pass_1,
            "pass 2": _has_gained,
            "putting back": _has_gained,
            "planned": _has_gained,
        },
    )


def facts_of(scheduler: Any, assumptions: tuple[Assumption, ...]) -> dict[str, Any]:
    """What assumptions say of the start, by name."""
    return {each.name: each.fact(scheduler) for each in assumptions}


def _keeps_its_place(scheduler: Any) -> dict[str, Any]:
    """It is the first of running, untouched until it is looked at, and scheduled from then on."""
    memory = scheduler.memory
    req_index, scheduled = memory["req_index"], memory["scheduled"][OLDEST]
    is_untouched = z3.And(
        *[memory[name][OLDEST] == scheduler.start[name][OLDEST] for name in KEPT_FIELDS]
    )
    return {
        "it keeps its place": z3.And(
            memory["where"][OLDEST] == RUNNING, memory["pos"][OLDEST] == memory["running.lo"]
        ),
        "it is untouched": is_untouched,
        "it is scheduled once it is looked at": z3.Implies(req_index > 0, scheduled >= 1),
        "nothing is spent before": z3.Implies(req_index == 0, _budgets_are_full(scheduler)),
    }


def _budgets_are_full(scheduler: Any) -> Any:
    memory, config = scheduler.memory, scheduler.config
    return z3.And(
        memory["token_budget"] == term(config.max_num_scheduled_tokens),
        memory["input_budget"] == term(config.max_num_batched_tokens),
    )


def _has_gained(scheduler: Any) -> dict[str, Any]:
    memory = scheduler.memory
    return {
        "it gains a token": z3.And(
            memory["where"][OLDEST] == RUNNING, memory["scheduled"][OLDEST] >= 1
        )
    }


def somebody_else_counts(scheduler: Any) -> dict[str, Any]:
    """If all blocks held are more than the oldest holds, somebody else holds one.

    That `where` is not negative says nothing new; it makes the solver look where that one is.
    """
    memory, other = scheduler.memory, scheduler.prover.fresh("other", z3.IntSort())
    held = memory["num_blocks"]
    is_held_elsewhere = z3.And(other != OLDEST, held[other] >= 1, memory["where"][other] >= 0)
    return {
        "somebody else holds the rest": z3.Implies(
            memory[sum_of("num_blocks")] != held[OLDEST], is_held_elsewhere
        )
    }


# ---- the head of waiting, if nobody runs ---------------------------------------------------------


def waiting_head(*assumptions: Assumption) -> Question:
    """Asks whether the first of `waiting` gains a token if nobody runs."""

    def assume(scheduler: Any) -> dict[str, Any]:
        return facts_of(scheduler, assumptions) | _is_alone(scheduler, scheduler.start)

    def before_admission(scheduler: Any) -> dict[str, Any]:
        return (
            facts_of(scheduler, assumptions)
            | _is_alone(scheduler, scheduler.memory)
            | _nothing_happened(scheduler)
        )

    def while_admitting(scheduler: Any) -> dict[str, Any]:
        has_gained = _has_gained(scheduler)["it gains a token"]
        return {name: z3.Or(has_gained, fact) for name, fact in before_admission(scheduler).items()}

    return Question(
        shows_invariant=False,
        assume=assume,
        true_of_sums=somebody_else_counts,
        extras={
            "pass 1": before_admission,
            "making room": before_admission,
            "pass 2": while_admitting,
            "putting back": _has_gained,
            "planned": _has_gained,
        },
    )


def _is_alone(scheduler: Any, cells: Any) -> dict[str, Any]:
    return {
        "nobody runs": cells["running.lo"] == cells["running.hi"],
        "it is the first to wait": z3.And(
            cells["where"][OLDEST] == WAITING, cells["pos"][OLDEST] == cells["waiting.lo"]
        ),
    }


def _nothing_happened(scheduler: Any) -> dict[str, Any]:
    memory = scheduler.memory
    stale = "num_stale_output_tokens"
    return {
        "budgets are full": _budgets_are_full(scheduler),
        "nobody is preempted": memory["num_preempted"] == 0,
        "it is as ready as before": memory[stale][OLDEST] == scheduler.start[stale][OLDEST],
    }


def judge_progress(before: Seen, after: Seen, output: SchedulerOutput) -> Iterator[str]:
    """The same of a step on plain integers; the pool must hold the longest request."""
    if before.running:
        oldest, may_rest = before.running[0], before.at_the_end
    elif before.waiting:
        oldest, may_rest = before.waiting[0], before.not_ready
    else:
        return
    if oldest not in may_rest and oldest not in output.num_scheduled_tokens:
        yield "planned: it gains a token"
