"""What becomes of a mutant: who notices it, or how much was looked at in vain.

Entry point: `Bench.judge`. Cheap checks come first, and the first that notices ends it. A mutant of
the specification is explored in small settings, as the specification is: under all invariants, with
the number of states and the witnesses that are pinned, and for loops in which nobody gets a token.
Then, in lockstep with our engine, it is led along the course of the setting; and at last recorded
runs of a real engine are held against it. A mutant of our engine is led along the courses alone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import attrs
from attrs import define, field, frozen

from checkers.configs import Setting
from checkers.explore import Budget, Explorer
from checkers.liveness import NAME as LIVENESS
from checkers.mutations.systematic.courses import Course, Courses, is_toured
from checkers.mutations.systematic.mutants import ROOT, Mutant, Patch, planted
from checkers.mutations.systematic.patience import HangError, expecting_progress
from checkers.validate import validate

Outcome = Literal["killed", "equal", "survived", "unreached"]
Checker = Literal["explore", "lockstep", "search", "validate"]
MAX_EXPLORED = 1000
"""States of a setting in which mutants of the specification are explored."""
RECORDINGS = ROOT / "tests" / "recordings"


@frozen(kw_only=True)
class Fate:
    """What became of a mutant."""

    outcome: Outcome
    """Killed: noticed. Equal: it shows the same at every action of every state of each setting that
    reaches it. Survived: nobody notices, but no such setting reaches it. Unreached: nothing does.
    """
    checker: Checker | None = None
    """Who noticed."""
    rule: str = ""
    """What broke: an invariant, `same_as_spec`, a number of states, a witness, a fault."""
    setting: str = ""
    """Where; of a recording, its name."""
    num_settings: int = 0
    """Seen whole, that reach it and show the same."""
    num_states: int = 0
    """In those."""
    cpu_s: float = 0.0


@define
class Bench:
    """A process's courses, and which statements they reach."""

    courses: Courses
    recordings: tuple[Path, ...] = ()
    """Runs of real engines, which the specification accepts."""
    reached: dict[tuple[Patch, str], bool] = field(factory=dict)
    """By wire and setting."""

    def judge(self, mutant: Mutant) -> Fate:
        """Lets one checker after the other look at a mutant."""
        started = time.process_time()
        fate = self._look(mutant)
        return attrs.evolve(fate, cpu_s=round(time.process_time() - started, 2))

    def _look(self, mutant: Mutant) -> Fate:
        toured: list[Course] = []
        is_reached = False
        for number, setting in enumerate(self.courses.settings):
            course = self._find_course(mutant, setting)
            # What only the explorer runs, to bring a state back, it runs in every setting.
            killer = _explore(mutant, setting) if course is not None or number == 0 else None
            if killer is None and course is not None:
                is_reached = True
                killer = _lead(mutant, course)
                toured += [course] if is_toured(setting) else []
            if killer is not None:
                return killer
        if mutant.side == "spec" and (killer := self._validate(mutant.patch)) is not None:
            return killer
        outcome: Outcome = "equal" if toured else "survived" if is_reached else "unreached"
        num_states = sum(course.num_states for course in toured)
        return Fate(outcome=outcome, num_settings=len(toured), num_states=num_states)

    def _find_course(self, mutant: Mutant, setting: Setting) -> Course | None:
        """The course of a setting, if it reaches what is edited."""
        key = mutant.wire, setting.name
        course = self.courses.get(setting)
        if key not in self.reached:
            self.reached[key] = course.reaches(mutant.side, mutant.wire)
        return course if self.reached[key] else None

    def _validate(self, patch: Patch) -> Fate | None:
        """Looks for a recording that a mutant of the specification rejects."""
        for path in self.recordings:
            rule = validate_under(patch, path)
            if rule:
                return _killed("validate", rule, path.name)
        return None


def find_recordings() -> tuple[Path, ...]:
    """The accepted recordings of this repository, short ones first; none where it is installed."""
    return tuple(sorted(RECORDINGS.glob("*.jsonl.gz"), key=lambda path: path.stat().st_size))


def _explore(mutant: Mutant, setting: Setting) -> Fate | None:
    if mutant.side != "spec" or (setting.num_states or MAX_EXPLORED + 1) > MAX_EXPLORED:
        return None
    rule = explore(mutant.patch, setting)
    return _killed("explore", rule, setting.name) if rule else None


def _lead(mutant: Mutant, course: Course) -> Fate | None:
    with planted(mutant.patch):
        difference = course.lead(mutant.side)
    if difference is None:
        return None
    checker: Checker = "lockstep" if is_toured(course.setting) else "search"
    return _killed(checker, difference.rule, course.setting.name)


def explore(patch: Patch, setting: Setting) -> str:
    """Explores a mutant of the specification; returns what breaks first, "" if nothing does."""
    with planted(patch):
        try:
            explorer = Explorer(setting)
            budget = Budget(states=(setting.num_states or 0) + 1)
            with expecting_progress(lambda: explorer.found.num_generated):
                found = explorer.run(budget)
        except HangError:
            return "engine_hangs"
        except Exception:  # noqa: BLE001  (a mutant raises whatever it likes)
            return "engine_raises"
    if found.breaches:
        return found.breaches[0].name
    if found.lasso is not None:
        return LIVENESS
    if found.wrong_count or not found.is_complete:
        return "num_states"
    return f"witness {found.missing_witnesses[0]}" if found.missing_witnesses else ""


def validate_under(patch: Patch, path: Path) -> str:
    """Holds a recording against a mutant of the specification; returns what breaks, "" if none."""
    events = [0]
    with planted(patch):
        try:
            with expecting_progress(lambda: events[-1]):
                rejection = validate(path, on_progress=events.append).rejection
        except HangError:
            return "engine_hangs"
        except Exception:  # noqa: BLE001  (a mutant raises whatever it likes)
            return "engine_raises"
    return "" if rejection is None else rejection.breaches[0].name


def _killed(checker: Checker, rule: str, setting: str) -> Fate:
    return Fate(outcome="killed", checker=checker, rule=rule, setting=setting)
