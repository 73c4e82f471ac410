"""Whether a run gets to a failing state: a bounded search of the spec, from the empty scheduler.

Entry points: `FailingStart`, which a refuted theorem keeps, and `find_way`, which searches breadth
first for a run to it, among arrivals that are like the requests of that state. Compared is all that
decides: queues in order, every counter, steps in flight, free blocks. Left out are tokens
themselves, steps without tokens, and who of two requests of one arrival time came first. Where the
state looks the same, the claim is asked again, with a pool of identities in the place of one that
allows too much; only if it fails there has a run been found.

On the way every state with queues as long is asked, too: where no run gets to the state that the
solver has found, one may get to another from which the same claim fails.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, permutations
from typing import Literal

import z3
from attrs import define, field, frozen

from checkers.configs import Setting
from checkers.explore import concretize, make_root, numbers_to
from checkers.table import table_of
from proofs.findable import FindablePool
from proofs.invariant import StepTokens
from proofs.symbolic.overheard import OverheardScheduler
from proofs.symbolic.state import Shape, State, make_state, values_of
from spec.actions import Action
from spec.block_pool import CountedBlockPool
from spec.environment import Environment
from spec.interface import EngineCoreOutput, NewRequest, Observation, SchedulerOutput
from spec.request import Request, get_counters
from spec.snapshot import Snapshot, SpecModel, canonical_order, freeze, rewind, save, thaw

MAX_STATES = 20_000
"""How many states of one environment are looked at."""
MAX_SECONDS = 5.0
"""How long all of it may take."""
UNDETERMINED = "undetermined whether a run gets there"


@frozen
class FailingStart:
    """A state from which a claim fails."""

    shape: Shape
    model: z3.ModelRef
    fails: Callable[[Callable[[], State]], bool]
    """Whether another state is such a start too, given how to build it."""


@frozen
class Way:
    """What came of looking for a run."""

    kind: Literal["reachable", "elsewhere", "unreachable", "undetermined"]
    """"elsewhere": no run was found, but one to another state from which the claim fails."""
    sentence: str
    run: tuple[str, ...] = ()
    """The run that was found, a line for each step of it."""


def find_way(start: FailingStart, max_states: int = MAX_STATES) -> Way:
    """Searches for a run, in one environment after the other, as long as time is left."""
    try:
        return _find_way(_Goal(start), max_states)
    except Exception as error:  # noqa: BLE001  (what breaks a theorem may fail in any way)
        return Way("undetermined", f"{UNDETERMINED}: the search ended with {error!r}")


def _find_way(goal: _Goal, max_states: int) -> Way:
    deadline = time.monotonic() + MAX_SECONDS
    searches: list[_Search] = []
    for environment in goal.environments():
        search = _Search(goal, environment, max_states, deadline)
        searches.append(search)
        search.run()
        if search.found is not None or not search.is_complete:
            break
    last = searches[-1]
    if last.found is not None:
        sentence = f"reachable: a run gets there in {_length(last, last.found)}"
        return Way("reachable", sentence, _table(last, last.found))
    complete = [
        each
        for each in searches
        if each.is_complete and each.are_others_there and not goal.num_lookalikes
    ]
    sentence = _unreachable(complete[-1]) if complete else _undetermined(goal, searches)
    for search in searches:
        if search.elsewhere is not None:
            sentence += (
                f"; but one gets in {_length(search, search.elsewhere)}, to another state from "
                "which the theorem fails"
            )
            return Way("elsewhere", sentence, _table(search, search.elsewhere))
    if complete:
        return Way(
            "unreachable",
            f"{sentence}; so far a counterexample to induction only. Other requests or limits may "
            "do it: `schedcheck explore` and `schedcheck search` try those",
        )
    return Way("undetermined", sentence)


def _length(search: _Search, run: list[int]) -> str:
    others = "" if search.are_others_there else " if nobody else arrives"
    return f"{len(run)} action{'' if len(run) == 1 else 's'}, and in no fewer{others}"


def _table(search: _Search, run: list[int]) -> tuple[str, ...]:
    model = make_root(search.setting)
    rows = [_Row.take(model, action) for action in concretize(search.setting, run)]
    return tuple(table_of(rows, search.setting.scheduler.num_blocks)) if rows else ()


def _unreachable(search: _Search) -> str:
    return (
        f"no run of requests like these gets there, under these limits: it is none of all "
        f"{len(search.parents):,} states of runs in which at most "
        f"{search.environment.max_live_requests} of them live at once"
    )


def _undetermined(goal: _Goal, searches: list[_Search]) -> str:
    num_states = sum(len(search.parents) for search in searches)
    if goal.num_lookalikes:
        return (
            f"{UNDETERMINED}: {goal.num_lookalikes} of {num_states:,} states look like it, and "
            "with the pool of identities the claim holds there"
        )
    doubt = "; its pool is abstract, and a real one need not get there" if goal.is_abstract else ""
    return f"{UNDETERMINED}: it is none of {num_states:,} states{doubt}"


_ANYBODY = NewRequest(request_id="", prompt_token_ids=(0,), max_tokens=1)
"""Arrives where the failing state has nobody."""


@frozen
class _Row:
    """An action and what came of it, as a table shows it."""

    action: Action
    output: SchedulerOutput | None
    results: dict[int, list[EngineCoreOutput]] | None
    observation: Observation

    @classmethod
    def take(cls, model: SpecModel, action: Action) -> _Row:
        """Lets an action happen."""
        outcome = model.do(action)
        return cls(action, outcome.output, outcome.results, model.scheduler.observe())


@define
class _Goal:
    """The failing state, and how to know it when a run comes by."""

    start: FailingStart
    state: State = field(init=False)
    requests: list[Request] = field(init=False)
    """By their places in the queues, running ones first."""
    menu: tuple[NewRequest, ...] = field(init=False)
    """What arrives: each kind of request once."""
    shapes: list[int] = field(init=False)
    """The place of each request's kind in the menu."""
    num_lookalikes: int = 0
    """States that look like the failing one, and from which the claim holds."""

    def __attrs_post_init__(self) -> None:
        self.state = make_state(self.start.shape, values_of(self.start.model))
        scheduler = self.state.scheduler
        self.requests = scheduler.running + scheduler.waiting.items
        arrivals = [self._arrival(place) for place in range(len(self.requests))]
        self.menu = tuple(dict.fromkeys(arrivals)) or (_ANYBODY,)
        self.shapes = [self.menu.index(arrival) for arrival in arrivals]

    @property
    def is_abstract(self) -> bool:
        """Whether the state's pool allows more than a real one."""
        return self.start.shape.pool != "counted"

    @property
    def has_steps_in_flight(self) -> bool:
        """Whether another step may be scheduled while one runs."""
        return self.start.shape.is_async or bool(self._parts(self.state.steps, self.requests))

    def environments(self) -> Iterator[Environment]:
        """What may happen: each request arrives once; they come and go; there is one more."""
        make = partial(
            Environment,
            shapes=self.menu,
            max_in_flight=2 if self.has_steps_in_flight else 1,
            sampled_token_ids=(self._plain_token(),),
        )
        num_requests = max(len(self.requests), 1)
        yield make(max_live_requests=num_requests, max_arrivals=num_requests, with_aborts=False)
        # With a prefix cache, two requests of one kind would find what the other has published.
        if not self.is_abstract:
            yield make(max_live_requests=num_requests)
            yield make(max_live_requests=num_requests + 1)

    def _plain_token(self) -> int:
        """A token that stops none of the requests."""
        stops = {token for r in self.requests for token in (r.eos_token_id, *r.stop_token_ids)}
        return next(token for token in count() if token not in stops)

    def is_met_by(self, model: SpecModel) -> bool:
        """Whether a state of a run is the failing one, and the claim fails there too."""
        if not self._looks_like(model):
            return False
        is_met = self.start.fails(partial(self._copy, model))
        self.num_lookalikes += not is_met
        return is_met

    def is_rivalled_by(self, model: SpecModel) -> bool:
        """Whether a state of a run is another one of the same shape from which the claim fails."""
        shape = self.start.shape
        return (
            len(model.scheduler.running) == shape.num_running
            and len(model.scheduler.waiting.items) == shape.num_waiting
            and len(model.in_flight) <= shape.num_steps
            and self.start.fails(partial(self._copy, model))
        )

    def _looks_like(self, model: SpecModel) -> bool:
        scheduler, order = model.scheduler, canonical_order(model)
        ours = self.state.scheduler
        return (
            len(scheduler.running) == len(ours.running)
            and list(map(get_counters, order)) == list(map(get_counters, self.requests))
            and [model.live[request.request_id].shape for request in order] == self.shapes
            and scheduler.block_pool.num_free_blocks == ours.block_pool.num_free_blocks
            and self._parts([step.output.num_scheduled_tokens for step in model.in_flight], order)
            == self._parts(self.state.steps, self.requests)
            and self._may_arrive_like(order)
        )

    @staticmethod
    def _parts(steps: Sequence[StepTokens], order: list[Request]) -> list[list[int]]:
        """The tokens of each request in each step in flight; a step without any does nothing."""
        parts = [[step.get(request.request_id, 0) for request in order] for step in steps]
        return [step for step in parts if any(step)]

    def _may_arrive_like(self, order: list[Request]) -> bool:
        """Whether the requests came in the order that the failing state says, if it matters."""
        if self.start.shape.policy == "fcfs":
            return True
        return all(
            order[one].arrival_time < order[other].arrival_time
            for one, other in permutations(range(len(order)), 2)
            if self.requests[one].arrival_time < self.requests[other].arrival_time
        )

    def _copy(self, model: SpecModel) -> State:
        """The state of a run, with its requests named by their places."""
        copy = thaw(model, freeze(model))
        scheduler = OverheardScheduler(copy.scheduler.config, self._make_pool(copy))
        scheduler.requests = copy.scheduler.requests
        scheduler.running, scheduler.waiting = copy.scheduler.running, copy.scheduler.waiting
        for request, ours in zip(canonical_order(copy), self.requests, strict=True):
            # What stops a request is its client's choice, and stopped none in the run.
            request.eos_token_id, request.stop_token_ids = ours.eos_token_id, ours.stop_token_ids
        shape = self.start.shape
        steps = [step.output.num_scheduled_tokens for step in copy.in_flight]
        steps += [{}] * (shape.num_steps - len(steps))
        parts = [{name: step.get(name, 0) for name in shape.request_ids} for step in steps]
        return State(shape, values_of(self.start.model), scheduler, parts)

    def _make_pool(self, copy: SpecModel) -> CountedBlockPool:
        """The pool of identities in the place of an abstract one; a counted one stays counted."""
        if self.start.shape.pool == "publication":
            return FindablePool(copy.pool, copy.scheduler.requests.values())
        if self.is_abstract:
            return copy.pool
        pool = CountedBlockPool(copy.pool.num_blocks)
        pool.num_free_blocks = copy.pool.num_free_blocks
        return pool

    def _arrival(self, place: int) -> NewRequest:
        request = self.requests[place]
        # With a prefix cache no prompt is like another, so nobody finds what is not its own.
        token_id = place + 1 if self.is_abstract else 0
        return NewRequest(
            request_id="",
            prompt_token_ids=(token_id,) * request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            priority=request.priority,
        )


