"""What a command has to say: one report, rendered as text, JSON, JUnit XML or Markdown.

Entry points: `Report` and `Reporter`. Text goes to a terminal or a file; colour only to a terminal.
The same renderer serves the command line and pytest.
"""

from __future__ import annotations

import json
import re
import shlex
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen
from rich.console import Console
from rich.markup import escape

from checkers.counterexample import Counterexample
from checkers.run import Verdict, worst
from checkers.table import describe_breach, table_of
from spec.registry import INVARIANTS

EXIT_CODES: dict[Verdict, int] = {"holds": 0, "violated": 1, "undetermined": 3}
FAULT_EXIT_CODE = 2
"""For usage and for faults of the harness, which are no verdicts."""


@frozen(kw_only=True)
class Check:
    """One thing that was checked: what, and how much was looked at."""

    title: str
    """The verb, the subject and the setting."""
    verdict: Verdict
    lines: tuple[str, ...] = ()
    facts: dict[str, Any] = field(factory=dict)
    """The same for machines."""
    findings: tuple[str, ...] = ()
    """What is wrong beside a counterexample: an unreached witness, another number of states."""
    counterexample: Counterexample | None = None
    path: Path | None = None
    """Where the counterexample was written."""
    explanation: str = ""
    """Text that stands at the end, in full."""


