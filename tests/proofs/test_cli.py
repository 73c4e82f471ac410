from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import z3
from click.testing import CliRunner

from proofs.bounded import prove_bounded
from proofs.cli import prove
from proofs.export import open_export
from proofs.mutants import MUTANTS, planted
from proofs.prove import Outcome, prove_theorems
from proofs.recheck import Recheck
from proofs.report import Report
from proofs.scenarios import ASYNC, SMALL_BLOCKS
from proofs.symbolic.executor import Executor
from proofs.theorem import THEOREMS, Obligation, Part, Proof

NAME = "add_request_preserves_the_invariant"
UNBOUNDED = "any_number_blocks_are_never_used_twice"
WRONG_CLAIM = "publishing_at_grant_is_safe"


def run(*arguments):
    """Runs the command."""
    return CliRunner().invoke(prove, [str(argument) for argument in arguments])


def test_a_proof_exits_with_0_and_says_how_far_it_reaches():
    """The table names the theorem, its scope and its verdict; the last line the reach."""
    result = run(NAME)
    assert 0 == result.exit_code
    row = next(line for line in result.output.splitlines() if line.startswith(NAME))
    assert ["bounded", "proved"] == [row.split()[1], row.split()[-1]]
    assert "1-2" == row.split()[2]
    assert (
        "states  2  add_request from 1 running, 3 waiting, priority, a sensible arrival"
        in result.output
    )
    assert "a claim is one thing that a theorem says of one path" in result.output
    assert "bounded theorems cover the states that they name" in result.output.splitlines()[-1]


def test_a_wrong_claim_is_shown_with_its_state():
    """A claim that is known to be wrong is refuted, which is as it should be, and shown."""
    result = run(WRONG_CLAIM)
    assert 0 == result.exit_code
    assert "refuted (as it should be)" in result.output
    assert "tokens that this step granted" in result.output
    assert "reachable: a run gets there in" in result.output


def test_a_broken_theorem_exits_with_1():
    """A theorem that the spec breaks is a finding; whether a run gets to the state is said."""
    with planted(MUTANTS["an_arrival_jumps_the_queue"]):
        result = run(NAME)
    assert 1 == result.exit_code
    assert "FAILED" in result.output
    assert "no run of requests like these gets there" in result.output


def test_an_unknown_name_exits_with_2():
    """A name that no theorem has is wrong usage, and the names there are are listed."""
    result = run("no_such_theorem")
    assert 2 == result.exit_code
    assert NAME in result.output


def give_up(self, *assumptions):
    """A solver that knows nothing."""
    return z3.unknown


def test_an_undecided_theorem_exits_with_3(monkeypatch):
    """A solver that gives up is never taken for success."""
    monkeypatch.setattr(Executor, "check", give_up)
    result = run(NAME)
    assert 3 == result.exit_code
    assert "UNDETERMINED" in result.output


def test_json_says_the_same():
    """The report for machines has the verdict, the scope and the numbers."""
    result = run(NAME, "--format", "json")
    document = json.loads(result.stdout)
    assert "holds" == document["verdict"]
    (theorem,) = document["theorems"]
    assert (NAME, "bounded", "proved") == (
        theorem["name"],
        theorem["scope"],
        theorem["verdict"],
    )
    assert theorem["claims"] > 0


@pytest.mark.parametrize(
    ("answer", "verdict"), [("sat", "violated"), ("unknown", "undetermined"), (None, "holds")]
)
def test_the_second_solver_must_agree(answer, verdict):
    """What cvc5 contradicts is a failure; what it cannot decide is undetermined."""
    unconfirmed = [] if answer is None else [("an obligation", answer)]
    outcome = Outcome(THEOREMS[NAME], Proof(NAME, num_claims=1))
    report = Report((outcome,), 1.0, Recheck(1, unconfirmed))
    assert verdict == report.verdict
    assert (answer is not None) == ("an obligation" in report.to_text())


@pytest.mark.parametrize(
    ("looked_at", "expected"), [("abc", "1-3"), ("bde", "2 4-5"), ("", "-"), ("ace", "1 3 5")]
)
def test_the_table_says_which_states_each_theorem_covers(looked_at, expected):
    """The states have numbers, and neighbours are a range; a refuted theorem covers none."""
    others = Outcome(THEOREMS[NAME], Proof(NAME, num_claims=1, looked_at=list("abcde")))
    outcome = Outcome(THEOREMS[NAME], Proof(NAME, num_claims=1, looked_at=list(looked_at)))
    _, _, row, *rest = Report((others, outcome), 1.0).to_text().splitlines()
    assert row.split("bounded")[1].strip().startswith(f"{expected}  ")
    assert "states  4  d" in rest


def test_nothing_asked_for_is_undetermined():
    """An empty report is no success."""
    assert "undetermined" == Report((), 0.0).verdict


def test_json_shows_the_run_to_a_refuting_state():
    """Machines are told what the search said, and the run it found."""
    result = run("the_whole_prompt_gate_reserves_nothing", "--format", "json")
    (theorem,) = json.loads(result.stdout)["theorems"]
    assert "reachable" == theorem["way"]
    assert theorem["way_says"].startswith("reachable")
    assert 2 == sum("add_request" in line for line in theorem["run"])