@define
class _Search:
    """The states of one environment, breadth first, until the goal is met."""

    goal: _Goal
    environment: Environment
    max_states: int
    deadline: float
    is_complete: bool = False
    """Whether every state was looked at, and none is the goal."""
    found: list[int] | None = None
    """A shortest run to the goal: the number of each action in its list."""
    elsewhere: list[int] | None = None
    """The same to another state from which the claim fails."""
    setting: Setting = field(init=False)
    root: SpecModel = field(init=False)
    # How each state was reached first: the state before, and the action's number in its list.
    parents: dict[Snapshot, tuple[Snapshot, int] | None] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.setting = Setting(
            name="reach",
            about="runs that may lead to a failing state",
            dialect="",
            scheduler=self.goal.state.scheduler.config,
            environment=self.environment,
        )
        self.root = make_root(self.setting)
        self.parents = {freeze(self.root): None}

    @property
    def are_others_there(self) -> bool:
        """Whether requests may have come and gone."""
        return self.environment.with_aborts

    def run(self) -> None:
        """Looks at states until the goal is met, all were seen, or the bound is reached."""
        self._look(self.root, next(iter(self.parents)))
        queue = deque(self.parents)
        while queue and self.found is None:
            if len(self.parents) >= self.max_states or time.monotonic() > self.deadline:
                return
            queue.extend(self._expand(queue.popleft()))
        self.is_complete = self.found is None

    def _expand(self, state: Snapshot) -> Iterator[Snapshot]:
        """Takes every action of a state, and looks at the states that are new; yields them."""
        model = thaw(self.root, state)
        saved = save(model)
        for number, action in enumerate(model.enabled_actions()):
            if number:
                rewind(model, saved)
            model.do(action)
            value = freeze(model)
            if value not in self.parents:
                self.parents[value] = (state, number)
                self._look(model, value)
                yield value

    def _look(self, model: SpecModel, value: Snapshot) -> None:
        if self.found is None and self.goal.is_met_by(model):
            self.found = numbers_to(self.parents, value)
        elif self.elsewhere is None and self.goal.is_rivalled_by(model):
            self.elsewhere = numbers_to(self.parents, value)