@frozen(kw_only=True)
class Report:
    """All that a command has to say."""

    command: str
    checks: tuple[Check, ...]
    seconds: float
    scope: str
    """What the verdict holds for, and what it does not mean."""
    fault: str = ""
    """What kept some of the checks from being made, and is no verdict: bad input, mostly."""

    @property
    def verdict(self) -> Verdict:
        """The worst of the checks: a finding outweighs what is undetermined."""
        return worst(check.verdict for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0 holds, 1 finding, 2 a fault of ours or of the input, 3 undetermined."""
        return FAULT_EXIT_CODE if self.fault else EXIT_CODES[self.verdict]


class Reporter:
    """Prints what a command has to say: text as it comes, JSON and JUnit at the end."""

    def __init__(
        self, command: str, form: str, scope: str, console: Console, started: float
    ) -> None:
        self.command = command
        self.form = form
        self.scope = scope
        self.console = console
        self.started = started
        """On the monotonic clock."""
        self.checks: list[Check] = []
        self.fault = ""

    def add(self, check: Check) -> None:
        """Takes what a check has found."""
        self.checks.append(check)
        if self.form == "text":
            print_check(check, self.console)

    def stop(self, reason: str) -> None:
        """Ends the work before all is checked: the rest is undetermined."""
        self.add(
            Check(
                title=f"{self.command}  the rest",
                verdict="undetermined",
                lines=(f"not checked: {reason}",),
                facts={"interrupted_by": reason},
            )
        )

    def finish(self) -> int:
        """Ends the report; returns the exit code."""
        report = Report(
            command=self.command,
            checks=tuple(self.checks),
            seconds=time.monotonic() - self.started,
            scope=self.scope,
            fault=self.fault,
        )
        if self.form == "json":
            self.console.out(to_json(report), highlight=False)
        elif self.form == "junit":
            self.console.out(to_junit(report), highlight=False)
        elif self.form == "markdown":
            self.console.out(to_markdown(report), highlight=False)
        else:
            _print(self.console, _closing_line(report))
            for check in report.checks:
                print_findings(check, self.console)
        return report.exit_code


def render_check(check: Check, form: str, console: Console) -> None:
    """Prints one check that is no verdict of now: a file that is shown."""
    if form == "text":
        print_check(check, console)
        print_findings(check, console)
    else:
        report = Report(command="show", checks=(check,), seconds=0.0, scope="shown, not run")
        text = to_json(report) if form == "json" else to_junit(report)
        console.out(text, highlight=False)


# ---- text ----------------------------------------------------------------------------------------


def print_check(check: Check, console: Console) -> None:
    """Prints what was looked at."""
    _print(console, f"[bold]{escape(check.title)}[/bold]")
    for line in check.lines:
        _print(console, f"  {escape(line)}")
    for finding in check.findings:
        _print(console, f"  [red]{escape(finding)}[/red]")


def print_findings(check: Check, console: Console) -> None:
    """Prints what is wrong, in full."""
    if check.counterexample is not None:
        _print(console, "")
        _print_counterexample(check.counterexample, check.path, console)
    if check.explanation:
        _print(console, "")
        _print(console, escape(check.explanation))


def _closing_line(report: Report) -> str:
    seconds = f"{report.seconds:.1f} s"
    if report.verdict == "holds":
        return f"[green]ok[/green] in {seconds}; {escape(report.scope)}"
    if report.verdict == "undetermined":
        titles = [check.title for check in report.checks if check.verdict == "undetermined"]
        ended = escape("; ".join(titles))
        return f"[yellow]undetermined[/yellow] after {seconds}; see {ended}"
    num_bad = sum(check.verdict == "violated" for check in report.checks)
    count = f"{num_bad} of {len(report.checks)} checks"
    return f"[red]violated[/red] in {seconds}: {count} found something"


def _print_counterexample(found: Counterexample, path: Path | None, console: Console) -> None:
    breach = found.breach
    _print(console, f"[bold red]error\\[{breach.name}][/bold red]: {escape(breach.rule)}")
    where = "not written" if path is None else str(path)
    _print(console, f"  --> {escape(where)} ({escape(describe_size(found))})")
    _print(console, f"  {escape(describe_origin(found))}")
    for line in describe_rule(found):
        _print(console, f"  {escape(line)}")
    for line in table_of(found.steps, found.config.num_blocks, found.loop_start):
        _print(console, f"  {escape(line)}")
    for line in describe_breach(found.breaches):
        _print(console, f"  {escape(line)}")
    if found.explanation:
        which = "the last step" if found.loop_start is None else "the first step of the loop"
        _print(console, f"  How the spec decides in {which}:")
        for line in found.explanation:
            _print(console, f"    {escape(line)}")
    if path is not None:
        where = ", on the changed engine" if found.found_by == "patch" else ""
        _print(console, f"  replay  schedcheck replay {escape(shlex.quote(str(path)))}{where}")


def describe_origin(found: Counterexample) -> str:
    """In which setting, under which policy, a run fails."""
    config = found.config
    parts = [f"in setting {found.setting}", f"policy={config.policy}"]
    parts += ["with prefix caching"] if config.enable_prefix_caching else []
    parts += [f"{found.max_in_flight} steps in flight"] if config.async_scheduling else []
    parts += [] if found.seed is None else [f"walk {found.seed}"]
    return ", ".join(parts)


def describe_rule(found: Counterexample) -> Iterator[str]:
    """After which code of a real engine the rule is made, where it is an invariant."""
    if found.breach.name in INVARIANTS:
        yield f"rule after {INVARIANTS[found.breach.name].source}"


def describe_size(found: Counterexample) -> str:
    """How long a run is, and how it came to be so short."""
    count = len(found.steps)
    if found.loop_start is not None:
        return f"{found.loop_start} actions lead to a loop of {count - found.loop_start}"
    text = f"{count} action" if count == 1 else f"{count} actions"
    if found.num_actions_found > count:
        text += f", shrunk from {found.num_actions_found}"
    if not found.is_shortest:
        return text
    # Of an engine, a breadth-first search sees one path to each state, and others may matter.
    return text + (", none is shorter" if found.engine == "spec" else ", no shorter one was found")


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


# ---- for machines --------------------------------------------------------------------------------


def to_json(report: Report) -> str:
    """One JSON document."""
    document = {
        "schema": "schedcheck.report/1",
        "command": report.command,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "seconds": round(report.seconds, 3),
        "scope": report.scope,
        "fault": report.fault or None,
        "checks": [_check_to_dict(check) for check in report.checks],
    }
    return json.dumps(document, indent=1)


def _check_to_dict(check: Check) -> dict[str, Any]:
    found = check.counterexample
    return {
        "title": check.title,
        "verdict": check.verdict,
        "facts": check.facts,
        "findings": list(check.findings),
        "explanation": check.explanation,
        "counterexample": None
        if found is None
        else {
            "path": None if check.path is None else str(check.path),
            "setting": found.setting,
            "engine": found.engine,
            "seed": found.seed,
            "num_actions": len(found.steps),
            "is_shortest": found.is_shortest,
            "breaches": [
                {"name": b.name, "rule": b.rule, "kind": b.kind, "evidence": list(b.evidence)}
                for b in found.breaches
            ],
        },
    }


def to_junit(report: Report) -> str:
    """JUnit XML: a test case per check; what is undetermined is an error, never a pass."""
    checks = report.checks
    suite = ET.Element(
        "testsuite",
        name=f"schedcheck {report.command}",
        tests=str(len(checks)),
        failures=str(sum(check.verdict == "violated" for check in checks)),
        errors=str(sum(check.verdict == "undetermined" for check in checks)),
        time=f"{report.seconds:.3f}",
    )
    for check in checks:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"schedcheck.{report.command}",
            name=_plain(check.title),
        )
        if check.verdict != "holds":
            kind = "failure" if check.verdict == "violated" else "error"
            lines = list(text_of(check))
            message = lines[0] if lines else f"{check.title} is undetermined"
            ET.SubElement(case, kind, message=_plain(message)).text = _plain("\n".join(lines))
        ET.SubElement(case, "system-out").text = _plain("\n".join(check.lines))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode")


def to_markdown(report: Report) -> str:
    """Markdown, as a comment on a change takes it: a heading per check, runs in fences."""
    signs = {"holds": "✅", "violated": "❌", "undetermined": "❔"}
    lines = [f"## schedcheck {report.command}: {report.verdict}", ""]
    for check in report.checks:
        # Beside a finding, what holds is no good news.
        is_shown = check.verdict == report.verdict or check.verdict != "holds"
        sign = f"{signs[check.verdict]} " if is_shown else ""
        lines += [f"### {sign}{check.title}", "", *_fence(check.lines)]
        lines += _fence(tuple(text_of(check)))
    if report.fault:
        lines += [f"Not all was checked: {report.fault}", ""]
    return "\n".join([*lines, f"_{report.seconds:.1f} s; {report.scope}._"])


def _fence(lines: Sequence[str]) -> list[str]:
    """Lines as they are; a fence longer than any in them."""
    text = "\n".join(lines)
    ticks = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return [ticks + "text", text, ticks, ""] if lines else []


def text_of(check: Check) -> Iterable[str]:
    """What is wrong with a check, as plain lines."""
    found = check.counterexample
    if found is not None:
        yield f"{found.breach.name}: {found.breach.rule}"
        yield describe_origin(found)
        yield from describe_rule(found)
        yield from table_of(found.steps, found.config.num_blocks, found.loop_start)
        yield from describe_breach(found.breaches)
    yield from check.findings
    if check.explanation:
        yield check.explanation


def _plain(text: str) -> str:
    """XML 1.0 knows no control characters and no halves of characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
