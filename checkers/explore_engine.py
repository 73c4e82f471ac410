"""Breadth-first exploration of any engine: along a shortest path to every state of the spec.

Entry points: `EngineExplorer`, which takes every action of every state that the specification can
reach, and `find_shortest`, which looks for a shorter run than one that is known to fail. An engine
need not be able to copy or rewind itself: it is built anew and led along the path each time. What
else an engine may remember of its way depends on the path, and only one path to each state is
taken.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from attrs import define, field

from checkers.engines import Engine, hang_alarms
from checkers.errors import EngineFault
from checkers.explore import Budget
from checkers.liveness import Lasso, drain
from checkers.lockstep import Lockstep
from checkers.rewalk import environment_of
from checkers.run import Judge, Run
from checkers.shrink import Effort, names_to_break
from checkers.trial import Rules, Trial, run_trial
from spec.actions import (
    ACTION_NAMES,
    Action,
    Schedule,
)
from spec.environment import Environment
from spec.scheduler import ReferenceScheduler
from spec.snapshot import Snapshot, SpecModel, freeze, rewind, save

Path = tuple[Action, ...]


@define
class EngineExploration:
    """What an exploration of an engine has looked at, and what it found."""

    num_unique: int = 1
    """States of the specification."""
    num_generated: int = 0
    """Actions that the engine took in them."""
    num_led: int = 0
    """Actions that it took in all, those of the ways to them included."""
    depth: int = 0
    is_complete: bool = False
    """Whether every action of every state (up to the depth asked for) was taken."""
    interrupted_by: str = ""
    num_by_action: Counter[str] = field(factory=Counter)
    witnesses: Counter[str] = field(factory=Counter)
    unobserved: set[str] = field(factory=set)
    """Invariants that were passed over, since the engine does not show what they need."""
    failing: Path = ()
    """The first path whose last action breaks a rule."""
    lasso: Lasso | None = None
    """The first run that stays quiet for ever; it ends the exploration, too."""
    cpu_s: float = 0.0

    @property
    def is_live(self) -> bool | None:
        """Whether somebody gets a token after each path; None if that is open."""
        if self.lasso is not None:
            return False
        return True if self.is_complete else None


class EngineExplorer:
    """The states of the specification, and an engine that is led to each of them."""

    def __init__(
        self,
        rules: Rules,
        engine: Engine,
        environment: Environment,
        wanted: frozenset[str] = frozenset(),
    ) -> None:
        self.rules = rules
        self.engine = engine
        self.environment = environment
        self.wanted = wanted
        """Rules whose breach ends the exploration; empty for any."""
        self.judge = Judge(rules.config, list(rules.invariants))
        self.found = EngineExploration()
        self.known = {freeze(self._follow(()))}

    def run(
        self,
        budget: Budget,
        on_level: Callable[[EngineExploration, int], None] | None = None,
        *,
        max_depth: int = 0,
    ) -> EngineExploration:
        """Explores until a path breaks a rule, all is seen, or a bound (0: none) is reached."""
        found = self.found
        started, deadline = time.process_time(), time.monotonic() + (budget.seconds or 1e9)
        level: list[Path] = [()]
        try:
            with hang_alarms():
                while level and (not max_depth or found.depth < max_depth):
                    if on_level is not None:
                        on_level(found, len(level))
                    level = self._next_level(level, budget, deadline)
        except KeyboardInterrupt:
            found.interrupted_by = "Ctrl-C"
        found.is_complete = not (found.failing or found.lasso or found.interrupted_by)
        found.num_unique, found.witnesses = len(self.known), self.judge.witnesses
        found.unobserved = self.judge.unobserved
        found.cpu_s = time.process_time() - started
        return found

    def _next_level(self, sources: list[Path], budget: Budget, deadline: float) -> list[Path]:
        level: list[Path] = []
        for source in sources:
            level += self._expand(source)
            if self.found.failing or self.found.lasso:
                return []
            if budget.states and len(self.known) >= budget.states:
                self.found.interrupted_by = "the state budget"
                return []
            if budget.actions and self.found.num_led >= budget.actions:
                self.found.interrupted_by = "the action budget"
                return []
            if time.monotonic() > deadline:
                self.found.interrupted_by = "the time budget"
                return []
        if level:
            self.found.depth += 1
        return level

    def _expand(self, path: Path) -> Iterator[Path]:
        """Takes every action after a path; yields the paths to states that are new."""
        for action, state in self._successors(path):
            longer = (*path, action)
            self.found.num_generated += 1
            self.found.num_by_action[ACTION_NAMES[type(action)]] += 1
            broken = self._lead(longer)
            if broken and (not self.wanted or broken & self.wanted):
                self.found.failing = longer
                return
            # A run ends with the first breach, whatever rule it is of.
            if not broken and state not in self.known:
                self.known.add(state)
                # A step that is planned is how the path before it was drained already, and whoever
                # looks for a shorter run does not look for a loop.
                if type(action) is not Schedule and not self.wanted:
                    self.found.lasso = self._drain(longer)
                if self.found.lasso:
                    return
                yield longer

    def _successors(self, path: Path) -> Iterator[tuple[Action, Snapshot]]:
        """Yields every action after a path, and the state that the specification is in after it."""
        model = self._follow(path)
        saved = save(model)
        for number, action in enumerate(model.enabled_actions()):
            if number:
                rewind(model, saved)
            model.do(action)
            yield action, freeze(model)

    def _follow(self, path: Path) -> SpecModel:
        model = SpecModel(self.environment, ReferenceScheduler(self.rules.config))
        for action in path:
            model.do(action)
        return model

    def _lead(self, path: Path) -> set[str]:
        """The rules that the last action of a path breaks; the others were looked at before."""
        *earlier, last = path
        self.found.num_led += len(path)
        lockstep = Lockstep(self.rules.config) if self.rules.lockstep else None
        try:
            is_trusted = "engine_answers" not in self.wanted
            engine = self.engine.build(self.rules.config, is_trusted=is_trusted)
            run = Run(self.rules.config, engine)
            for action in earlier:
                seen = run.step(action)
                if lockstep is not None:
                    lockstep.step(seen)
            seen = run.step(last)
            broken = {breach.name for breach in self.judge.breaches(seen)}
            difference = None if lockstep is None else lockstep.step(seen)
            if not broken:
                self.judge.look(seen)
        except EngineFault as fault:
            return {fault.name}
        except Exception:  # noqa: BLE001  (a plain run tells whose fault it is, and raises if ours)
            return {"engine_answers"}
        return broken if difference is None else broken | {difference.name}

    def _drain(self, path: Path) -> Lasso | None:
        try:
            return drain(self.rules, self.engine, path)
        except Exception:  # noqa: BLE001  (the same steps are taken one by one, and judged)
            return None


def find_shortest(trial: Trial, rules: Rules, engine: Engine, effort: Effort) -> tuple[Trial, bool]:
    """Returns the shortest failing run found, and whether all shorter ones were tried.

    Shorter means: over the same requests and sampled tokens, with no more requests alive at once.
    """
    environment = environment_of(trial.actions, rules)
    if len(trial.steps) <= 1:
        return trial, True
    if not effort.num_actions or effort.seconds <= 0:
        return trial, False
    explorer = EngineExplorer(rules, engine, environment, names_to_break(trial))
    budget = Budget(seconds=effort.seconds, actions=effort.num_actions)
    found = explorer.run(budget, max_depth=len(trial.steps) - 1)
    if found.failing:
        return run_trial(rules, engine, found.failing), True
    return trial, found.is_complete
