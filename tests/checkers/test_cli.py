from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkers import commands, configs
from checkers.cli import main
from checkers.counterexample import write
from checkers.report import Reporter
from tests.checkers.planted import TINY, Chatty, LosesABlock, RaisesInSchedule
from tests.checkers.test_counterexample import failing, found_in

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "recordings"
THRASH = str(RECORDINGS / "thrash.jsonl.gz")
REJECTED = str(RECORDINGS / "rejected" / "publish-of-taken-back-chunk.jsonl.gz")
WALKS = ("--config", "tiny", "--walks", "10", "--length", "40")


def name_of(make):
    """An engine of ours, as the command line takes it."""
    return f"{make.__module__}:{make.__name__}"


WRONG = name_of(LosesABlock)


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Calls the command line in a folder of its own, with a setting small enough for `verify`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    named = {name: configs.load_settings()[name] for name in ("tiny", "thrash")}
    named["tiny"] = configs.attrs.evolve(TINY, used_by=("explore", "search", "verify"))
    monkeypatch.setattr(configs, "load_settings", lambda: named)
    # What is shown by name is where somebody has put it.
    write(found_in("thrash"), tmp_path / "found").rename(tmp_path / "found.json")
    write(failing(LosesABlock), tmp_path / "found").rename(tmp_path / "wrong.json")
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "empty").mkdir()

    def invoke(*arguments):
        return CliRunner().invoke(main, arguments)

    return invoke


OPTIONS = ("--help", "--version")
EXIT_CODES = [
    (0, ("explore", "--config", "tiny")),
    (1, ("explore", "--config", "thrash")),
    (1, ("explore", "--config", "tiny", "--engine", WRONG)),
    (2, ("explore", "--config", "tiny", "--engine", "nobody")),
    (2, ("explore", "--config", "teeny")),
    (2, ("explore", "--config", "tiny", "--set", "num_blocks=0")),
    (2, ("explore", "--config", "tiny", "--set", f"num_blocks={10**18}")),
    (2, ("explore", "--config", "tiny", "--claim", "comfort")),
    (3, ("explore", "--config", "tiny", "--max-states", "9")),
    (3, ("explore", "--config", "tiny", "--engine", "fast", "--max-states", "9")),
    (3, ("explore", "--config", "tiny", "--time-budget", "0.000001")),
    (0, ("search", *WALKS)),
    (0, ("search", *WALKS, "--engine", "spec")),
    (1, ("search", *WALKS, "--engine", WRONG)),
    (2, ("search", *WALKS, "--engine", "no_such:Engine")),
    (2, ("search", *WALKS, "--set", "policy")),
    (3, ("search", *WALKS, "--time-budget", "0.000001")),
    (0, ("verify", "--walks", "1")),
    (0, ("verify", "--walks", "1", "--recordings", THRASH)),
    (1, ("verify", WRONG, "--walks", "1")),
    (1, ("verify", "--walks", "1", "--recordings", REJECTED)),
    (2, ("verify", "nobody")),
    (2, ("verify", "--recordings", "nothing.jsonl")),
    (2, ("verify", "--recordings", "empty")),
    (0, ("lockstep", THRASH)),
    (0, ("lockstep", "wrong.json")),
    (1, ("lockstep", "wrong.json", "--engine", WRONG)),
    (2, ("lockstep", "nothing.jsonl")),
    (2, ("lockstep", "damaged.json")),
    (0, ("validate", THRASH)),
    (1, ("validate", REJECTED)),
    (2, ("validate", "nothing.jsonl")),
    (2, ("validate", THRASH, "--dialect", "vllm-9")),
    (0, ("replay", "wrong.json", "--engine", "fast")),
    (1, ("replay", "wrong.json")),
    (1, ("replay", "found.json")),
    (2, ("replay", "damaged.json")),
    (2, ("replay", "found.json", "--engine", "nobody")),
    (0, ("show", "wrong.json")),
    (2, ("show", "damaged.json")),
    (2, ("show", "nothing.json")),
    (0, ("list", "settings")),
    (0, ("list", "invariants")),
    (0, ("list", "witnesses")),
    (0, ("list", "engines")),
    (0, ("list", "dialects")),
    (2, ("list", "wishes")),
    (2, ("explore", "--walks", "1")),
    (2, ("search", "--seed", "-1")),
    (2, ("search", "--walks", "0")),
    (2, ("explore", "--time-budget", "soon")),
    (2, ("explore", "--engine-timeout", "0")),
    (2, ("validate",)),
    (2, ("dance",)),
    *[(0, (option,)) for option in OPTIONS],
]


