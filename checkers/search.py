"""Random walks of an engine in lockstep with the spec, then the shortest failing run to be found.

Entry point: `search`. On a walk the engine is compared to the specification after every action;
every `JUDGE_EVERY`th walk, and every walk that differs, is held against the invariants too. The
specification itself has nothing to be compared to, so all of its walks are held against the
invariants.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import attrs
from attrs import define, field, frozen

from checkers.configs import Setting
from checkers.counterexample import Counterexample, make_counterexample
from checkers.engines import Engine, hang_alarms
from checkers.errors import HarnessError
from checkers.explore_engine import find_shortest
from checkers.lockstep import Lockstep
from checkers.mixed import draw_setting, is_mixed
from checkers.rewalk import environment_of
from checkers.run import Judge, Run, Verdict, select_invariants
from checkers.shrink import DEFAULT_EFFORT, LENGTH, NO_EFFORT, Effort, names_to_break, shrink
from checkers.trial import Rules, Trial, run_for, run_trial
from checkers.walk import draw_action
from spec.actions import Action, Schedule
from spec.interface import ConfigError, SchedulerConfig
from spec.transition import Transition

SHORT_LIMIT_S = 1.0
"""How long a call may take while a run that hangs is shrunk."""
JUDGE_EVERY = 16
"""Lockstep says that the engine does what the judged specification does; this is for what lockstep
cannot see."""


@frozen(kw_only=True)
class Plan:
    """How much to walk."""

    num_walks: int = 200
    """Per setting."""
    num_mixed: int = 0
    """Settings drawn at random (`checkers.mixed`) that each round walks in, once in each."""
    length: int = LENGTH
    """Actions in a walk."""
    seed: int = 0
    seconds: float = 0.0
    """Wall-clock time for all walks; 0 is no limit."""
    effort: Effort = DEFAULT_EFFORT
    """For shrinking a failing walk; half of it again to look breadth first."""
    lockstep: bool = True
    """Whether an engine must do as the specification does; else all of its walks are judged."""


@define
class Search:
    """What the walks have looked at, and what they found."""

    engine: str
    settings: list[str]
    plan: Plan
    num_walks: int = 0
    num_mixed: int = 0
    """Those in settings that were drawn at random."""
    num_judged_walks: int = 0
    num_actions: int = 0
    num_engine_steps: int = 0
    witnesses: Counter[str] = field(factory=Counter)
    """On the judged walks."""
    invariants: list[str] = field(factory=list)
    unobserved: set[str] = field(factory=set)
    deadline: float = field(default=0.0, eq=False)
    """On the monotonic clock; a walk may be longer than the time there is."""
    interrupted_by: str = ""
    counterexample: Counterexample | None = None
    cpu_s: float = 0.0
    """Of the walks alone."""

    @property
    def verdict(self) -> Verdict:
        """What the walks say; that they say nothing about other walks stands in the report."""
        if self.counterexample is not None:
            return "violated"
        return "holds" if self.num_engine_steps and not self.interrupted_by else "undetermined"


def search(
    engine: Engine,
    settings: list[Setting],
    plan: Plan,
    on_walk: Callable[[Search], None] | None = None,
) -> Search:
    """Walks until a run fails, all walks are done, or the time is over."""
    found = Search(engine.name, [setting.name for setting in settings], plan)
    found.invariants = [rule.name for rule in select_invariants()]
    found.deadline = time.monotonic() + (plan.seconds or 1e9)
    failed: tuple[Setting, int, Trial] | None = None
    started = time.process_time()
    try:
        with hang_alarms():
            for setting, number in _rounds(settings, plan):
                walker = Walker(engine, setting, plan, number, found)
                found.num_mixed += is_mixed(setting)
                if walker.fails():
                    failed = (setting, walker.seed, walker.trial())
                    break
                if on_walk is not None:
                    on_walk(found)
                if time.monotonic() > found.deadline:
                    found.interrupted_by = "the time budget"
                    break
    except KeyboardInterrupt:
        found.interrupted_by = "Ctrl-C"
    found.cpu_s = time.process_time() - started
    if failed is not None:
        found.counterexample = shrink_to_counterexample(engine, plan, *failed)
    return found


def _rounds(settings: list[Setting], plan: Plan) -> Iterator[tuple[Setting, int]]:
    """Every setting in turn, so that an early end has looked at all of them."""
    for number in range(plan.num_walks):
        for setting in settings:
            yield setting, number
        for place in range(number * plan.num_mixed, (number + 1) * plan.num_mixed):
            yield draw_setting(plan.seed, place), place


class Walker:
    """One walk of one engine; `on_step` is shown every transition before it is judged."""

    def __init__(
        self,
        engine: Engine,
        setting: Setting,
        plan: Plan,
        number: int,
        found: Search,
        *,
        on_step: Callable[[Transition], None] | None = None,
    ) -> None:
        self.engine = engine
        self.setting = setting
        self.plan = plan
        self.found = found
        self.seed = plan.seed + number
        self.on_step = on_step
        self.rules = make_rules(engine, setting, lockstep=plan.lockstep)
        self.is_judged = not self.rules.lockstep or number % JUDGE_EVERY == 0
        self.actions: list[Action] = []

    def fails(self) -> bool:
        """Walks; whether something differs, breaks or fails."""
        self.found.num_walks += 1
        self.found.num_judged_walks += self.is_judged
        rng = random.Random(f"{self.setting.name} {self.seed}")
        try:
            return self._walk(rng)
        except Exception:  # noqa: BLE001  (the trial tells whose fault it is, and raises if ours)
            return True

    def _walk(self, rng: random.Random) -> bool:
        config = self.setting.scheduler
        run = Run(
            config,
            self.engine.build(config, is_trusted=not self.is_judged),
            self.setting.environment,
            with_worker=self.is_judged,
        )
        lockstep = Lockstep(config) if self.rules.lockstep else None
        judge = Judge(config, list(self.rules.invariants)) if self.is_judged else None
        for _ in range(self.plan.length):
            action = draw_action(run.model, rng)
            if action is None or time.monotonic() > self.found.deadline:
                break
            self.actions.append(action)
            self.found.num_actions += 1
            self.found.num_engine_steps += type(action) is Schedule
            seen = run.step(action)
            if self.on_step is not None:
                self.on_step(seen)
            if lockstep is not None and lockstep.step(seen) is not None:
                return True
            if judge is not None:
                if next(judge.breaches(seen), None) is not None:
                    return True
                judge.look(seen)
        if judge is not None:
            self.found.witnesses += judge.witnesses
            self.found.unobserved |= judge.unobserved
        return False

    def trial(self) -> Trial:
        """The failing walk again, with everything looked at."""
        trial = run_trial(self.rules, self.engine, self.actions)
        if not trial.breaches:
            raise HarnessError(
                f"walk {self.seed} of {self.setting.name} fails on {self.engine.name}, and does "
                "not when it is repeated; make the engine deterministic, seeds and sets included"
            )
        return trial


def make_rules(engine: Engine, setting: Setting, *, lockstep: bool = True) -> Rules:
    """What an engine is held against in a setting."""
    return Rules(
        setting.scheduler,
        tuple(select_invariants(setting.claims)),
        setting.environment.max_in_flight,
        setting.environment.sampled_token_ids[0],
        lockstep=lockstep and not engine.is_spec,
    )


def shrink_to_counterexample(
    engine: Engine, plan: Plan, setting: Setting, seed: int, trial: Trial
) -> Counterexample:
    """Shrinks a failing walk, looks for a shorter one breadth first, and describes what is left."""
    num_found, wanted = len(trial.steps), names_to_break(trial)
    rules = make_rules(engine, setting, lockstep=plan.lockstep)
    tested = engine
    if "engine_hangs" in wanted:
        # That it hangs is known; each try would take as long again.
        tested = attrs.evolve(engine, time_limit_s=min(engine.time_limit_s, SHORT_LIMIT_S))

    def attempt(actions: list[Action]) -> Trial:
        return run_for(rules, tested, actions, wanted)

    small = shrink(trial, attempt, setting, plan.effort)
    # Whoever interrupts the shrinking does not want to wait for more.
    effort = NO_EFFORT if small.is_interrupted else plan.effort.half()
    if is_mixed(setting) and not small.is_interrupted:
        setting, small = _simplify(tested, plan, setting, small)
        rules = make_rules(engine, setting, lockstep=plan.lockstep)
    shortest, is_shortest = find_shortest(small, rules, tested, effort)
    return make_counterexample(
        rules,
        engine,
        shortest,
        setting=setting.name,
        dialect=setting.dialect,
        found_by="search",
        seed=seed,
        num_actions_found=num_found,
        is_shortest=is_shortest,
    )


def _simplify(engine: Engine, plan: Plan, setting: Setting, trial: Trial) -> tuple[Setting, Trial]:
    """Takes out of a drawn setting what a run does not need to fail: what is left says why.

    One field may be needed by another, so they are gone through until nothing changes.
    """
    name, before = f"{setting.name}, simplified", None
    while setting is not before:
        before = setting
        for change in _unusual_fields(setting.scheduler):
            with suppress(ConfigError):
                config = attrs.evolve(setting.scheduler, **change)
                simpler = attrs.evolve(setting, name=name, scheduler=config)
                again = _fail_again(engine, plan, simpler, trial)
                setting, trial = (setting, trial) if again is None else (simpler, again)
    return setting, trial


def _fail_again(engine: Engine, plan: Plan, setting: Setting, trial: Trial) -> Trial | None:
    """The same run in another setting, if it fails there no later and in the same way.

    Raises `ConfigError` if it cannot happen there.
    """
    rules, wanted = make_rules(engine, setting, lockstep=plan.lockstep), names_to_break(trial)
    environment_of(trial.actions, rules).check_fits(setting.scheduler)
    again = run_for(rules, engine, trial.actions, wanted)
    fails = not wanted.isdisjoint(breach.name for breach in again.breaches)
    return again if fails and len(again.steps) <= len(trial.steps) else None


def _unusual_fields(config: SchedulerConfig) -> Iterator[dict[str, Any]]:
    """Yields each field that is not as usual, with the value that is."""
    for place in attrs.fields(SchedulerConfig):
        usual: Any = place.default
        if isinstance(usual, str | int) and getattr(config, place.name) != usual:
            yield {place.name: usual}
