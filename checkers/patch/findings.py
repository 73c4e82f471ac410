"""What a comparison has found, as a report takes it: a check for each finding.

Entry points: `Findings.report`; `report_nothing` if nothing of the engine changes, and
`report_same_code` if none of its code does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from checkers.commands import describe_setting, make_line, try_to_write
from checkers.lockstep import NAMELESS
from checkers.patch.changed_lines import ChangedFile
from checkers.patch.comparison import Difference, Example, Found
from checkers.patch.protocol import Job
from checkers.patch.side import Death
from checkers.patch.sources import Sources
from checkers.report import Check, describe_origin, describe_size
from checkers.run import Verdict
from checkers.table import describe_action, table_of
from spec.registry import INVARIANTS

MIN_WHOLE = 0.5
"""The share of walks that must get to their end. What broke before ends many walks early, and what
is behind them was not looked at."""
FAILS_ON = {"introduced": "on head only", "fixed": "on base only", "there before": "on both"}
MAX_LINES = 20
"""Source lines printed of one kind."""
Vain = tuple[int, str, str]
"""A line, what on it had no chance to show what it does, and what it looked like."""
DEATH_RULE = "No call of an engine ends its process, or hangs for good."


def report_nothing(sources: Sources, job: Job) -> Check:
    """A change that leaves the engine alone, and what it imports: there is nothing to walk for."""
    imported = _describe_imported(sources)
    beside = "" if imported else ", nor anything that it imports"
    return Check(
        title=f"patch  {job.engine}  {sources.name}",
        verdict="undetermined" if imported else "holds",
        lines=(
            make_line("changed", f"nothing of the engine ({sources.package}){beside}"),
            *_describe_outside(sources),
        ),
        facts={"kind": "summary", "outside": list(sources.outside)},
        findings=imported,
    )


def report_same_code(sources: Sources, files: list[ChangedFile], job: Job) -> Check:
    """A change of comments and docstrings alone: no run can tell it."""
    names = ", ".join(file.path for file in files)
    imported = _describe_imported(sources)
    return Check(
        title=f"patch  {job.engine}  {sources.name}",
        verdict="undetermined" if imported else "holds",
        lines=(
            make_line("changed", f"nothing but comments, docstrings and layout, in {names}"),
            make_line("walks", "none: no behaviour changed, for the code is the same without them"),
            *_describe_outside(sources),
        ),
        facts={
            "kind": "summary",
            "package": sources.package,
            "changed_files": [file.path for file in files],
            "outside": list(sources.outside),
            "num_changed_lines": 0,
        },
        findings=imported,
    )


def _describe_imported(sources: Sources) -> tuple[str, ...]:
    """What changes beside the engine, and may change what it does."""
    names = ", ".join(sources.imported)
    if not names:
        return ()
    sentence = (
        f"the engine imports {names}, which changes, too, and is not part of it: "
        "both sides ran with what is installed, or in the checkout"
    )
    return (sentence,)


def _describe_outside(sources: Sources) -> Iterator[str]:
    if sources.outside:
        names = ", ".join(sources.outside)
        yield make_line("not checked", f"not part of the engine ({sources.package}): {names}")


@frozen
class Findings:
    """What was compared, and what came of it."""

    sources: Sources
    files: list[ChangedFile]
    job: Job
    found: Found

    def report(self, out: Path) -> Iterator[Check]:
        """Yields what was looked at, then each finding; counterexamples are written to `out`."""
        yield self._summary()
        for example in self.found.examples:
            yield self._example(example, out)
        for death in self.found.deaths:
            yield self._death(death)
        yield from self._import()
        yield from self._moods()
        if self.found.difference is not None:
            yield self._difference(self.found.difference)
        yield from self._missing()
        yield from self._vain("operand", "that has more", self._describe_vain(self._find_absent))
        yield from self._vain(
            "condition",
            "that leads the other way, or make a guard that never fires an assertion",
            self._describe_vain(self._find_one_way),
        )

    # ---- what was looked at ----------------------------------------------------------------------

    def _summary(self) -> Check:
        found, job = self.found, self.job
        lack = (*self._describe_lack(), *_describe_imported(self.sources))
        is_enough = found.refused or not (lack or found.interrupted_by)
        verdict: Verdict = "holds" if is_enough else "undetermined"
        return Check(
            title=f"patch  {job.engine}  {self.sources.name}",
            verdict=verdict,
            lines=tuple(self._describe_looking()),
            facts={
                "kind": "summary",
                "package": self.sources.package,
                "changed_files": [file.path for file in self.files],
                "outside": list(self.sources.outside),
                "settings": [setting.name for setting in job.settings],
                "seed": job.seed,
                "lockstep": job.lockstep,
                "num_changed_lines": self._num_lines(),
                "num_reached_lines": self._num_reached(),
                "num_states": found.num_states,
                "num_rounds": found.num_rounds,
                "num_drawn": found.num_drawn,
                "touched": [job.setting(place).name for place in found.touched],
                "num_walks": {side: found.num_walks[side] for side in ("base", "head")},
                "num_failing": {side: found.num_failing[side] for side in ("base", "head")},
                "num_alike": found.num_alike,
                "num_differing": found.num_differing,
                "ended_by": found.interrupted_by,
            },
            findings=lack,
        )

    def _describe_lack(self) -> tuple[str, ...]:
        """Why too little was looked at."""
        found = self.found
        is_broken = any(example.kind == "introduced" for example in found.examples)
        if is_broken or found.refused or found.deaths or found.interrupted_by:
            return ()  # The reason stands elsewhere, or none is needed.
        if found.num_rounds < found.num_wanted:
            walks = f"{count(found.num_walks['head'], 'walk')} of head"
            rounds = f"{found.num_rounds} of {count(found.num_wanted, 'round')}"
            return (f"only {walks}, {rounds}, fit in {found.seconds:g} s; give --time-budget more",)
        is_old = any(example.kind == "there before" for example in found.examples)
        num_walks, num_failing = found.num_walks["head"], found.num_failing["head"]
        if is_old and num_walks - num_failing < MIN_WHOLE * num_walks:
            sentence = (
                f"{num_failing:,} of {count(num_walks, 'walk')} of head fail, some where base "
                "fails, too; what lies behind was not looked at: mend that first"
            )
            return (sentence,)
        is_run = any(file.is_run for file in self.files)
        if is_run and not found.touched and not any(found.missing.values()):
            return ("no walk ran what has changed; that it could be imported says little",)
        return ()

    def _describe_looking(self) -> Iterator[str]:
        found = self.found
        names = ", ".join(file.path for file in self.files)
        lines = count(self._num_lines(), "line")
        yield make_line("changed", f"{lines} of code in {names}; {self._num_reached()} reached")
        yield from _describe_outside(self.sources)
        if found.interrupted_by:
            yield make_line("ended by", found.interrupted_by)
        if not found.num_walks:
            return
        if found.num_states:
            complete = count(found.num_led, "setting")
            yield make_line(
                "led", f"to {found.num_states:,} states of the spec; {complete} completely"
            )
        drawn = f" and {found.num_drawn:,} drawn at random" if found.num_drawn else ""
        yield make_line(
            "walks",
            f"{found.num_walks['base']:,} of base, {found.num_walks['head']:,} of head, over "
            f"{count(len(self.job.settings), 'setting')}{drawn}, in "
            f"{count(found.num_rounds, 'round')}, seed={self.job.seed}",
        )
        yield make_line("touching", self._describe_touching())
        yield make_line(
            "failed",
            f"{found.num_failing['base']:,} runs of base, {found.num_failing['head']:,} of head",
        )
        beside = "beside the spec" if self.job.lockstep else "no; invariants judge every walk"
        yield make_line("lockstep", beside)
        yield from self._describe_sameness()

    def _describe_touching(self) -> str:
        """In how many settings the change can show, as far as walks have told."""
        found, num_named = self.found, len(self.job.settings)
        num = sum(place < num_named for place in found.touched)
        drawn = f" and {len(found.touched) - num:,} of those drawn" if found.num_drawn else ""
        return f"{num} of {count(num_named, 'setting')}{drawn} ran it with all it works with"

    def _describe_sameness(self) -> Iterator[str]:
        """Says that nothing tells head from base, if nothing does."""
        found = self.found
        is_told = (
            found.num_differing or found.deaths or found.moody or any(found.num_failing.values())
        )
        if found.num_alike and not is_told:
            states = f" and {found.num_states_alike:,} states" if found.num_states_alike else ""
            yield make_line(
                "decisions",
                f"head decided exactly as base in all of {count(found.num_alike, 'walk')}{states}: "
                "if the change was meant to change decisions, no setting here shows it",
            )

    def _num_lines(self) -> int:
        return sum(len(file.lines) + len(file.gone) for file in self.files)

    def _num_reached(self) -> int:
        missing = self.found.missing
        return self._num_lines() - sum(
            len({*file.lines}.intersection(missing.get(self._head(file), ())))
            + len(file.gone.keys() & {*missing.get(self._base(file), ())})
            for file in self.files
        )

    def _base(self, file: ChangedFile) -> str:
        return str(self.sources.base / file.old_path)

    def _head(self, file: ChangedFile) -> str:
        return str(self.sources.head / file.path)

    # ---- what was found --------------------------------------------------------------------------

    def _example(self, example: Example, out: Path) -> Check:
        found = example.counterexample
        path, unwritten = try_to_write(found, out)
        is_new = example.kind == "introduced"
        lines = list(_describe_rule(example))
        reached = self._describe_reached(example) if is_new else []
        lines += [make_line("" if place else "changed", row) for place, row in enumerate(reached)]
        if path is not None:
            lines.append(make_line("file", f"{path}, which fails again {FAILS_ON[example.kind]}"))
        return Check(
            title=f"{example.kind}  {found.breach.name}",
            verdict="violated" if is_new else "holds",
            lines=tuple(lines),
            facts={
                "kind": example.kind,
                "rules": [breach.name for breach in found.breaches],
                "num_actions": len(found.steps),
                "changed": reached,
                "path": None if path is None else str(path),
            },
            findings=unwritten,
            counterexample=found if is_new else None,
            path=path,
        )

    def _describe_reached(self, example: Example) -> list[str]:
        """The changed lines that the last step executed; if it executed none, those of others."""
        last = len(example.counterexample.steps)
        rows = [row for row in example.reached if row[2] == last] or list(example.reached)
        files = {str(self.sources.head / file.path): file for file in self.files}
        names = {0: "when it was built", last: "in the last step"}
        return [
            f"{files[path].path}:{line}  {files[path].texts[line]}  "
            f"({names.get(step, f'in step {step}')})"
            for path, line, step in rows[:MAX_LINES]
        ] or self._describe_unreached()

    def _describe_unreached(self) -> list[str]:
        """What a fault may come from that shows on no changed line: code that is not there."""
        gone = [
            f"{file.old_path}:{line}  {text}  (gone)"
            for file in self.files
            for line, text in file.gone.items()
        ]
        return gone[:MAX_LINES] or [
            "no line in this run, but before it, when the engine was imported"
        ]

    def _death(self, death: Death) -> Check:
        """A side whose process ended; an introduced one if base lived on in the same setting."""
        also = {other.side for other in self.found.deaths if other.setting == death.setting}
        kind = _kind_of(also)
        is_new = kind == "introduced"
        where = self._describe_place(death)
        return Check(
            title=f"{kind}  engine_dies",
            verdict="violated" if is_new else "holds",
            lines=(make_line("rule", DEATH_RULE), make_line("run", where)),
            facts={"kind": kind, "rules": ["engine_dies"], "how": death.how, "where": where},
            findings=(f"{death.side} {death.how}, {where}",) if is_new else (),
            explanation=death.detail if is_new else "",
        )

    def _describe_place(self, death: Death) -> str:
        if death.setting is None:
            return "while it was imported"
        where = f"in setting {self.job.setting(death.setting).name}"
        if death.number is not None:
            return f"{where}, walk {self.job.seed + death.number}"
        return where if death.doing == "lead" else f"{where}, while a failing run was repeated"

    def _import(self) -> Iterator[Check]:
        if self.found.refused:
            sentence, _, trace = self.found.refused.partition("\n")
            yield Check(
                title="introduced  engine_is_imported",
                verdict="violated",
                lines=(make_line("rule", "The engine can be imported."),),
                facts={"kind": "introduced", "rules": ["engine_is_imported"]},
                findings=(f"head cannot be imported: {sentence}",),
                explanation=trace,
            )

    def _moods(self) -> Iterator[Check]:
        moody = self.found.moody
        if moody:
            kind = _kind_of(set(moody))
            verdicts: dict[str, Verdict] = {
                "introduced": "violated",
                "there before": "undetermined",
            }
            yield Check(
                title=f"{kind}  engine_is_deterministic",
                verdict=verdicts.get(kind, "holds"),
                facts={"kind": kind, "rules": ["engine_is_deterministic"]},
                findings=tuple(f"{side}: {sentence}" for side, sentence in moody.items()),
            )

    def _difference(self, seen: Difference) -> Check:
        """The first decision that differs though no rule breaks: to be known, and no fault."""
        setting = self.job.setting(seen.setting)
        base, head = describe_action(seen.base[-1]), describe_action(seen.head[-1])
        changes = list(compare_decisions(*seen.decisions))
        table = table_of(seen.head, setting.scheduler.num_blocks)
        rows = "\n".join(f"  {row}" for row in (*table, *changes))
        return Check(
            title="behaviour changed  no rule breaks",
            verdict="holds",
            lines=(
                make_line("walks", f"{self.found.num_differing:,} differ, and break nothing"),
                make_line("run", f"in setting {setting.name}, {describe_setting(setting)}"),
                make_line("base", base),
                make_line("head", head),
            ),
            facts={
                "kind": "behaviour changed",
                "setting": setting.name,
                "num_actions": len(seen.head),
                "base": base,
                "head": head,
                "changes": changes,
            },
            explanation=f"The first decision that differs is the last one here, of head:\n{rows}",
        )

    def _missing(self) -> Iterator[Check]:
        """Changed lines that nothing ran: nobody knows what they do."""
        rows = list(self._describe_missing())
        if not rows or self.found.refused:
            return
        # A process that dies takes along what it has reached.
        has_died = bool(self.found.deaths)
        more = [f"and {len(rows) - MAX_LINES} more"] if len(rows) > MAX_LINES else []
        yield Check(
            title=f"{'not known to be reached' if has_died else 'not reached'}  {len(rows)} of the "
            "changed lines",
            verdict="undetermined",
            lines=(*rows[:MAX_LINES], *more),
            facts={"kind": "not reached", "lines": rows},
        )

    def _find_missing(self) -> Iterator[str]:
        """Yields each line that its side has not reached: there, or gone."""
        for file in self.files:
            missing = self.found.missing.get(self._head(file), ())
            for line in missing:
                if line in file.lines:
                    yield f"{file.path}:{line}  {file.texts[line]}"
            for line in self.found.missing.get(self._base(file), ()):
                # What stands in its place says as much if nothing came there, either.
                if line in file.gone or not {*missing}.intersection(file.was[line].by):
                    text = file.old_texts[line]
                    yield f"{file.old_path}:{line}  {text}  [gone, and base did not reach it]"

    def _describe_missing(self) -> Iterator[str]:
        yield from self._find_missing()
        for file in self.files:
            if not file.is_python:
                yield f"{file.path}  is no Python: whether a run needs it is not known"

    def _vain(self, what: str, wanted: str, described: Iterable[str]) -> Iterator[Check]:
        """What was reached, and had no chance to show what it does: nobody knows that."""
        rows = list(dict.fromkeys(described))
        # What is broken is to be mended first, and ends walks early.
        is_broken = any(example.kind == "introduced" for example in self.found.examples)
        if not rows or is_broken or self.found.refused or self.found.deaths:
            return
        more = [f"and {len(rows) - MAX_LINES} more"] if len(rows) > MAX_LINES else []
        yield Check(
            title=f"reached in vain  {count(len(rows), what)} of the changed lines",
            verdict="undetermined",
            lines=(*rows[:MAX_LINES], *more, f"name a setting {wanted}: --config FILE"),
            facts={"kind": "reached in vain", "lines": rows},
        )

    def _describe_vain(self, find: Callable[[str], Iterator[Vain]]) -> Iterator[str]:
        """Yields what is found of a file of head, and what else is found of base's."""
        for file in self.files:
            head = list(find(self._head(file)))
            names = {name for _, name, _ in head}
            for line, _, looks in head:
                yield f"{file.path}:{line}  {file.texts.get(line, '')}  [ran only {looks}]"
            for line, name, looks in find(self._base(file)):
                if name not in names:
                    text = file.old_texts.get(line, "")
                    yield f"{file.old_path}:{line}  {text}  [base ran it only {looks}]"

    def _find_absent(self, path: str) -> Iterator[Vain]:
        """Operands that were nothing whenever their line ran."""
        for operand, values in self.found.absent.get(path, {}).items():
            if values:
                looks = f"with {operand.name} = {' or '.join(values)}"
                yield operand.line, operand.name, looks

    def _find_one_way(self, path: str) -> Iterator[Vain]:
        """Conditions that always went the same way; of an operand it is told already."""
        told = {(line, name) for line, name, _ in self._find_absent(path)}
        for condition, ways in self.found.one_way.get(path, {}).items():
            if ways and (condition.line, condition.text) not in told:
                looks = f"while {condition.describe(*ways)}"
                yield condition.line, condition.text, looks