@pytest.mark.parametrize(("exit_code", "arguments"), EXIT_CODES)
def test_the_exit_code_says_how_it_went(call, exit_code, arguments):
    """0 holds, 1 finding, 2 usage or bad input, told on stderr alone, 3 undetermined."""
    result = call(*arguments)
    assert exit_code == result.exit_code, result.output
    if exit_code == 2:
        assert "" == result.stdout
        assert 1 <= len(result.stderr.splitlines()) <= 6
    else:
        assert ("" == result.stderr, True) == (True, result.stdout != "")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        given
        for code, given in EXIT_CODES
        if code != 2 and given[0] not in {"list", *OPTIONS} and "--recordings" not in given
    ],
)
def test_a_report_can_be_read_by_machines(call, arguments):
    """JSON and JUnit say what the text says: the verdict of every check, and the exit code."""
    as_json, as_junit = (call(*arguments, "--format", form) for form in ("json", "junit"))
    document, suite = json.loads(as_json.stdout), ET.fromstring(as_junit.stdout)  # noqa: S314
    assert ("schedcheck.report/1", arguments[0]) == (document["schema"], document["command"])
    if arguments[0] != "show":
        assert as_json.exit_code == as_junit.exit_code == document["exit_code"]
    expected = {"holds": None, "violated": "failure", "undetermined": "error"}
    verdicts = [check["verdict"] for check in document["checks"]]
    children = [next((c.tag for c in case if c.tag != "system-out"), None) for case in suite]
    assert [expected[verdict] for verdict in verdicts] == children
    assert len(verdicts) == int(suite.get("tests"))


