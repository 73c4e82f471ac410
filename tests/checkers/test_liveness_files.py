"""Loops without progress, as files and in reports."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from checkers.cli import main
from checkers.configs import load_settings
from checkers.counterexample import dumps, make_counterexample, read, rerun, write
from checkers.engines import load_engine
from checkers.errors import HarnessError
from checkers.explore import Budget, Explorer
from checkers.liveness import NAME, run_lasso
from checkers.search import make_rules
from checkers.table import table_of
from tests.checkers.planted import RaisesInSchedule, engine_of

SETTINGS = load_settings()
SPEC, FAST = load_engine("spec"), load_engine("fast")
ENDLESS = ["outgrown", "dropped-token", "streaming-deadlock"]


def found_in(name, engine=SPEC):
    """The counterexample that a setting gives."""
    setting = SETTINGS[name]
    rules, lasso = (
        make_rules(engine, setting),
        Explorer(setting, judge_all=False).run(Budget()).lasso,
    )
    return make_counterexample(
        rules,
        engine,
        run_lasso(rules, engine, lasso),
        setting=name,
        dialect=setting.dialect,
        found_by="explore",
        loop_start=len(lasso.way_in),
    )


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("engine", [SPEC, FAST])
def test_a_loop_is_run_again_byte_for_byte(name, engine, tmp_path):
    """A file holds the way in and the loop, and running it makes the same file."""
    path = write(found_in(name, engine), tmp_path)
    found = read(path)
    assert (name, NAME) == (found.setting, found.breach.name)
    _, again = rerun(found, engine)
    assert path.read_text() == dumps(again)


def test_a_loop_of_a_mended_engine_is_none(tmp_path):
    """On an engine that goes on, the file of a loop breaks nothing."""
    found = found_in("outgrown")
    larger = attrs.evolve(found, config=attrs.evolve(found.config, num_blocks=3))
    assert None is rerun(larger, SPEC)[1]


def test_another_engine_may_fail_on_the_way_in():
    """A rule that breaks before the loop is what is told, without a loop."""
    found = found_in("outgrown")
    _, again = rerun(found, engine_of(RaisesInSchedule))
    assert ("engine_raises", None) == (again.breach.name, again.loop_start)
    assert len(again.steps) < len(found.steps)


def test_of_a_run_that_ends_a_file_says_nothing_new():
    """Files of before there were loops are read and written as they were."""
    ending = attrs.evolve(found_in("outgrown"), loop_start=None)
    assert '"loop_start": 6' in dumps(found_in("outgrown"))
    assert "loop_start" not in dumps(ending)


@pytest.mark.parametrize("loop_start", [0, 8, 9, -1])
def test_a_loop_without_sense_is_refused(loop_start, tmp_path):
    """A loop needs a way in and a step that is planned."""
    path = write(attrs.evolve(found_in("outgrown"), loop_start=loop_start), tmp_path)
    with pytest.raises(HarnessError, match=f"loop_start={loop_start} of 8 steps leaves no way in"):
        read(path)


def test_a_table_has_two_parts():
    """A row stands before the loop, and no engine step reaches over it."""
    found = found_in("outgrown")
    lines = list(table_of(found.steps, 2, found.loop_start))
    assert [
        "6    schedule: r0 preempted",
        "     then, for ever:",
        "7    step returns: nothing sampled",
        "8    schedule: nothing",
    ] == [line[:35].rstrip() for line in lines[4:]]


def test_evidence_names_whoever_outgrows_the_pool():
    """A request that no scheduler could serve is told apart from one that is not served."""
    loop, too_large = found_in("outgrown").breach.evidence
    assert loop == (
        "the loop comes back to where it began after 1 engine step, 0 computed tokens and 0 "
        "preemptions, however unfinished are r0"
    )
    assert too_large == (
        "r0 may grow to 3 blocks, however the pool has 2, so no scheduler can serve it to its end"
    )
    assert 1 == len(found_in("dropped-token").breach.evidence)


# ---- the command line ----------------------------------------------------------------------------


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Calls the command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_explore_says_that_nobody_is_stuck(call):
    """A setting that holds says so of liveness, too, for the specification and for an engine."""
    result = call("explore", "--config", "tiny")
    assert (0, 1) == (result.exit_code, result.stdout.count("no fair cycle without progress"))
    result = call("explore", "--config", "tiny", "--engine", "fast")
    assert (0, 1) == (
        result.exit_code,
        result.stdout.count("from each state somebody gets a token"),
    )


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("engine", ["spec", "fast"])
def test_explore_writes_a_loop_that_replays(call, name, engine):
    """A loop is a finding, is shown in two parts, and its file runs again."""
    result = call("explore", "--config", name, "--engine", engine)
    assert (1, 1) == (result.exit_code, result.stdout.count("then, for ever:"))
    (path,) = Path("counterexamples").iterdir()
    assert NAME == path.name.rpartition("-")[0]
    result = call("replay", str(path))
    assert (1, 1) == (result.exit_code, result.stdout.count("fails as in the file, byte for byte"))
    assert (0, 1) == ((shown := call("show", str(path))).exit_code, shown.stdout.count("for ever:"))


@pytest.mark.parametrize(
    ("arguments", "is_live"),
    [
        (("--config", "tiny"), True),
        (("--config", "tiny", "--max-states", "9"), None),
        (("--config", "thrash"), None),
        (("--config", "outgrown"), False),
        (("--config", "outgrown", "--engine", "fast"), False),
    ],
)
def test_a_report_for_machines_says_whether_it_is_live(call, arguments, is_live):
    """What is open is null, and never true."""
    (check,) = json.loads(call("explore", *arguments, "--format", "json").stdout)["checks"]
    assert is_live is check["facts"]["is_live"]


def test_where_a_rule_breaks_liveness_is_not_checked(call):
    """An exploration that ends early says so of liveness."""
    assert "liveness    not checked: a rule broke" in call("explore", "--config", "thrash").stdout
    partial = call("explore", "--config", "tiny", "--max-states", "9").stdout
    assert "no fair cycle without progress, as far as was looked" in partial
