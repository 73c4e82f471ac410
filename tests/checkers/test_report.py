from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from checkers.report import Check, Report, Reporter, describe_size, render_check, to_json, to_junit
from checkers.run import Breach
from tests.checkers.test_counterexample import found_in

FOUND = attrs.evolve(found_in("thrash"), is_shortest=True)
HOLDS = Check(title="holds  [bold]x[/bold]", verdict="holds", lines=("looked at [0] of :x:",))
VIOLATED = Check(title="breaks", verdict="violated", counterexample=FOUND)
LACKING = Check(title="lacks", verdict="violated", findings=("witness x was never reached",))
UNKNOWN = Check(title="is late", verdict="undetermined", lines=("not complete",))


def report_of(*checks, **fields):
    """A report of some checks."""
    fields = {"command": "explore", "seconds": 1.5, "scope": "for this only", **fields}
    return Report(checks=checks, **fields)


def printed(form, *checks, reason="", fault=""):
    """What a reporter prints, and the exit code."""
    written = io.StringIO()
    reporter = Reporter("explore", form, "for this only", Console(file=written, emoji=False), 0.0)
    for check in checks:
        reporter.add(check)
    reporter.fault = fault
    if reason or fault:
        reporter.stop(reason or fault)
    code = reporter.finish()
    return written.getvalue(), code


# ---- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checks", "verdict", "exit_code"),
    [
        ((HOLDS, HOLDS), "holds", 0),
        ((HOLDS, VIOLATED, UNKNOWN), "violated", 1),
        ((LACKING,), "violated", 1),
        ((HOLDS, UNKNOWN), "undetermined", 3),
        ((), "undetermined", 3),
    ],
)
def test_the_worst_check_decides(checks, verdict, exit_code):
    """A finding outweighs what is undetermined, and that what holds; nothing is no success."""
    report = report_of(*checks)
    assert (verdict, exit_code) == (report.verdict, report.exit_code)


def test_a_fault_has_its_own_exit_code():
    """What kept checks from being made is no verdict of any of them."""
    assert [2, 2, 2] == [
        report_of(*checks, fault="x is bad; mend it").exit_code
        for checks in [(), (HOLDS,), (VIOLATED,)]
    ]


# ---- text ----------------------------------------------------------------------------------------


def test_success_is_called_ok():
    """What holds says how much was looked at, and for what it holds."""
    text, code = printed("text", HOLDS)
    first, second, last = text.splitlines()
    assert ("holds  [bold]x[/bold]", "  looked at [0] of :x:", 0) == (first, second, code)
    assert last.startswith("ok in ")
    assert last.endswith(" s; for this only")


def test_what_is_undetermined_is_not_called_ok():
    """An early end is named, with what it ended."""
    text, code = printed("text", HOLDS, UNKNOWN)
    last = text.splitlines()[-1]
    assert last.startswith("undetermined after ")
    assert (True, 3) == (last.endswith("; see is late"), code)
    assert "ok in" not in text


def test_a_counterexample_stands_at_the_end():
    """The error, the table, the evidence and the way to see it again follow the closing line."""
    path = Path("out/x.json")
    text, code = printed("text", attrs.evolve(VIOLATED, path=path), HOLDS)
    lines = text.splitlines()
    closing = next(place for place, line in enumerate(lines) if line.startswith("violated in"))
    assert lines[closing].endswith("1 of 2 checks found something")
    assert f"error[{FOUND.breach.name}]: {FOUND.breach.rule}" == lines[closing + 2]
    assert "  --> out/x.json (5 actions, none is shorter)" == lines[closing + 3]
    assert ("  replay  schedcheck replay out/x.json", 1) == (lines[-1], code)


def test_findings_without_a_counterexample_are_shown():
    """An unreached witness is shown with its check."""
    text, _ = printed("text", LACKING)
    assert "  witness x was never reached" in text.splitlines()


def test_an_early_end_is_a_check_of_its_own():
    """Whatever was left to do is undetermined, with the reason; what was done stays."""
    text, code = printed("text", HOLDS, reason="Ctrl-C")
    assert ["explore  the rest", "  not checked: Ctrl-C"] == text.splitlines()[2:4]
    assert 3 == code


@pytest.mark.parametrize("form", ["text", "json", "junit"])
def test_a_fault_loses_nothing_that_was_found(form):
    """A fault in the middle ends the report with exit code 2; what was found before is in it."""
    text, code = printed(form, VIOLATED, fault="b.json is bad; mend it")
    assert 2 == code
    assert FOUND.breach.rule in text
    assert "b.json is bad; mend it" in text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "5 actions, none is shorter"),
        ({"num_actions_found": 9}, "5 actions, shrunk from 9, none is shorter"),
        ({"is_shortest": False}, "5 actions"),
        ({"engine": "fast"}, "5 actions, no shorter one was found"),
        ({"steps": FOUND.steps[:1], "num_actions_found": 1}, "1 action, none is shorter"),
    ],
)
def test_a_size_says_how_sure_it_is(fields, text):
    """Only of the specification a complete search shows that no run is shorter."""
    assert text == describe_size(attrs.evolve(FOUND, **fields))


# ---- for machines --------------------------------------------------------------------------------


def test_json_has_everything():
    """The JSON report holds the verdict, the exit code, and every check with its facts."""
    checks = (attrs.evolve(HOLDS, facts={"num_unique": 3}), VIOLATED)
    document = json.loads(to_json(report_of(*checks)))
    assert ("schedcheck.report/1", "violated", 1) == (
        document["schema"],
        document["verdict"],
        document["exit_code"],
    )
    first, second = document["checks"]
    assert ({"num_unique": 3}, None) == (first["facts"], first["counterexample"])
    (breach,) = second["counterexample"]["breaches"]
    assert (FOUND.breach.name, list(FOUND.breach.evidence)) == (breach["name"], breach["evidence"])


def test_junit_calls_a_finding_a_failure_and_the_undetermined_an_error():
    """Each check is a test case; only what holds passes."""
    suite = ET.fromstring(to_junit(report_of(HOLDS, VIOLATED, LACKING, UNKNOWN)))  # noqa: S314
    assert {"tests": "4", "failures": "2", "errors": "1"}.items() <= suite.attrib.items()
    outcomes = [[child.tag for child in case if child.tag != "system-out"] for case in suite]
    assert [[], ["failure"], ["failure"], ["error"]] == outcomes
    assert "is late is undetermined" == suite[3][0].get("message")
    assert f"{FOUND.breach.name}: {FOUND.breach.rule}" == suite[1][0].get("message")


@given(st.text(), st.text())
@example("\ufffe", "\ud800")
def test_any_text_can_be_reported(title, evidence):
    """Whatever an engine says in an exception, every form of the report can be read."""
    breaches = (Breach("engine_raises", title, (evidence,), "engine", evidence),)
    found = attrs.evolve(FOUND, breaches=breaches)
    check = attrs.evolve(VIOLATED, title=title, counterexample=found, explanation=evidence)
    report = report_of(check)
    assert title == json.loads(to_json(report))["checks"][0]["title"]
    assert "1" == ET.fromstring(to_junit(report)).get("failures")  # noqa: S314
    text, _ = printed("text", check)
    assert "violated in" in text


@pytest.mark.parametrize("form", ["text", "json", "junit"])
def test_a_file_that_is_shown_has_no_verdict_of_now(form):
    """Showing a counterexample prints it, and says nothing of how long it took or how it ended."""
    written = io.StringIO()
    render_check(VIOLATED, form, Console(file=written, soft_wrap=True))
    assert FOUND.breach.rule in written.getvalue()
    assert "violated in" not in written.getvalue()
