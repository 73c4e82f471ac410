"""The process in which one side of a change runs: it loads the engine, and does as it is told.

Entry point: `main`, run as `python -m checkers.patch.child` in a folder that holds the engine's
package. Requests come on standard input, answers go to standard output (`checkers.patch.protocol`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Any

import attrs
from attrs import define, field

from checkers.counterexample import make_counterexample, make_steps
from checkers.engines import ENGINES, Engine, hang_alarms, load_engine
from checkers.errors import EngineFault, HarnessError
from checkers.explore import Budget
from checkers.explore_engine import EngineExplorer, find_shortest
from checkers.liveness import run_lasso
from checkers.lockstep import view_output, view_results
from checkers.patch.conditions import Ways
from checkers.patch.protocol import (
    MEMORY_EXIT_CODE,
    Attempt,
    Job,
    Led,
    RunReport,
    pack,
    unpack,
    unpack_actions,
)
from checkers.patch.reach import Reach, Watched
from checkers.run import Run
from checkers.search import Plan, Search, Walker, make_rules
from checkers.shrink import Effort
from checkers.trial import Rules, Trial, run_trial
from spec.actions import Action
from spec.transition import Outcome, Transition

PROD_S = 0.2
"""How often it is looked whether the main thread still runs Python code."""
MIB = 1 << 20


def main() -> None:
    """Serves requests until there are no more."""
    # What an engine prints, or reads, is no part of the conversation.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    faulthandler.enable(all_threads=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    servant = Servant(answers)
    for line in requests:
        servant.serve(json.loads(line))


@define
class Servant:
    """An engine, and all that can be asked of it."""

    answers: IO[str]
    job: Job = field(init=False)
    engine: Engine = field(init=False)
    reach: Reach = field(init=False)
    ways: Ways = field(init=False)
    request_id: int = 0

    def serve(self, request: dict[str, Any]) -> None:
        """Answers one request."""
        self.request_id = request.pop("id")
        verbs: dict[str, Callable[..., Any]] = {
            verb.__name__: verb
            for verb in (
                self.hello,
                self.load,
                self.lead,
                self.walk,
                self.walked,
                self.attempt,
                self.shorten,
                self.describe,
                self.steps,
            )
        }
        try:
            self.say("done", verbs[request.pop("verb")](**request))
        except HarnessError as error:
            self.say("refused", self._explain(error))
        except MemoryError:
            os._exit(MEMORY_EXIT_CODE)
        except Exception:  # noqa: BLE001  (the other process reports it)
            self.say("bug", traceback.format_exc())

    def say(self, kind: str, value: Any) -> None:
        """Writes one line."""
        self.answers.write(json.dumps({"id": self.request_id, kind: value}) + "\n")
        self.answers.flush()

    # ---- verbs -----------------------------------------------------------------------------------

    def hello(self) -> None:
        """Is there."""

    def load(self, job: Any) -> Any:
        """Imports the engine, within the limits of the job."""
        self.job = unpack(job, Job)
        end_when_stuck(self.job.engine_timeout + 1)
        if self.job.memory_mib:
            limit = self.job.memory_mib * MIB
            with contextlib.suppress(ValueError, OSError):  # Some systems have no such limit.
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        sys.path.append(self.job.root)
        self.ways = Ways(self.job.conditions)
        sys.meta_path.insert(0, OnlyInside(_top_of(self.job), self.ways))
        self.reach = Reach(self.job.lines, self.job.operands)
        with self.reach.watching():
            self.engine = load_engine(self.job.engine, self.job.engine_timeout)
        _expect_origin(self.job)
        return self._missing()

    def lead(self, setting: int, seconds: float) -> Any:
        """Leads the engine along the states of a setting."""
        rules = self._rules(setting)
        environment = self.job.setting(setting).environment
        explorer = EngineExplorer(rules, self._watched_engine(), environment)
        found = explorer.run(Budget(seconds=seconds))
        failing = None
        if found.failing:
            failing = self._report_failure(setting, run_trial(rules, self.engine, found.failing))
        elif found.lasso is not None:
            # It goes round where the specification does not, so a plain run shows a difference.
            failing = self._report_failure(setting, run_lasso(rules, self.engine, found.lasso))
        led = Led(num_states=found.num_unique, is_complete=found.is_complete, failing=failing)
        return {"led": pack(led), "missing": self._missing()}

    def walk(self, number: int, settings: list[int], seconds: float, *, is_watched: bool) -> Any:
        """Walks once in each of some settings; returns what is still to be reached."""
        deadline = time.monotonic() + seconds
        for setting in settings:
            self.say("at", setting)
            self.say("walk", pack(self._watch(setting, number, deadline, is_watched)))
        return self._missing()

    def walked(self, setting: int, number: int) -> Any:
        """The actions of a walk."""
        walker = self._make_walker(setting, number, time.monotonic() + self.job.engine_timeout)
        with hang_alarms():
            walker.fails()
        return pack(Attempt(actions=tuple(walker.actions), breaches=(), answers=()))

    def attempt(self, setting: int, actions: Any) -> Any:
        """Runs actions."""
        trial = run_trial(self._rules(setting), self.engine, unpack_actions(actions))
        return pack(
            Attempt(
                actions=tuple(trial.actions),
                breaches=tuple(breach.name for breach in trial.breaches),
                answers=tuple(
                    _digest(decision(step.outcome))
                    for step in trial.steps
                    if step.outcome is not None
                ),
            )
        )

    def shorten(self, setting: int, actions: Any, seconds: float) -> Any:
        """Looks breadth first for a shorter run that breaks the same rules."""
        rules = self._rules(setting)
        trial = run_trial(rules, self.engine, unpack_actions(actions))
        shortest, is_shortest = find_shortest(trial, rules, self.engine, Effort(seconds=seconds))
        return {
            "actions": pack(Attempt(actions=tuple(shortest.actions), breaches=(), answers=())),
            "is_shortest": is_shortest,
        }

    def describe(
        self, setting: int, actions: Any, seed: int | None, num_actions: int, is_shortest: bool
    ) -> Any:
        """Writes down a failing run, and in which step it last reached each changed line."""
        rules, chosen = self._rules(setting), unpack_actions(actions)
        trial = run_trial(rules, self.engine, chosen)
        if not trial.breaches:
            return {"counterexample": None}
        example = make_counterexample(
            rules,
            self.engine,
            trial,
            setting=self.job.setting(setting).name,
            dialect=self.job.setting(setting).dialect,
            found_by="patch",
            seed=seed,
            num_actions_found=num_actions,
            is_shortest=is_shortest,
        )
        breaches = tuple(
            attrs.evolve(breach, detail=shorten_paths(breach.detail, self.job.folder))
            for breach in example.breaches
        )
        return {
            "counterexample": pack(attrs.evolve(example, breaches=breaches)),
            "reached": self._find_last_steps(setting, trial.actions),
        }

    def steps(self, setting: int, actions: Any) -> Any:
        """What the engine decided at each action, in full."""
        trial = run_trial(self._rules(setting), self.engine, unpack_actions(actions))
        return [
            {"step": pack(document), "decision": decision(step.outcome or Outcome())}
            for document, step in zip(make_steps(trial), trial.steps, strict=True)
        ]

    # ---- helpers ---------------------------------------------------------------------------------

    def _missing(self) -> Any:
        return pack(attrs.evolve(self.reach.missing(), conditions=self.ways.missing()))

    def _explain(self, error: HarnessError) -> str:
        """What is wrong; of a failed import, the reason and the engine's part of the traceback."""
        cause = error.__cause__
        if cause is None:
            return str(error)
        frames = traceback.extract_tb(cause.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(self.job.folder)]
        lines = [*traceback.format_list(own), *traceback.format_exception_only(cause)]
        trace = shorten_paths("".join(lines), self.job.folder).rstrip()
        return f"{type(cause).__name__}: {cause}\n{trace}"

    def _rules(self, setting: int) -> Rules:
        return make_rules(self.engine, self.job.setting(setting), lockstep=self.job.lockstep)

    def _make_walker(
        self,
        setting: int,
        number: int,
        deadline: float,
        on_step: Callable[[Transition], None] | None = None,
        engine: Engine | None = None,
    ) -> Walker:
        plan = Plan(length=self.job.length, seed=self.job.seed, lockstep=self.job.lockstep)
        place = self.job.setting(setting)
        search = Search(self.engine.name, [place.name], plan, deadline=deadline)
        return Walker(engine or self.engine, place, plan, number, search, on_step=on_step)

    def _watch(self, setting: int, number: int, deadline: float, is_watched: bool) -> RunReport:
        # To look for lines that nothing reaches takes as long as all the rest.
        if not is_watched:
            return self._walk(setting, number, deadline)
        self.reach.ask()
        report = self._walk(setting, number, deadline, self._watched_engine())
        return attrs.evolve(report, is_touching=self.reach.answer())

    def _watched_engine(self) -> Engine:
        return attrs.evolve(self.engine, make=partial(Watched, self.engine.make, self.reach))

    def _walk(
        self, setting: int, number: int, deadline: float, engine: Engine | None = None
    ) -> RunReport:
        digest = hashlib.sha256()

        def note(seen: Transition) -> None:
            digest.update(repr((seen.action, decision(seen.outcome))).encode())

        walker = self._make_walker(setting, number, deadline, note, engine)
        with hang_alarms():
            fails = walker.fails()
        if fails:
            try:
                return self._report_failure(setting, walker.trial(), number)
            except HarnessError as error:
                return RunReport(setting=setting, number=number, moody=str(error))
        return RunReport(
            setting=setting,
            number=number,
            num_actions=len(walker.actions),
            digest=digest.hexdigest(),
            is_cut=time.monotonic() > deadline,
        )

    def _report_failure(self, setting: int, trial: Trial, number: int | None = None) -> RunReport:
        moody = "" if trial.breaches else "a run that fails once does not when it is repeated"
        return RunReport(
            setting=setting,
            number=number,
            moody=moody,
            num_actions=len(trial.steps),
            breaches=tuple(breach.name for breach in trial.breaches),
            actions=tuple(trial.actions),
        )

    def _find_last_steps(self, setting: int, actions: list[Action]) -> list[tuple[str, int, int]]:
        """File and line of each changed line that a run reaches, and the last step that does.

        Step 0 builds the engine.
        """
        place = self.job.setting(setting)
        last: dict[tuple[str, int], int] = {}

        @contextlib.contextmanager
        def noting(number: int) -> Iterator[None]:
            reach = Reach(self.job.lines)
            try:
                with reach.watching():
                    yield
            finally:
                last.update(dict.fromkeys(reach.reached(), number))

        with contextlib.suppress(EngineFault), hang_alarms():
            with noting(0):
                run = Run(place.scheduler, self.engine.build(place.scheduler), with_worker=False)
            for number, action in enumerate(actions, 1):
                with noting(number):
                    run.step(action)
        return [(path, line, number) for (path, line), number in sorted(last.items())]