@pytest.mark.parametrize("arguments", [given for code, given in EXIT_CODES if code == 1])
def test_there_is_no_colour_without_a_terminal(call, arguments, monkeypatch):
    """A report in a file is plain text."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    result = call(*arguments)
    assert "\x1b" not in result.stdout + result.stderr


INTERRUPTIBLE = [
    ("explore", "--config", "tiny"),
    ("search", *WALKS),
    ("verify", "--walks", "1"),
    ("lockstep", THRASH),
    ("validate", THRASH),
    ("replay", "found.json"),
]


@pytest.mark.parametrize("arguments", INTERRUPTIBLE)
def test_ctrl_c_anywhere_is_undetermined(call, monkeypatch, arguments):
    """Ctrl-C between two checks ends every command with a report and exit code 3."""
    add, presses = Reporter.add, [KeyboardInterrupt]

    def press(self, check):
        add(self, check)
        if presses:
            raise presses.pop()

    monkeypatch.setattr(Reporter, "add", press)
    result = call(*arguments, "--format", "json")
    document = json.loads(result.stdout)
    last = document["checks"][-1]
    assert ("undetermined", {"interrupted_by": "Ctrl-C"}) == (last["verdict"], last["facts"])
    found = document["checks"][0]["verdict"]
    assert {"holds": 3, "violated": 1}[found] == result.exit_code


def test_ctrl_c_in_a_check_ends_the_ones_after_it(call, monkeypatch):
    """Ctrl-C in the middle of an exploration keeps what it saw, and no other is begun."""
    begun = []

    def press(found, width):
        begun.append(found.setting.name)
        raise KeyboardInterrupt

    run = commands.Explorer.run
    monkeypatch.setattr(commands.Explorer, "run", lambda self, budget, _: run(self, budget, press))
    result = call("verify", "--walks", "1", "--format", "json")
    assert (3, ["tiny"]) == (result.exit_code, begun)
    titles = [check["title"].split("  ")[:2] for check in json.loads(result.stdout)["checks"]]
    assert [["explore", "spec"], ["verify", "the rest"]] == titles


def test_bad_input_in_the_middle_loses_nothing(call):
    """What was found before a file that cannot be read is reported, and the exit code is 2."""
    result = call("lockstep", "wrong.json", "damaged.json", "--engine", WRONG)
    assert 2 == result.exit_code
    assert "error[blocks_are_conserved]" in result.stdout
    assert "damaged.json is not JSON" in result.stdout


def test_a_bug_of_ours_is_no_finding(call, monkeypatch):
    """If schedcheck itself fails, it says so, with the traceback to report and exit code 2."""
    monkeypatch.setattr(commands, "show", lambda _: 1 / 0)
    result = call("show", "found.json")
    assert ("", 2) == (result.stdout, result.exit_code)
    assert "ZeroDivisionError" in result.stderr
    assert result.stderr.endswith("schedcheck: this is a bug of schedcheck; please report it\n")


def test_what_an_engine_prints_is_no_part_of_the_report(call):
    """An engine may print what it likes, to stderr in effect: the JSON stays JSON."""
    result = call("search", *WALKS, "--engine", name_of(Chatty), "--format", "json")
    assert "holds" == json.loads(result.stdout)["verdict"]
    assert "a step!" in result.stderr


# ---- counterexamples -----------------------------------------------------------------------------


def test_a_counterexample_is_written_shown_and_replayed(call, tmp_path):
    """From the finding to the file, its table, and the same finding again, byte for byte."""
    found = call("search", *WALKS, "--engine", WRONG, "--out", "out")
    (path,) = (tmp_path / "out").iterdir()
    assert f"  --> out/{path.name} (3 actions, shrunk from " in found.stdout
    table = found.stdout[found.stdout.index("  #") : found.stdout.index("  replay")]
    assert table in call("show", str(path)).stdout
    again = call("replay", str(path))
    assert "outcome     fails as in the file, byte for byte" in again.stdout
    assert (1, True) == (again.exit_code, table in again.stdout)


def test_a_replay_says_when_it_differs(call, tmp_path):
    """A file that was changed, or an engine, is told from one that fails as before."""
    text = (tmp_path / "wrong.json").read_text()
    (tmp_path / "other.json").write_text(
        text.replace('"is_shortest": false', '"is_shortest":false')
    )
    result = call("replay", "other.json")
    assert "fails as in the file, but for the lines of the traceback" in result.stdout
    (tmp_path / "other.json").write_text(text.replace('"blocks_are_conserved"', '"comfort"'))
    result = call("replay", "other.json")
    assert "fails otherwise than in the file (comfort), not byte for byte" in result.stdout


def test_a_replay_on_a_right_engine_holds(call):
    """On an engine without the fault, the report says that the rule holds on this run."""
    result = call("replay", "wrong.json", "--engine", "fast")
    assert "blocks_are_conserved holds on this run" in result.stdout


def test_an_engine_that_raises_is_shown_with_its_traceback(call):
    """A raise in the middle of a run is a finding, with the trace so far and the traceback."""
    result = call("search", *WALKS, "--engine", name_of(RaisesInSchedule))
    assert 1 == result.exit_code
    assert "error[engine_raises]: No call of an engine raises." in result.stdout
    assert "ZeroDivisionError: no tokens left" in result.stdout
    assert "schedule: no answer" in result.stdout


def test_show_needs_no_engine(call, tmp_path):
    """A counterexample of an engine that is not installed here can be looked at."""
    text = (tmp_path / "wrong.json").read_text()
    (tmp_path / "theirs.json").write_text(text.replace(WRONG, "their_engine:Engine"))
    result = call("show", "theirs.json")
    assert 0 == result.exit_code
    assert "their_engine:Engine" in result.stdout
    assert "error[blocks_are_conserved]" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("explore", "--config", "thrash"),
        ("explore", "--config", "tiny", "--engine", WRONG),
        ("search", *WALKS, "--engine", WRONG),
    ],
)
def test_a_finding_that_cannot_be_written_is_not_lost(call, arguments):
    """If the folder cannot be written the finding is printed in full, and so is the reason."""
    result = call(*arguments, "--out", "damaged.json/out")
    assert 1 == result.exit_code
    assert "cannot be written: Not a directory; choose another folder with --out" in result.stdout
    assert "error[" in result.stdout
    assert "schedcheck replay" not in result.stdout


def test_a_list_names_everything(call):
    """Each name stands at the beginning of a line of its own, with what it stands for."""
    lines = call("list", "invariants").stdout.splitlines()
    assert sorted(commands.INVARIANTS) == sorted(line.split()[0] for line in lines)
    assert all(len(line.split()) > 3 for line in lines)


# ---- real processes ------------------------------------------------------------------------------


def start(*arguments, **options):
    """Starts the command line as users do; Ctrl-C reaches it, whatever this process ignores."""
    command = [sys.executable, "-c", "from checkers.cli import main; main()", *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        **options,
    )


def test_ctrl_c_prints_what_was_seen():
    """A search that somebody interrupts tells of the walks it made, and that it is undetermined."""
    # The engine says when the search has begun.
    process = start("search", "--walks", "100000", "--config", "tiny", "--engine", name_of(Chatty))
    assert "a step!\n" == process.stderr.readline()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert 3 == process.returncode
    assert "ended by    Ctrl-C" in stdout
    assert "undetermined after" in stdout
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "invariants"),
        ("explore", "--config", "tiny", "--config", "gates"),
        ("explore", "--config", "tiny", "--format", "json"),
    ],
)
def test_a_reader_may_go(arguments):
    """If nobody reads on, as with `| head`, the program ends without a word: no finding."""
    with start(*arguments) as process:
        process.stdout.close()
        stderr = process.stderr.read()
    assert (3, "") == (process.returncode, stderr)


def test_any_terminal_will_do():
    """A terminal that knows no more than ASCII gets the report, with the rest spelled out."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = start("explore", "--config", "tiny", env=environment)
    stdout, stderr = process.communicate(timeout=20)
    assert (0, "") == (process.returncode, stderr)
    assert "\\xb7" in stdout
