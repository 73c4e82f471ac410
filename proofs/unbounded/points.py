"""What holds in the middle of a step: the invariant as it will be, and the books of the step.

Entry points: the points themselves (`between_steps`, `in_pass_1`, …), each a list of claims, and
the two readers of a claim: `quantified`, for any number of requests, and `broken_claims`, for a
state of plain integers. In the middle of a step a running request is seen as it will be once the
step is counted as computed (`Advanced`); so seen, the clauses of `proofs.invariant` hold always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

import z3
from attrs import frozen

from proofs.invariant import Clause, clauses_of, make_totals
from proofs.symbolic.heap import NOWHERE, SymList, facts_of_sums, sum_of
from proofs.symbolic.values import (
    Same,
    SymInt,
    all_of,
    any_of,
    choose,
    implies,
    negate,
    symbolic_len,
    term,
)
from proofs.unbounded.state import RUNNING, SKIPPED, WAITING, SymbolicScheduler, facts_of_blocks
from spec.request import Request

About = Literal["state", "running", "waiting", "skipped", "neighbours"]
CODES = {"running": RUNNING, "waiting": WAITING, "skipped": SKIPPED}


@frozen
class Claim:
    """One thing that holds at a point."""

    name: str
    about: About
    """Of the state, of each request of a list, or of each two in `waiting`."""
    fact: Callable[..., Any]
    """Given nothing, or a request and its index in its list, or two requests."""


Point = Callable[[Any], Iterator[Claim]]
"""Given the scheduler, symbolic or plain."""


class Advanced:
    """A running request as it will be once its step is counted as computed."""

    num_tokens: Any = Request.num_tokens

    def __init__(self, scheduler: Any, request: Any) -> None:
        self._request = request
        self._num_scheduled_tokens = tokens_of(scheduler, request)
        self._is_async = scheduler.config.async_scheduling

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def num_computed_tokens(self) -> Any:
        """With the tokens of the step."""
        return self._request.num_computed_tokens + self._num_scheduled_tokens

    @property
    def num_in_flight_tokens(self) -> Any:
        """With the tokens of the step."""
        return self._request.num_in_flight_tokens + self._num_scheduled_tokens

    @property
    def num_output_placeholders(self) -> Any:
        """With one more if the step samples a token before the one before it is known."""
        num_placeholders = self._request.num_output_placeholders
        if not self._is_async:
            return num_placeholders
        is_scheduled = self._num_scheduled_tokens > 0
        samples = self.num_computed_tokens >= self.num_tokens + num_placeholders
        return num_placeholders + choose(all_of(is_scheduled, samples), 1, 0)


def tokens_of(scheduler: Any, request: Any) -> Any:
    """The tokens of a request in the step being planned."""
    return scheduler.output.num_scheduled_tokens.get(request.request_id, 0)


# ---- the points ----------------------------------------------------------------------------------


def between_steps(scheduler: Any) -> Iterator[Claim]:
    """The invariant, with the steps in flight."""
    yield _nobody_is_skipped(scheduler)
    yield from _invariant_of_state(scheduler)
    yield from _invariant_of(scheduler, "waiting", lambda request: request, scheduler.parts)
    yield from _invariant_of(scheduler, "running", lambda request: request, scheduler.parts)


def in_pass_1(scheduler: Any) -> Iterator[Claim]:
    """Those before the cursor have been looked at, the others are not scheduled."""
    yield from _in_step(scheduler)
    yield Claim(
        "the cursor is in running",
        "state",
        lambda: all_of(
            scheduler.req_index >= 0,
            implies(
                _cursor_keeps_up(scheduler),
                scheduler.req_index <= symbolic_len(scheduler.running),
            ),
        ),
    )
    yield _nobody_is_skipped(scheduler)
    yield Claim(
        "those from the cursor on are not scheduled",
        "running",
        lambda request, index: implies(
            index >= scheduler.req_index, tokens_of(scheduler, request) == 0
        ),
    )
    yield Claim(
        "who is scheduled is known to the worker",
        "running",
        lambda request, _: implies(
            tokens_of(scheduler, request) > 0, is_cached(scheduler, request)
        ),
    )
    yield Claim(
        "who is not scheduled is not named to the worker",
        "running",
        lambda request, _: implies(
            tokens_of(scheduler, request) == 0, negate(is_cached(scheduler, request))
        ),
    )


def num_left(scheduler: Any) -> Any:
    """Running requests that pass 1 has yet to look at."""
    return symbolic_len(scheduler.running) - scheduler.req_index


def making_room(request: Any, num_new_tokens: Any, most: Any) -> Point:
    """Room is made for the request at the cursor; at most `most` are left to be looked at."""

    def point(scheduler: Any) -> Iterator[Claim]:
        yield from in_pass_1(scheduler)
        yield Claim(
            "pass 1 gets no longer",
            "state",
            lambda: all_of(most >= 1, num_left(scheduler) <= most),
        )
        yield Claim("it is its turn", "state", lambda: is_its_turn(scheduler, request))
        yield Claim("it is not scheduled yet", "state", lambda: tokens_of(scheduler, request) == 0)
        yield Claim(
            "its tokens are within the budgets",
            "state",
            lambda: all_of(
                num_new_tokens >= 1,
                num_new_tokens <= scheduler.token_budget,
                num_new_tokens <= scheduler.input_budget,
            ),
        )
        gap = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
        yield Claim(
            "its tokens are within its gap",
            "state",
            lambda: all_of(
                num_new_tokens <= gap,
                request.num_computed_tokens + num_new_tokens < scheduler.config.max_model_len,
            ),
        )

    return point


def in_pass_2(scheduler: Any) -> Iterator[Claim]:
    """Whoever is skipped waits as before."""
    yield from _in_step(scheduler)
    yield from _invariant_of(scheduler, "skipped", lambda request: request, scheduler.parts)
    yield Claim(
        "who is skipped is not scheduled",
        "skipped",
        lambda request, _: is_left_alone(scheduler, request),
    )


def reserving(scheduler: Any) -> Iterator[Claim]:
    """Blocks are set aside for running requests, none before the first of them is looked at."""
    yield from in_pass_2(scheduler)
    yield Claim(
        "what is set aside is not negative",
        "state",
        lambda: all_of(
            scheduler.num_reserved_blocks >= 0,
            implies(scheduler.cursor == 0, scheduler.num_reserved_blocks == 0),
        ),
    )


def advancing(scheduler: Any) -> Iterator[Claim]:
    """Running requests before the cursor are counted as computed, the others not yet."""

    def now(request: Any) -> list[Any]:
        return [*scheduler.parts(request), tokens_of(scheduler, request)]

    yield from _invariant_of_state(scheduler)
    yield from _invariant_of(scheduler, "waiting", lambda request: request, now)
    yield _nobody_is_skipped(scheduler)
    yield from _books(scheduler)
    for claim in _invariant_of(scheduler, "running", lambda request: request, now):
        yield _if_index(claim, lambda index: index < scheduler.cursor)
    for claim in _invariant_of(scheduler, "running", lambda each: Advanced(scheduler, each), now):
        yield _if_index(claim, lambda index: index >= scheduler.cursor, " once advanced")


def _in_step(scheduler: Any) -> Iterator[Claim]:
    def now(request: Any) -> list[Any]:
        return [*scheduler.parts(request), tokens_of(scheduler, request)]

    yield from _invariant_of_state(scheduler)
    yield from _books(scheduler)
    yield from _invariant_of(scheduler, "waiting", lambda request: request, now)
    yield from _invariant_of(scheduler, "running", lambda each: Advanced(scheduler, each), now)


def _nobody_is_skipped(scheduler: Any) -> Claim:
    return Claim("nobody is set aside", "state", lambda: symbolic_len(scheduler.skipped) == 0)


def _books(scheduler: Any) -> Iterator[Claim]:
    """What the step has taken from its budgets, and from whom nothing may be taken."""
    config = scheduler.config
    yield Claim(
        "the token budget is not exceeded, and what is gone from it is scheduled",
        "state",
        lambda: all_of(
            scheduler.token_budget >= 0,
            scheduler.token_budget + scheduler.total("scheduled")
            == config.max_num_scheduled_tokens,
        ),
    )
    yield Claim(
        "the input budget is not exceeded, and what is gone from it is scheduled",
        "state",
        lambda: all_of(
            scheduler.input_budget >= 0,
            scheduler.input_budget + scheduler.total("scheduled") == config.max_num_batched_tokens,
        ),
    )
    yield Claim(
        "the threshold is the configured one, or off",
        "state",
        lambda: any_of(
            scheduler.long_prefill_token_threshold == 0,
            scheduler.long_prefill_token_threshold == config.long_prefill_token_threshold,
        ),
    )
    yield Claim(
        "preemptions are counted",
        "state",
        lambda: symbolic_len(scheduler.output.preempted_req_ids) >= 0,
    )
    yield Claim(
        "who waits is not scheduled",
        "waiting",
        lambda request, _: is_left_alone(scheduler, request),
    )


def is_left_alone(scheduler: Any, request: Any) -> Any:
    """Whether a step has nothing to do with a request."""
    return all_of(tokens_of(scheduler, request) == 0, negate(is_cached(scheduler, request)))


def is_its_turn(scheduler: Any, request: Any) -> Any:
    """Whether a request runs, and stands at the cursor, or ahead of one that does not keep up."""
    running = scheduler.running
    if not isinstance(running, SymList):
        return _is_at_cursor(scheduler, running.index(request))
    memory = scheduler.memory
    place = memory.select("pos", request.key)
    return z3.And(
        memory.select("where", request.key) == RUNNING,
        z3.Select(running.arr, place) == request.key,
        place < running.hi,
        term(_is_at_cursor(scheduler, SymInt(place - running.lo))),
    )


def _is_at_cursor(scheduler: Any, index: Any) -> Any:
    is_there = index == scheduler.req_index
    return any_of(
        is_there, all_of(negate(_cursor_keeps_up(scheduler)), index < scheduler.req_index)
    )


def _cursor_keeps_up(scheduler: Any) -> Any:
    """Whether the cursor stays on its request when one ahead of it leaves; else some are missed."""
    config = scheduler.config
    return config.policy != "priority" or config.cursor_follows_victim == "always"


def is_cached(scheduler: Any, request: Any) -> Any:
    """Whether the worker is told of a request as one that it knows."""
    cached = scheduler.output.scheduled_cached_reqs
    if isinstance(scheduler, SymbolicScheduler):
        return cached.get(request.request_id, 0) > 0
    return request.request_id in cached


# ---- the clauses of the invariant as claims ------------------------------------------------------


def _invariant_of_state(scheduler: Any) -> Iterator[Claim]:
    totals = make_totals(scheduler, symbolic_len(scheduler.running), scheduler.total("num_blocks"))
    for each in clauses_of("config"):
        yield _claim(each, "state", scheduler)
    for each in clauses_of("totals"):
        yield _claim(each, "state", scheduler, totals)
    for each in clauses_of("neighbours"):
        yield Claim(
            f"waiting: {each.name}",
            "neighbours",
            lambda ahead, behind, each=each: all_of(*each.facts(scheduler.config, ahead, behind)),
        )


def _claim(each: Clause, about: About, scheduler: Any, *handed: Any) -> Claim:
    return Claim(each.name, about, lambda: all_of(*each.facts(scheduler.config, *handed)))


def _invariant_of(
    scheduler: Any,
    about: About,
    show: Callable[[Any], Any],
    parts: Callable[[Any], list[Any]],
) -> Iterator[Claim]:
    """The clauses about each request of a list, seen in a certain way, with its steps in flight."""
    config = scheduler.config
    queue: Literal["running", "waiting"] = "running" if about == "running" else "waiting"
    flight: Literal["steps", "voided"] = "steps" if about == "running" else "voided"
    for each in (*clauses_of("request"), *clauses_of(queue)):
        yield Claim(
            f"{about}: {each.name}",
            about,
            lambda request, _, each=each: all_of(*each.facts(config, show(request))),
        )
    for each in clauses_of(flight):
        yield Claim(
            f"{about}: {each.name}",
            about,
            lambda request, _, each=each: all_of(
                *each.facts(config, show(request), parts(request))
            ),
        )


def _if_index(claim: Claim, condition: Callable[[Any], Any], suffix: str = "") -> Claim:
    return Claim(
        claim.name + suffix,
        claim.about,
        lambda request, index: implies(condition(index), claim.fact(request, index)),
    )


# ---- reading a point in a state of plain integers ------------------------------------------------


def broken_claims(scheduler: Any, point: Point) -> Iterator[str]:
    """Names the claims of a point that do not hold."""
    lists = {
        "running": scheduler.running,
        "waiting": scheduler.waiting.items,
        "skipped": scheduler.skipped,
    }
    for claim in point(scheduler):
        if claim.about == "state":
            holds = claim.fact()
        elif claim.about == "neighbours":
            holds = all(claim.fact(*two) for two in pairwise(scheduler.waiting.items))
        else:
            holds = all(claim.fact(each, index) for index, each in enumerate(lists[claim.about]))
        if not holds:
            yield claim.name


# ---- reading a point for any number of requests --------------------------------------------------


def quantified(scheduler: SymbolicScheduler, point: Point, *about: Any) -> dict[str, Any]:
    """Says the claims of a point about every request there may be, by name.

    `about` are the terms that the point knows beside the cells.
    """
    terms = map(Same, (*about, *scheduler.memory.cells.values()))
    key = (point.__qualname__, scheduler.num_steps, *terms)
    if key not in scheduler.said:
        scheduler.said[key] = _say(scheduler, point)
    return scheduler.said[key]


def _say(scheduler: SymbolicScheduler, point: Point) -> dict[str, Any]:
    said = _representation(scheduler)
    for claim in point(scheduler):
        assert claim.name not in said, f"two claims are called {claim.name}"
        said[claim.name] = term(_say_of(claim.about)(scheduler, claim))
    return said


def general_facts(scheduler: SymbolicScheduler) -> dict[str, Any]:
    """What is true of all sums and of rounding up to blocks."""
    memory = scheduler.memory
    names = sorted(memory.sums)
    key = ("sums and blocks", *[Same(memory[each]) for each in (*names, *map(sum_of, names))])
    if key not in scheduler.said:
        facts = [*facts_of_sums(memory), *facts_of_blocks()]
        scheduler.said[key] = {str(number): fact for number, fact in enumerate(facts)}
    return scheduler.said[key]


def _say_of(about: About) -> Callable[[SymbolicScheduler, Claim], Any]:
    if about == "state":
        return lambda _, claim: claim.fact()
    return _for_all_two if about == "neighbours" else _for_all


def _for_all_two(scheduler: SymbolicScheduler, claim: Claim) -> z3.BoolRef:
    """Of any two in `waiting`, the one ahead first; they need not be neighbours."""
    waiting, (place, later) = scheduler.lists["waiting"], z3.Ints("place later")
    ahead, behind = waiting.arr[place], waiting.arr[later]
    fact = term(claim.fact(scheduler.see(ahead), scheduler.see(behind)))
    if z3.is_true(z3.simplify(fact)):
        return z3.BoolVal(True)
    are_two = z3.And(waiting.lo <= place, place < later, later < waiting.hi)
    patterns = [z3.MultiPattern(ahead, behind)]
    return z3.ForAll([place, later], z3.Implies(are_two, fact), patterns=patterns)


def _for_all(scheduler: SymbolicScheduler, claim: Claim) -> z3.BoolRef:
    memory, key = scheduler.memory, z3.Int("request")
    where = memory.select("where", key)
    index = SymInt(memory.select("pos", key) - scheduler.lists[claim.about].lo)
    fact = term(claim.fact(scheduler.see(key), index))
    if z3.is_true(z3.simplify(fact)):
        return z3.BoolVal(True)
    return z3.ForAll([key], z3.Implies(where == CODES[claim.about], fact), patterns=[where])


def _representation(scheduler: SymbolicScheduler) -> dict[str, Any]:
    """That arrays and ghosts are lists, and that whoever lives is in one; the dead hold nothing."""
    memory, said = scheduler.memory, dict[str, Any]()
    where, live, key = memory["where"], memory["live"], z3.Int("request")
    for each in scheduler.lists.values():
        said |= each.representation()
    holds_nothing = z3.And(memory["num_blocks"][key] == 0, memory["scheduled"][key] == 0)
    about_where = {
        "the living are in a list": (where[key] != NOWHERE) == (live[key] == 1),
        "lists are three": z3.And(where[key] >= NOWHERE, where[key] <= SKIPPED),
        "the dead hold nothing": z3.Implies(where[key] == NOWHERE, holds_nothing),
    }
    for name, fact in about_where.items():
        said[name] = z3.ForAll([key], fact, patterns=[where[key]])
    is_flag = z3.Or(live[key] == 0, live[key] == 1)
    said["live is a flag"] = z3.ForAll([key], is_flag, patterns=[live[key]])
    for name in ("num_blocks", "scheduled", "cached"):
        number = memory[name][key]
        said[f"{name} is not negative"] = z3.ForAll([key], number >= 0, patterns=[number])
    return said
