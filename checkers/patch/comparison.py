"""Both sides of a change do the same things; what differs is shrunk, and filed.

Entry point: `Comparison.run`. The engine walks, round by round, with the same seeds on both sides;
after the first round it is led along the states of small settings, of those first in which the
change can show. A failing run of one side is repeated on the other: what breaks on head alone was
introduced, what breaks on base alone is fixed. Every shrunk run has been repeated on both sides.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from attrs import define, field, frozen

from checkers.counterexample import Counterexample, StepDocument
from checkers.patch.conditions import BOTH, Condition
from checkers.patch.operands import Operand
from checkers.patch.protocol import (
    Attempt,
    Led,
    RunReport,
    pack_actions,
    unpack,
)
from checkers.patch.reach import Lack, Lines
from checkers.patch.rounds import Rounds
from checkers.patch.side import Death, Refused, Side, SideDied
from checkers.run import Breach
from checkers.shrink import Effort, shrink
from checkers.trial import TraceStep, Trial
from spec.actions import Action

LEAD_SHARE, WALK_SHARE, FAILING_SHARE = 0.3, 0.9, 0.5
"""Of the time: until when the engine is led, until when it walks, and until when it does if
something is to be shrunk."""
MAX_TRIED = 8
"""Failing runs of a rule that are repeated on the other side."""
MAX_DEATHS = 3
"""Of one side; then it is not started again."""
SLACK_S = 20.0
"""What a process may need beyond its time to notice that it is over."""
Actions = tuple[Action, ...]
Kind = Literal["introduced", "fixed", "there before"]
OLD: Kind = "there before"
DIFFERS = Breach("differs_from_base", "Head decides as base does.", ())


@frozen
class Example:
    """A failing run, and what the other side makes of it."""

    kind: Kind
    counterexample: Counterexample
    reached: tuple[tuple[str, int, int], ...]
    """Changed lines that the run reaches: file, line, and the last step that does."""


@frozen
class Difference:
    """A run that breaks nothing, on which the sides decide differently at its last step."""

    setting: int
    number: int | None
    """Of the walk that showed it."""
    base: tuple[StepDocument, ...]
    head: tuple[StepDocument, ...]
    decisions: tuple[Any, Any]
    """What base and head decide last, without the names of blocks."""


@frozen
class TimeBudget:
    """How long it may take, once both sides are imported."""

    seconds: float = 60.0
    extra_seconds: float = 180.0
    """More, for a change with which nothing is wrong, if it takes that to walk enough."""


@define
class Found:
    """What was looked at, and what came of it."""

    num_walks: Counter[str] = field(factory=Counter)
    """Those that were not cut off by the time, by side."""
    num_failing: Counter[str] = field(factory=Counter)
    num_rounds: int = 0
    """Of walks, that were not cut off."""
    num_wanted: int = 0
    """How many rounds there should be."""
    seconds: float = 0.0
    """The time there was for all of it."""
    num_drawn: int = 0
    """Settings drawn at random in which a side walked."""
    touched: list[int] = field(factory=list)
    """Settings, by their places, in which a walk touched the change."""
    num_states: int = 0
    """To which head was led."""
    num_states_alike: int = 0
    """To which both were led, and decided as the specification."""
    num_led: int = 0
    """Settings that were led to an end."""
    num_alike: int = 0
    """Walks that broke nothing, and on which both sides decided the same."""
    num_differing: int = 0
    """Walks that broke nothing, and differed."""
    examples: list[Example] = field(factory=list)
    deaths: list[Death] = field(factory=list)
    moody: dict[str, str] = field(factory=dict)
    """Why runs of a side cannot be repeated."""
    refused: str = ""
    """Why head cannot be imported."""
    difference: Difference | None = None
    missing: Lines = field(factory=dict)
    """Lines of both sides that nothing reached."""
    absent: dict[str, dict[Operand, dict[str, None]]] = field(factory=dict)
    """By file, what was nothing whenever its line ran, and how it looked; or nobody came there."""
    one_way: dict[str, dict[Condition, frozenset[bool]]] = field(factory=dict)
    """By file, the conditions that have not gone both ways, and those that they went."""
    interrupted_by: str = ""


class Comparison:
    """Two processes that are led through the same."""

    def __init__(
        self,
        base: Side,
        head: Side,
        budget: TimeBudget,
        say: Callable[[str], None],
    ) -> None:
        self.base = base
        self.head = head
        self.say = say
        self.settings = head.job.settings
        self.rounds = Rounds(head.job)
        self.found = Found(
            missing={**base.job.lines, **head.job.lines},
            num_wanted=self.rounds.num_wanted,
            seconds=budget.seconds,
        )
        for path, operands in {**base.job.operands, **head.job.operands}.items():
            self.found.absent[path] = {operand: {} for operand in operands}
        for path, conditions in {**base.job.conditions, **head.job.conditions}.items():
            self.found.one_way[path] = dict.fromkeys(conditions, frozenset())
        self.started = time.monotonic()
        self.seconds = budget.seconds
        self.extra_seconds = budget.extra_seconds
        self.failing: dict[str, list[RunReport]] = {"base": [], "head": []}
        self.differing: list[RunReport] = []
        # Settings drawn at random in which a side has walked.
        self.drawn: set[int] = set()
        # Whether both processes have loaded their engine.
        self.has_both = False

    def run(self) -> Found:
        """Does all of it. Raises `HarnessError` if base cannot be imported."""
        try:
            self._load()
            self.started = time.monotonic()  # An import has a limit of its own.
            if self.has_both:
                self._walk(1)  # It tells where the change can show.
                self._lead()
                self._walk(self.head.job.num_walks)
                self._walk_longer()
        except KeyboardInterrupt:
            self._stop()
        except _Over:
            pass  # A side is gone; what was found until then is filed.
        if self.has_both:
            self._file()
        return self.found

    def _stop(self) -> None:
        """Ends the looking at Ctrl-C. Both are asked no more than what is to be filed takes."""
        self.found.interrupted_by = "Ctrl-C"
        self.seconds = 0.0
        if self.has_both and any(self.failing.values()):
            with suppress(SideDied, Refused):
                self.has_both = False
                for side in (self.base, self.head):
                    side.close()
                    side.start()
                    side.load()
                self.has_both = True

    def close(self) -> None:
        """Ends both processes."""
        for side in (self.base, self.head):
            side.close()

    # ---- looking ---------------------------------------------------------------------------------

    def _load(self) -> None:
        self.say("importing both")
        try:
            self._note_missing(self.base, self.base.load())
        except SideDied as died:
            raise Refused(f"base {died.death.how} while it was imported") from None
        except Refused as refused:
            sentence = str(refused).splitlines()[0]
            raise Refused(f"base cannot be imported: {sentence}; mend it first") from None
        try:
            self._note_missing(self.head, self.head.load())
            self.has_both = True
        except SideDied as died:
            self.found.deaths.append(died.death)
        except Refused as refused:
            self.found.refused = str(refused)

    def _lead(self) -> None:
        """Leads both along the states of small settings, first of those that touch the change."""
        if not self.head.job.lockstep:
            return
        touched = self.rounds.touched
        for place in sorted(range(len(self.settings)), key=lambda place: place not in touched):
            setting = self.settings[place]
            seconds = self._left(LEAD_SHARE)
            if "lead" not in setting.used_by or seconds <= 0:
                continue
            self.say(f"leading both through {setting.name}")
            answers = self._both("lead", seconds, setting=place)
            num_states = dict.fromkeys(("base", "head"), 0)
            for name, answer in answers.items():
                led = unpack(answer["led"], Led)
                num_states[name] = led.num_states
                if led.failing is not None:
                    self._note_failing(name, led.failing)
                self._note_missing(self._side(name), answer["missing"])
                if name == "head":
                    self.found.num_states += led.num_states
                    self.found.num_led += led.is_complete
            self.found.num_states_alike += min(num_states.values())

    def _walk_longer(self) -> None:
        """Goes on to as many rounds as there should be, if nothing is wrong so far."""
        is_wrong = self.failing["head"] or self.found.deaths
        if self.extra_seconds and self.found.num_rounds < self.rounds.num_wanted and not is_wrong:
            self.seconds += self.extra_seconds
            self.found.seconds = self.seconds
            self._walk(self.rounds.num_wanted)

    def _walk(self, limit: int) -> None:
        """Rounds of walks, one in each setting where the change can show, alike on both sides.

        So many in all, as far as there is time for; 0 is no limit.
        """
        while not 0 < limit <= self.found.num_rounds:
            seconds, number = self._left(self._walk_share()), self.found.num_rounds
            places = self.rounds.choose(number)
            if seconds <= 0 or not places:
                return
            walks: dict[tuple[str, int], RunReport] = {}

            def note(side: str, kind: str, value: Any, walks: Any = walks) -> None:
                if kind == "walk":
                    report = unpack(value, RunReport)
                    walks[side, report.setting] = report

            self.say(
                f"walking: {self.found.num_walks['head']:,} walks of head, "
                f"{len(self.failing['head'])} failed"
            )
            is_full = self.rounds.is_full(number)
            answers = self._both(
                "walk", seconds, note, number=number, settings=places, is_watched=is_full
            )
            for name, missing in answers.items():
                self._note_missing(self._side(name), missing)
            self._note_walks(walks)
            self.rounds.note([place for (_, place), walk in walks.items() if walk.is_touching])
            self.found.touched = list(self.rounds.touched)
            self.drawn.update(place for _, place in walks if place >= len(self.settings))
            self.found.num_drawn = len(self.drawn)
            if not any(walk.is_cut for walk in walks.values()):
                self.found.num_rounds += 1

    def _walk_share(self) -> float:
        is_enough = self.found.num_rounds >= self.rounds.num_wanted
        has_more = is_enough and (self.failing["base"] or self.differing)
        return FAILING_SHARE if self.failing["head"] or has_more else WALK_SHARE

    def _note_walks(self, walks: dict[tuple[str, int], RunReport]) -> None:
        walks = {place: walk for place, walk in walks.items() if not walk.is_cut}
        for (side, setting), walk in walks.items():
            self.found.num_walks[side] += 1
            if walk.moody or walk.breaches:
                self._note_failing(side, walk)
            elif side == "head":
                before = walks.get(("base", setting))
                if before is not None and before.digest == walk.digest:
                    self.found.num_alike += 1
                elif before is not None and before.digest:
                    self.found.num_differing += 1
                    self.differing.append(walk)

    def _note_failing(self, side: str, run: RunReport) -> None:
        if run.moody:
            self.found.moody[side] = run.moody
            return
        self.found.num_failing[side] += 1
        self.failing[side].append(run)

    def _note_missing(self, side: Side, missing: Any) -> None:
        """Keeps what no process of a side has reached yet."""
        lack: Lack = unpack(missing, Lack)
        self.found.missing |= {
            path: sorted(set(lack.lines.get(path, ())).intersection(self.found.missing[path]))
            for path in side.job.lines
        }
        for path in side.job.operands:
            before = self.found.absent[path]
            self.found.absent[path] = {
                row.operand: before[row.operand] | dict.fromkeys(row.values)
                for row in lack.operands.get(path, ())
                if row.operand in before
            }
        for path in side.job.conditions:
            seen = {row.condition: frozenset(row.ways) for row in lack.conditions[path]}
            ways = {c: gone | seen.get(c, BOTH) for c, gone in self.found.one_way[path].items()}
            self.found.one_way[path] = {c: gone for c, gone in ways.items() if gone != BOTH}

    # ---- filing ----------------------------------------------------------------------------------

    def _file(self) -> None:
        """Repeats failing runs on the other side, and shrinks one of each rule."""
        rules = [(name, side) for side in ("head", "base") for name in self._rules_of(side)]
        work: list[Callable[[int], None]] = [partial(self._file_rule, *rule) for rule in rules]
        work += [self._file_difference] if self.differing else []
        try:
            for place, file in enumerate(work):
                with suppress(_Died):  # It is a finding, and the next run may be another matter.
                    file(len(work) - place)
        except KeyboardInterrupt:
            self.found.interrupted_by = "Ctrl-C"
        except _Over:
            pass

    def _rules_of(self, side: str) -> list[str]:
        """The rules that its runs break first, the most frequent one first."""
        counts = Counter(run.breaches[0] for run in self.failing[side])
        return [name for name, _ in counts.most_common()]

    def _file_rule(self, name: str, side: str, num_left: int) -> None:
        """Files one run that breaks a rule: one that the other side passes, if there is one."""
        kind: Kind = "introduced" if side == "head" else "fixed"
        if any(name in _names_of(e) for e in self.found.examples if e.kind in {kind, OLD}):
            return  # It shows already, maybe along with another rule.
        runs = [run for run in self.failing[side] if run.breaches[0] == name]
        other = "base" if side == "head" else "head"
        failed_there = {(run.setting, run.number) for run in self.failing[other]}
        runs.sort(key=lambda run: ((run.setting, run.number) in failed_there, run.num_actions))
        for run in runs[:MAX_TRIED]:
            if name not in self._attempt(other, run.setting, run.actions).breaches:
                self._shrink_and_file(kind, side, run, num_left)
                return
        self._shrink_and_file(OLD, side, runs[0], num_left)

    def _shrink_and_file(self, kind: Kind, side: str, run: RunReport, num_left: int) -> None:
        """Shrinks a failing run, as long as the other side goes on passing it."""
        name, setting = run.breaches[0], run.setting
        other = {"introduced": "base", "fixed": "head"}.get(kind)

        def attempt(actions: list[Action]) -> Trial:
            tried = self._attempt(side, setting, tuple(actions))
            fails = name in tried.breaches and (
                other is None or name not in self._attempt(other, setting, tried.actions).breaches
            )
            return _trial(tried.actions, Breach(name, "", ()) if fails else None)

        self.say(f"{kind}: shrinking a run of {len(run.actions)} actions that breaks {name}")
        seconds = self._left(1.0) / (num_left + 1)
        small = shrink(
            _trial(run.actions, Breach(name, "", ())),
            attempt,
            self.head.job.setting(setting),
            Effort(seconds=seconds),
        )
        if small.is_interrupted:
            self.seconds = 0.0
        actions, is_shortest = self._shorten(side, setting, tuple(small.actions), attempt)
        answer = self._one(
            side,
            "describe",
            SLACK_S,
            setting=setting,
            actions=pack_actions(actions),
            seed=None if run.number is None else self.head.job.seed + run.number,
            num_actions=len(run.actions),
            is_shortest=is_shortest,
        )
        if answer["counterexample"] is None:
            self.found.moody[side] = f"a run that breaks {name} does not when it is repeated"
            return
        example = unpack(answer["counterexample"], Counterexample)
        reached = tuple((path, line, step) for path, line, step in answer["reached"])
        self.found.examples.append(Example(kind, example, reached))
        if small.is_interrupted:
            raise KeyboardInterrupt

    def _shorten(
        self, side: str, setting: int, actions: Actions, attempt: Callable[[list[Action]], Trial]
    ) -> tuple[Actions, bool]:
        """Looks breadth first for a shorter run, if there is time; it counts if it fails, too."""
        seconds = self._left(1.0) / 4
        if seconds <= 0 or not self.head.job.lockstep:
            return actions, False
        packed = pack_actions(actions)
        answer = self._one(
            side, "shorten", seconds, setting=setting, actions=packed, seconds=seconds
        )
        shorter = unpack(answer["actions"], Attempt).actions
        if len(shorter) < len(actions) and not attempt(list(shorter)).breaches:
            return actions, False
        return shorter, answer["is_shortest"]

    def _file_difference(self, num_left: int) -> None:
        """Shrinks a walk on which the sides decide differently, and breaks nothing."""
        walk = min(self.differing, key=lambda run: run.num_actions)
        setting, number = walk.setting, walk.number
        actions = tuple(
            unpack(
                self._one("head", "walked", SLACK_S, setting=setting, number=number), Attempt
            ).actions
        )

        def attempt(actions: list[Action]) -> Trial:
            head = self._attempt("head", setting, tuple(actions))
            base = self._attempt("base", setting, head.actions)
            for place, (one, other) in enumerate(zip(base.answers, head.answers, strict=False)):
                if one != other:
                    return _trial(head.actions[: place + 1], DIFFERS)
            return _trial(head.actions, None)

        self.say(f"shrinking a run of {len(actions)} actions on which head decides otherwise")
        first = attempt(list(actions))
        if not first.breaches:
            sentence = "walks that differ from the other side's do not when they are repeated"
            self.found.moody = dict.fromkeys(("base", "head"), sentence)
            return
        small = shrink(first, attempt, effort=Effort(seconds=self._left(1.0) / num_left))
        base, head = (
            self._one(
                side, "steps", SLACK_S, setting=setting, actions=pack_actions(tuple(small.actions))
            )
            for side in ("base", "head")
        )
        self.found.difference = Difference(
            setting,
            number,
            _unpack_steps(base),
            _unpack_steps(head),
            (base[-1]["decision"], head[-1]["decision"]),
        )

    # ---- asking ----------------------------------------------------------------------------------

    def _left(self, share: float) -> float:
        return self.started + share * self.seconds - time.monotonic()

    def _side(self, name: str) -> Side:
        return self.base if name == "base" else self.head

    def _attempt(self, side: str, setting: int, actions: Actions) -> Attempt:
        raw = self._one(side, "attempt", SLACK_S, setting=setting, actions=pack_actions(actions))
        attempt: Attempt = unpack(raw, Attempt)
        return attempt

    def _one(self, name: str, verb: str, limit_s: float, /, **values: Any) -> Any:
        """Asks one side. Raises `_Died` if that ends it."""
        side = self._side(name)
        try:
            return side.ask(verb, limit_s + self._slack(), **values)
        except SideDied as died:
            self._bury(side, died.death)
            raise _Died from None

    def _both(
        self,
        verb: str,
        seconds: float,
        on_line: Callable[[str, str, Any], None] | None = None,
        **values: Any,
    ) -> dict[str, Any]:
        """Asks both sides at once; of one that dies there is no answer."""
        values["seconds"] = seconds
        sides = (self.base, self.head)
        numbers = [side.send(verb, **values) for side in sides]
        answers = {}
        for side, number in zip(sides, numbers, strict=True):

            def note(kind: str, value: Any, name: str = side.name) -> None:
                if on_line is not None:
                    on_line(name, kind, value)

            try:
                answers[side.name] = side.collect(
                    number, verb, seconds + self._slack(), values, note
                )
            except SideDied as died:
                self._bury(side, died.death)
        return answers

    def _slack(self) -> float:
        return SLACK_S + 2 * self.head.job.engine_timeout

    def _bury(self, side: Side, death: Death) -> None:
        """Notes a death, and starts the side again; neither comes to that setting any more."""
        self.found.deaths.append(death)
        if death.setting is not None:
            self.rounds.closed.add(death.setting)
        side.close()
        side.start()
        try:
            missing = side.load()
        except (SideDied, Refused):
            self.has_both = False
            raise _Over from None
        self._note_missing(side, missing)
        if sum(d.side == side.name for d in self.found.deaths) >= MAX_DEATHS:
            raise _Over


class _Died(Exception):  # noqa: N818  (ends a part of the work)
    """A side has died, and is there again."""


class _Over(Exception):  # noqa: N818  (ends the work)
    """A side cannot go on."""


def _trial(actions: Actions, breach: Breach | None) -> Trial:
    """A run that happened elsewhere, as the shrinker takes it."""
    steps = [TraceStep(action, None, None) for action in actions]
    return Trial(steps, [] if breach is None else [breach])


def _unpack_steps(rows: Any) -> tuple[StepDocument, ...]:
    return tuple(unpack(row["step"], StepDocument) for row in rows)


def _names_of(example: Example) -> set[str]:
    return {breach.name for breach in example.counterexample.breaches}
