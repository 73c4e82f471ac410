from __future__ import annotations

import json

import pytest
import z3
from click.testing import CliRunner

from proofs.cli import prove
from proofs.mutants import MUTANTS, planted
from proofs.prove import Outcome
from proofs.recheck import Recheck
from proofs.report import Report
from proofs.symbolic.executor import Executor
from proofs.theorem import THEOREMS, Proof

NAME = "add_request_preserves_the_invariant"
WRONG_CLAIM = "publishing_at_grant_is_safe"


def run(*arguments):
    """Runs the command."""
    return CliRunner().invoke(prove, arguments)


def test_a_proof_exits_with_0_and_says_how_far_it_reaches():
    """The table names the theorem, its scope and its verdict; the last line the reach."""
    result = run(NAME)
    assert 0 == result.exit_code
    row = next(line for line in result.output.splitlines() if line.startswith(NAME))
    assert ["bounded", "proved"] == [row.split()[1], row.split()[-1]]
    assert "all paths from  1 running, 3 waiting, priority, a sensible arrival" in result.output
    assert "bounded theorems cover the states that they name" in result.output.splitlines()[-1]


def test_a_wrong_claim_is_shown_with_its_state():
    """A claim that is known to be wrong is refuted, which is as it should be, and shown."""
    result = run(WRONG_CLAIM)
    assert 0 == result.exit_code
    assert "refuted (as it should be)" in result.output
    assert "tokens that this step granted" in result.output


def test_a_broken_theorem_exits_with_1():
    """A theorem that the spec breaks is a finding."""
    with planted(MUTANTS["an_arrival_jumps_the_queue"]):
        result = run(NAME)
    assert 1 == result.exit_code
    assert "FAILED" in result.output


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
    assert theorem["obligations"] > 0


@pytest.mark.parametrize(
    ("answer", "verdict"), [("sat", "violated"), ("unknown", "undetermined"), (None, "holds")]
)
def test_the_second_solver_must_agree(answer, verdict):
    """What cvc5 contradicts is a failure; what it cannot decide is undetermined."""
    unconfirmed = [] if answer is None else [("an obligation", answer)]
    outcome = Outcome(THEOREMS[NAME], Proof(NAME, num_obligations=1))
    report = Report((outcome,), 1.0, Recheck(1, unconfirmed))
    assert verdict == report.verdict
    assert (answer is not None) == ("an obligation" in report.to_text())


def test_nothing_asked_for_is_undetermined():
    """An empty report is no success."""
    assert "undetermined" == Report((), 0.0).verdict
