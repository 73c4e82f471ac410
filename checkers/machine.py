"""A Hypothesis state machine over any engine: random actions, every invariant, and lockstep.

Entry point: `scheduler_machine`. In a test file one line is enough:

    TestMyScheduler = scheduler_machine("my_module:MyScheduler").TestCase
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import NoReturn, TypeVar

import hypothesis
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import integers, lists, runner, sampled_from

from checkers.commands import describe_setting
from checkers.configs import Setting, load_settings
from checkers.counterexample import make_steps
from checkers.engines import Engine, EngineFactory, hang_alarms, load_engine
from checkers.errors import EngineFault, HarnessError
from checkers.lockstep import Lockstep
from checkers.mixed import find_setting
from checkers.run import Breach, Judge, Run, select_invariants
from checkers.table import describe_breach, table_of
from checkers.trial import TraceStep, Trial, breach_of_fault
from spec.actions import Action, FinishRequests, Schedule, UpdateFromOutput
from spec.transition import Transition

Answer = TypeVar("Answer")

# A finding tells what the engine did; pytest need not show which lines of this file raised it.
__tracebackhide__ = operator.methodcaller("errisinstance", AssertionError)


def scheduler_machine(
    engine: str | EngineFactory,
    settings: Iterable[str | Setting] | None = None,
    *,
    lockstep: bool = True,
    time_limit_s: float = 10.0,
) -> type[SchedulerMachine]:
    """Builds a state machine that checks `engine`; its `TestCase` is what pytest runs.

    `engine` is a name as on the command line, or a callable that takes a `SchedulerConfig`.
    `settings` are names, files or `Setting`s; without any, those that are `used_by` the machine.
    `lockstep` compares the engine with the specification, too. A call that takes longer than
    `time_limit_s` is a hang. How many runs of how many actions: the Hypothesis profile, or
    `settings(Machine.TestCase.settings, max_examples=1000, stateful_step_count=100)`.
    Raises `HarnessError` if there is no such engine or setting.
    """
    under_test = _find_engine(engine, time_limit_s)
    menu = _find_settings(settings)

    class EngineMachine(SchedulerMachine):
        def __init__(self) -> None:
            super().__init__(under_test, menu, lockstep=lockstep and not under_test.is_spec)

    EngineMachine.TestCase.settings = hypothesis.settings(
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        # The first finding is enough, and explains itself; which of our lines it runs through says
        # nothing about the engine.
        report_multiple_bugs=False,
        phases=set(hypothesis.settings().phases) - {hypothesis.Phase.explain},
    )
    return EngineMachine


def _find_engine(engine: str | EngineFactory, time_limit_s: float) -> Engine:
    if isinstance(engine, str):
        return load_engine(engine, time_limit_s)
    return Engine(getattr(engine, "__qualname__", repr(engine)), engine, time_limit_s)


def _find_settings(settings: Iterable[str | Setting] | None) -> dict[str, Setting]:
    if settings is None:
        chosen = [setting for setting in load_settings().values() if "machine" in setting.used_by]
    else:
        chosen = [find_setting(one) if isinstance(one, str) else one for one in settings]
    if not chosen:
        raise HarnessError("settings is empty, so nothing would be checked; name at least one")
    return {setting.name: setting for setting in chosen}


# ---- what a rule draws: small integers, the simplest first ---------------------------------------

SETTINGS = runner().flatmap(lambda machine: sampled_from(list(machine.settings)))
SHAPE = integers(0, 15)
"""A place of the menu of arrivals, counted round it."""
ARRIVALS = lists(SHAPE, max_size=4)
TOKENS = integers(0, 2**24 - 1)
"""What the requests of a step sample, and who is given drafts: the digits of the number."""
CLIENT = integers(0, 15)
"""Who leaves: a place in the order of arrival. Mostly nobody has it."""
CONTROL = integers(0, 15)
"""What the engine is told beside requests, counted round the menu."""


class SchedulerMachine(RuleBasedStateMachine):
    """Leads an engine through what may happen in one setting, and judges every transition."""

    def __init__(self, engine: Engine, settings: dict[str, Setting], *, lockstep: bool) -> None:
        super().__init__()
        self.engine = engine
        self.settings = settings
        self.with_lockstep = lockstep
        self.unjudged: list[Transition] = []
        self.trial = Trial()
        """What was judged so far."""
        self.at_end = ExitStack()

    # ---- rules: what may happen ------------------------------------------------------------------

    @initialize(setting=SETTINGS, shapes=ARRIVALS)
    def begin(self, setting: str, shapes: list[int]) -> None:
        """Builds a fresh engine for one of the settings; the first requests arrive."""
        self.at_end.enter_context(hang_alarms())
        self.setting = self.settings[setting]
        config = self.setting.scheduler
        self.judge = Judge(config, select_invariants(self.setting.claims))
        self.at_end.callback(self._tell_statistics)
        self.lockstep = Lockstep(config, explain=True) if self.with_lockstep else None
        bounds = self.setting.environment
        self.run = self._ask(lambda: Run(config, self.engine.build(config), bounds))
        for shape in shapes:
            self._arrive(shape)

    @rule(shapes=ARRIVALS, tokens=TOKENS)
    def engine_step(self, shapes: list[int], tokens: int) -> None:
        """Requests arrive, a step is scheduled, the oldest one returns: what engines do most."""
        for shape in shapes:
            self._arrive(shape)
        if len(self.run.model.in_flight) < self.run.model.bounds.max_in_flight:
            self._do(Schedule())
        self._deliver(tokens)

    @rule(tokens=TOKENS)
    def idle(self, tokens: int) -> None:
        """Nobody wants anything; the engine goes on by itself, and steps even without work.

        Always possible, so that no state is the end of a run.
        """
        if not self.run.model.in_flight:
            self._do(Schedule())
        self._deliver(tokens)

    @precondition(lambda self: bool(self.run.model.arrivals()))
    @rule(shape=SHAPE)
    def add_request(self, shape: int) -> None:
        """A request arrives."""
        self._arrive(shape)

    @precondition(lambda self: self.run.model.may_schedule())
    @rule()
    def schedule(self) -> None:
        """A step is scheduled, and stays in flight."""
        self._do(Schedule())

    @precondition(lambda self: bool(self.run.model.in_flight))
    @rule(tokens=TOKENS)
    def deliver(self, tokens: int) -> None:
        """The oldest step in flight returns."""
        self._deliver(tokens)

    @precondition(lambda self: bool(self.run.model.aborts()))
    @rule(client=CLIENT, other=CLIENT)
    def abort(self, client: int, other: int) -> None:
        """A client disconnects, or two at once, of whom one may have ended; mostly none does."""
        live, ended = self.run.model.live, self.run.model.ended
        for name in list(live)[client : client + 1]:
            others = [one for one in (*live, *ended) if one != name]
            self._do(FinishRequests((*others[other : other + 1], name)))

    @precondition(lambda self: bool(self.run.model.controls()))
    @rule(control=CONTROL)
    def control(self, control: int) -> None:
        """The engine is paused or goes on, a grammar is compiled, or the prefix cache is reset.

        A call may be late, and name a request that has ended.
        """
        controls = [*self.run.model.controls(), *self.run.model.late_controls()[-2:]]
        self._do(controls[control % len(controls)])

    def _arrive(self, shape: int) -> None:
        arrivals = self.run.model.arrivals()
        if arrivals:
            self._do(arrivals[shape % len(arrivals)])

    def _deliver(self, tokens: int) -> None:
        sampled, drafts = {}, {}
        for name in self.run.model.live_samplers():
            menu = self.run.model.rows(name)
            # Half the digits stand for the first token, or most requests would soon have stopped.
            tokens, digit = divmod(tokens, 2 * len(menu))
            sampled[name] = menu[digit] if digit < len(menu) else menu[0]
        for name, new_drafts in self.run.model.new_drafts().items():
            tokens, digit = divmod(tokens, 2)
            if not digit:
                drafts[name] = new_drafts
        self._do(UpdateFromOutput(sampled, drafts))

    def _do(self, action: Action) -> None:
        self.unjudged.append(self._ask(lambda: self.run.step(action), action))

    def _ask(self, call: Callable[[], Answer], action: Action | None = None) -> Answer:
        """What the engine answers; if it fails, that is a finding, and ends the run."""
        try:
            return call()
        except EngineFault as fault:
            breach = breach_of_fault(fault)
        # Not in the handler, or Hypothesis and pytest would tell of two exceptions. What was wrong
        # before comes first, since it may be why.
        self.everything_holds()
        if action is not None:
            self.trial.steps.append(TraceStep(action, None, None))
        return self._fail([breach])

    # ---- what must hold --------------------------------------------------------------------------

    @invariant()
    def everything_holds(self) -> None:
        """Every new transition keeps every invariant, and is what the specification does."""
        while self.unjudged:
            seen = self.unjudged.pop(0)
            self.trial.steps.append(TraceStep(seen.action, seen.outcome, seen.after))
            breaches = list(self.judge.breaches(seen))
            difference = None if self.lockstep is None else self.lockstep.step(seen)
            if difference is not None:
                breaches.append(difference)
            if breaches:
                self._fail(breaches)
            self.judge.look(seen)

    def _fail(self, breaches: list[Breach]) -> NoReturn:
        self.trial.breaches = breaches
        raise AssertionError(describe_finding(self.trial, self.engine.name, self.setting))

    def _tell_statistics(self) -> None:
        """Lets `--hypothesis-show-statistics` say what the runs have reached."""
        for name in self.judge.witnesses:
            hypothesis.event(f"reached {name}")
        for name in self.judge.unobserved:
            hypothesis.event(f"could not check {name}")

    def teardown(self) -> None:
        """Ends a run."""
        self.at_end.close()


# ---- a finding as text ---------------------------------------------------------------------------


def describe_finding(trial: Trial, engine: str, setting: Setting) -> str:
    """Says which rule is broken, where, by which run, and how."""
    breach = trial.breaches[0]
    where = f"engine {engine}, setting {setting.name}: {describe_setting(setting)}"
    run = table_of(make_steps(trial), setting.scheduler.num_blocks)
    lines = [where, *run, *describe_breach(trial.breaches)]
    return "\n  ".join([f"error[{breach.name}]: {breach.rule}", *lines])