def shorten_paths(text: str, folder: str) -> str:
    """Leaves out of a traceback where the tree is, which is another folder each time."""
    return text.replace(f"{folder}{os.sep}", "")


def decision(outcome: Outcome) -> dict[str, Any]:
    """What an engine decided: its answer, but for the names of blocks."""
    output = None if outcome.output is None else view_output(outcome.output, {})
    return {"output": output, "results": view_results(outcome.results)}


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def end_when_stuck(seconds: float) -> None:
    """Ends this process, with a traceback, when its main thread runs no Python code for so long.

    A call that hangs in Python is interrupted by `checkers.engines`; one in C code cannot be.
    """

    def put_off(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # Without memory, no thread can be started.
            faulthandler.dump_traceback_later(seconds, exit=True)

    def prod() -> None:
        while True:
            time.sleep(PROD_S)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    put_off()
    signal.signal(signal.SIGUSR1, put_off)
    threading.Thread(target=prod, daemon=True).start()


@define
class OnlyInside:
    """Looks for the modules of a package in its folders, and nowhere else.

    An installation that can be edited would put in its own for one that a change has removed.
    """

    package: str
    ways: Ways
    """Of which modules note theirs."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> Any:
        """Finds a module of the package; raises `ModuleNotFoundError` if there is none."""
        if name.partition(".")[0] != self.package:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None and path is not None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return self.ways.watch(spec)


def _top_of(job: Job) -> str:
    """The top-level package of a job's engine."""
    return ENGINES.get(job.engine, job.engine).partition(":")[0].partition(".")[0]


def _expect_origin(job: Job) -> None:
    """Raises `HarnessError` if Python has found another copy of the engine than this side's."""
    top = _top_of(job)
    module = sys.modules[top]
    places = [module.__file__] if module.__file__ else list(module.__path__)
    if not all(Path(str(place)).is_relative_to(job.folder) for place in places):
        raise HarnessError(f"{top} was imported from {places[0]}, which is not the tree to check")


if __name__ == "__main__":
    main()