def exported(folder):
    """The index of an export, and the files that are there."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return json.loads((folder / "index.json").read_text()), files


def answer_of_z3(path):
    """What z3 says of a file."""
    solver = z3.Solver()
    solver.from_file(str(path))
    return solver.check()


def test_an_export_is_confirmed_by_another_run_of_a_solver(tmp_path):
    """Every obligation is a file of its own theorem's folder, and as the index says."""
    names = ("budgets_are_kept", "max_num_seqs_is_kept")
    theorems = [attrs.evolve(THEOREMS[name], scenarios=(ASYNC, SMALL_BLOCKS)) for name in names]
    expected = []
    with open_export(tmp_path / "new") as export:

        def keep(obligation):
            expected.extend((each.theorem, obligation.name) for each in obligation.parts)
            export(obligation)

        prove_bounded(theorems, export=keep)
    index, files = exported(tmp_path / "new")
    entries = index["obligations"]
    assert index["complete"]
    assert expected == [(entry["theorem"], entry["place"]) for entry in entries]
    assert {*names} == {entry["theorem"] for entry in entries}
    assert {entry["file"] for entry in entries} | {"index.json"} == files
    for name in names:
        folder = [entry["file"] for entry in entries if entry["theorem"] == name]
        assert [f"{name}/{number:05}.smt2" for number in range(1, len(folder) + 1)] == folder
    for entry in entries[::5]:
        answer = str(answer_of_z3(tmp_path / "new" / entry["file"]))
        assert (entry["expected"], True) == (answer, bool(entry["claims"]))


def test_an_export_of_what_is_wrong_is_satisfiable(tmp_path):
    """A file says unsat only because its obligation holds."""
    x = z3.Int("x")
    wrong = Obligation("x", (x > 0,), x > 1, (Part("some_theorem", ("x is above 1",), x > 1),))
    with open_export(tmp_path) as export:
        export(wrong)
    assert z3.sat == answer_of_z3(tmp_path / "some_theorem" / "00001.smt2")


def test_the_command_exports_an_unbounded_theorem_too(tmp_path):
    """Every obligation of a proof about any number of requests is filed under its theorem."""
    result = run(UNBOUNDED, "--export", tmp_path / "new")
    index, files = exported(tmp_path / "new")
    assert 0 == result.exit_code
    assert {UNBOUNDED} == {entry["theorem"] for entry in index["obligations"]}
    assert f"{len(files) - 1:,} obligations are in" in result.output


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    """Nothing of anybody else's is mixed up with an export, nor lost."""
    (tmp_path / "mine.txt").write_text("mine")
    result = run(NAME, "--export", tmp_path)
    assert 2 == result.exit_code
    assert "is not empty" in result.output
    assert ["mine.txt"] == [path.name for path in tmp_path.iterdir()]


def test_a_file_is_no_place_to_export_to(tmp_path):
    """A file in the way is wrong usage."""
    (tmp_path / "file").write_text("")
    result = run(NAME, "--export", tmp_path / "file")
    assert 2 == result.exit_code
    assert "name a folder" in result.output


def test_ctrl_c_decides_nothing(monkeypatch):
    """Who is interrupted has found nothing: undetermined, and no finding; what is left is named."""
    monkeypatch.setattr("proofs.cli.prove_theorems", interrupt)
    result = run(NAME)
    assert 3 == result.exit_code
    assert f"Ctrl-C came before {NAME}" in result.stdout
    document = json.loads(run(NAME, "--format", "json").stdout)
    assert ("undetermined", [NAME]) == (document["verdict"], document["interrupted_before"])


def test_ctrl_c_keeps_what_is_proved(monkeypatch):
    """What came out before is shown, and is not called ok."""
    prove = prove_theorems

    def prove_one_and_interrupt(theorems, **options):
        yield from prove(theorems[:1], **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("proofs.cli.prove_theorems", prove_one_and_interrupt)
    result = run(NAME, UNBOUNDED)
    assert 3 == result.exit_code
    assert re.search(rf"{NAME} .*proved", result.stdout)
    assert f"Ctrl-C came before {UNBOUNDED}" in result.stdout


INTERRUPTED = """
import os, signal, sys, threading
from proofs.cli import prove
from proofs.symbolic.prover import Prover

ask = Prover._ask

def ask_first(self, *arguments):
    Prover._ask = ask
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    return ask(self, *arguments)

Prover._ask = ask_first
sys.argv[1:] = ["any_number_steps_keep_the_invariant"]
prove()
"""


def test_ctrl_c_reaches_us_in_the_middle_of_a_question():
    """A solver that is interrupted stops the program; it does not answer that it does not know."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )
    said = "Ctrl-C came before any_number_steps_keep_the_invariant" in done.stdout
    assert (3, True) == (done.returncode, said)


def test_an_interrupted_export_leaves_whole_files(tmp_path, monkeypatch):
    """Ctrl-C in the middle of a file leaves the files before it, and an index that says so."""
    x = z3.Int("x")
    part = Part("some_theorem", ("x",), x > 0)
    obligations = [Obligation("x", (x > least,), x > 0, (part,)) for least in (1, 2)]
    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt(tmp_path, obligations, monkeypatch)
    index, files = exported(tmp_path)
    assert {"index.json", "some_theorem/00001.smt2"} == files
    assert (False, 1) == (index["complete"], len(index["obligations"]))


def write_and_interrupt(folder, obligations, monkeypatch):
    """Exports all but the last obligation; somebody presses Ctrl-C while that one is written."""
    with open_export(folder) as export:
        for obligation in obligations[:-1]:
            export(obligation)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", interrupt)
            export(obligations[-1])


def interrupt(*arguments, **options):
    """Somebody presses Ctrl-C."""
    raise KeyboardInterrupt


def test_the_core_is_no_choice_of_names():
    """Names and `--core` exclude each other, and the message says so."""
    result = run(NAME, "--core")
    assert 2 == result.exit_code
    assert "leave out NAMES" in result.output