def _kind_of(sides: set[str]) -> str:
    """What a fault of these sides is to a change."""
    if sides == {"head"}:
        return "introduced"
    return "fixed" if sides == {"base"} else "there before"


def _describe_rule(example: Example) -> Iterator[str]:
    found = example.counterexample
    # What was introduced is printed in full at the end.
    is_new = example.kind == "introduced"
    if not is_new:
        yield make_line("rule", found.breach.rule)
        if found.breach.name in INVARIANTS:
            yield make_line("source", INVARIANTS[found.breach.name].source)
        yield make_line("run", f"{describe_size(found)}, {describe_origin(found)}")


def compare_decisions(base: Any, head: Any, place: str = "") -> Iterator[str]:
    """Yields each place where two decisions differ."""
    if base == head:
        return
    if not isinstance(base, dict) or not isinstance(head, dict):
        yield f"{place}: base {_show(base)}, head {_show(head)}"
        return
    for key in [*base, *(key for key in head if key not in base)]:
        yield from compare_decisions(base.get(key), head.get(key), f"{place}.{key}".lstrip("."))


def _show(value: Any) -> str:
    """A value; of blocks, whose names mean nothing, how many there are."""
    is_blocks = isinstance(value, list) and value and set(map(str, value)) == {NAMELESS}
    return count(len(value), "block") if is_blocks else repr(value)


def count(num: int, noun: str) -> str:
    """A number of things."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"
