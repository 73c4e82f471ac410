"""Breadth-first exploration of the reference scheduler: every state, every transition judged.

Entry point: `Explorer`. States are canonical values (`spec.snapshot`), so requests may arrive
without end as long as few live at once, and a complete exploration holds for runs of any length.
The first breach found is a shortest one. If there is none, the states seen are searched for a loop
in which nobody gets a token (`checkers.liveness`).
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from attrs import define, field, frozen

from checkers.configs import Setting
from checkers.errors import HarnessError
from checkers.liveness import Lasso, QuietGraph, is_quiet
from checkers.names import rename
from checkers.run import Breach, Judge, Verdict, follow, select_invariants
from spec.actions import (
    ACTION_NAMES,
    Action,
    AddRequest,
    Schedule,
    StreamingChunk,
)
from spec.scheduler import ReferenceScheduler
from spec.snapshot import Snapshot, SpecModel, canonical_names, freeze, rewind, save, thaw
from spec.transition import Outcome, Transition
from spec.worker import GhostWorker, Writer


@frozen(kw_only=True)
class Budget:
    """How far to go; 0 is no limit."""

    seconds: float = 0.0
    """Wall-clock time."""
    states: int = 0
    """Unique states."""
    actions: int = 0
    """That an engine is led through; the specification is not."""
    states_only: bool = False
    """Whether to judge every state, but only the first transition into each."""


@define
class Exploration:
    """What an exploration has looked at, and what it found."""

    setting: Setting
    num_unique: int = 1
    num_generated: int = 1
    num_judged: int = 0
    """Transitions that were held against the invariants; every state was."""
    depth: int = 0
    """The longest shortest path to a state that was found."""
    is_complete: bool = False
    """Whether every reachable state was looked at."""
    interrupted_by: str = ""
    """What ended it early: "Ctrl-C", "the time budget" or "the state budget"."""
    num_by_action: Counter[str] = field(factory=Counter)
    witnesses: Counter[str] = field(factory=Counter)
    invariants: list[str] = field(factory=list)
    breaches: list[Breach] = field(factory=list)
    """All that the first bad transition breaks."""
    actions: list[Action] = field(factory=list)
    """A shortest run to the breach, from the empty scheduler."""
    lasso: Lasso | None = None
    """A run that stays quiet for ever, if no breach ended the exploration."""
    cpu_s: float = 0.0

    @property
    def missing_witnesses(self) -> list[str]:
        """What the setting wants to have seen and a complete exploration did not see."""
        return [name for name in self.setting.witnesses if not self.witnesses[name]]

    @property
    def wrong_count(self) -> bool:
        """Whether a complete exploration found another number of states than the setting pins."""
        return self.is_complete and self.setting.num_states not in {None, self.num_unique}

    @property
    def is_live(self) -> bool | None:
        """Whether somebody always gets a token in the end; None if that is open."""
        if self.lasso is not None:
            return False
        return True if self.is_complete else None

    @property
    def verdict(self) -> Verdict:
        """Undetermined unless every state was seen; a breach or a lasso decides at once."""
        if self.breaches or self.lasso is not None:
            return "violated"
        if not self.is_complete:
            return "undetermined"
        return "violated" if self.missing_witnesses or self.wrong_count else "holds"


class Explorer:
    """The states of a setting, explored one level at a time."""

    def __init__(self, setting: Setting, *, judge_all: bool = True) -> None:
        self.setting = setting
        self.judge_all = judge_all
        """Whether every transition is judged, or only the first one into each state."""
        self.judge = Judge(setting.scheduler, select_invariants(setting.claims))
        self.root = make_root(setting)
        self.found = Exploration(setting, invariants=[rule.name for rule in self.judge.invariants])
        # How each state was reached first: the state before, and the action's number in its list.
        self.parents: dict[Snapshot, tuple[Snapshot, int] | None] = {freeze(self.root): None}
        # The states by their places in `parents`.
        self.places: dict[Snapshot, int] = dict.fromkeys(self.parents, 0)
        self.quiet = QuietGraph()

    def run(
        self, budget: Budget, on_level: Callable[[Exploration, int], None] | None = None
    ) -> Exploration:
        """Explores until everything is seen, a breach is found, or the budget ends."""
        gc_was_enabled = gc.isenabled()
        # A state graph has no cycles, and going through it again and again costs a third of the
        # time.
        gc.disable()
        started, deadline = time.process_time(), time.monotonic() + (budget.seconds or 1e9)
        frontier = list(self.parents)
        try:
            while frontier and not self.found.interrupted_by and not self.found.breaches:
                if on_level is not None:
                    on_level(self.found, len(frontier))
                frontier = self._next_level(frontier, budget, deadline)
            self.found.is_complete = not (self.found.interrupted_by or self.found.breaches)
            self.found.lasso = None if self.found.breaches else self._find_lasso()
        except KeyboardInterrupt:
            self.found.interrupted_by = "Ctrl-C"
        finally:
            if gc_was_enabled:
                gc.enable()
        self.found.cpu_s = time.process_time() - started
        self.found.num_unique = len(self.parents)
        self.found.witnesses = self.judge.witnesses
        self.found.num_judged = self.judge.num_transitions
        return self.found

    def _next_level(
        self, frontier: list[Snapshot], budget: Budget, deadline: float
    ) -> list[Snapshot]:
        level: list[Snapshot] = []
        for state in frontier:
            level += self._expand(state)
            if self.found.breaches:
                break
            if budget.states and len(self.parents) >= budget.states:
                self.found.interrupted_by = "the state budget"
                break
            if time.monotonic() > deadline:
                self.found.interrupted_by = "the time budget"
                break
        if level:
            self.found.depth += 1
        return level

    def _expand(self, state: Snapshot) -> Iterator[Snapshot]:
        """Takes every action of a state; yields the states that are new."""
        view, place = StateView(thaw(self.root, state)), self.places[state]
        is_waited_for = view.model.is_waited_for
        for number, action in enumerate(view.actions()):
            self.found.num_generated += 1
            self.found.num_by_action[ACTION_NAMES[type(action)]] += 1
            value = freeze(view.model)
            is_known_state = value in self.parents
            if not is_known_state:
                self.parents[value] = (state, number)
                self.places[value] = len(self.places)
                yield value
            if not is_waited_for and is_quiet(action, view.outcome.results):
                self.quiet.add(place, number, self.places[value])
            if is_known_state and not self.judge_all:
                continue
            seen = view.transition(action)
            breaches = list(self.judge.breaches(seen, is_known_state=is_known_state))
            if breaches:
                self.found.breaches = breaches
                self.found.actions = self.path_to(state, number)
                return
            self.judge.look(seen)

    def path_to(self, state: Snapshot, number: int) -> list[Action]:
        """The run through `state` and its action `number`, from the empty scheduler."""
        return concretize(self.setting, [*numbers_to(self.parents, state), number])

    def _find_lasso(self) -> Lasso | None:
        """A shortest way to a state of which the explored part has a quiet cycle, and that."""
        found = self.quiet.find_loop()
        if found is None:
            return None
        place, numbers = found
        state = list(self.parents)[place]
        return make_lasso(self.setting, numbers_to(self.parents, state), numbers)


class StateView:
    """A state and what its actions lead to; the model is rewound in place between them."""

    def __init__(self, model: SpecModel) -> None:
        self.model = model
        self.live = model.live
        self.in_flight = model.in_flight
        self.loads = model.loads
        self.before = model.scheduler.observe()
        self.has_cache = model.scheduler.config.enable_prefix_caching
        self.outcome = Outcome()
        """Of the action that was just taken."""

    def actions(self) -> Iterator[Action]:
        """Yields each enabled action; the model then stands in the state after it."""
        saved = save(self.model)
        for number, action in enumerate(self.model.enabled_actions()):
            if number:
                rewind(self.model, saved)
            self.outcome = self.model.do(action)
            yield action

    def transition(self, action: Action) -> Transition:
        """What was seen of the action that was just taken."""
        model = self.model
        seen = Transition(
            action,
            self.before,
            model.scheduler.observe(),
            self.outcome,
            self.live,
            model.live,
            self.in_flight,
            model.in_flight,
            pause_state=model.pause_state,
            loads=self.loads,
            loads_after=model.loads,
        )
        # Without a prefix cache nothing is published, and only a step tells the worker anything.
        if self.has_cache or type(action) is Schedule:
            follow(self._worker(), seen)
        return seen

    def _worker(self) -> GhostWorker:
        writers = {
            name: Writer(request.new.cache_key, request.token_ids)
            for name, request in self.live.items()
        }
        block_size = self.model.scheduler.config.block_size
        return GhostWorker.trusting(block_size, self.before, writers, self.loads)


def make_root(setting: Setting) -> SpecModel:
    """The empty scheduler in its environment."""
    return SpecModel(setting.environment, ReferenceScheduler(setting.scheduler))


def make_lasso(setting: Setting, way_in: list[int], loop: list[int]) -> Lasso:
    """Turns a way to a canonical state, and a cycle through it, into a run with names that stay.

    The cycle may leave the requests in each other's places; it is repeated until each is back.
    """
    run = make_root(setting)
    actions, state, names = _take_numbers(run, way_in), freeze(run), _names_in(run)
    turns = _take_numbers(run, loop)
    while freeze(run) == state and _names_in(run) != names:
        turns += _take_numbers(run, loop)
    if freeze(run) != state:
        raise HarnessError(
            f"{setting.name}: a cycle of states is none when it is run; please report this: it is "
            "a fault of schedcheck"
        )
    return Lasso(tuple(actions), tuple(turns))


def _names_in(run: SpecModel) -> list[str]:
    return canonical_names(run)


def numbers_to(
    parents: Mapping[Snapshot, tuple[Snapshot, int] | None], state: Snapshot
) -> list[int]:
    """The way to a state, as numbers of the actions that were taken; the first has no parent."""
    numbers: list[int] = []
    parent = parents[state]
    while parent is not None:
        state, number = parent
        numbers.append(number)
        parent = parents[state]
    return numbers[::-1]


def concretize(setting: Setting, numbers: list[int]) -> list[Action]:
    """Turns numbers of actions, each in the list of a canonical state, into the actions of one run.

    In every state the explorer names requests by their places in the queues; here each keeps the
    name it came with.
    """
    return _take_numbers(make_root(setting), numbers)


def _take_numbers(run: SpecModel, numbers: list[int]) -> list[Action]:
    actions: list[Action] = []
    for number in numbers:
        names = {f"r{place}": name for place, name in enumerate(canonical_names(run))}
        canonical = thaw(run, freeze(run)).enabled_actions()[number]
        action = _rename(canonical, names, run)
        run.do(action)
        actions.append(action)
    return actions


def _rename(action: Action, names: dict[str, str], run: SpecModel) -> Action:
    if isinstance(action, AddRequest):
        return run.arrival(action.shape)
    if isinstance(action, StreamingChunk):
        return run.chunk(names[action.request_id], action.update)
    return rename(action, names)
