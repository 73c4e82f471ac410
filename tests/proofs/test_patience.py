from __future__ import annotations

import attrs
import pytest
import z3

import proofs.theorems  # noqa: F401  (fills the registry)
from proofs.bounded import prove_bounded
from proofs.scenarios import SMALL_BLOCKS
from proofs.symbolic import patience
from proofs.symbolic.patience import PatientSolver, ask_afresh
from proofs.symbolic.prover import Prover
from proofs.theorem import THEOREMS

A, B, C = z3.Ints("a b c")
HARD = [A > 0, B > 0, C > 0, 31 * A + 37 * B == 41 * C, A % 16 == 3, B % 16 == 5, A + B < 999]
"""True together, and not at a glance."""


@pytest.fixture
def hasty(monkeypatch):
    """A first try that may spend next to nothing, and a second one that may spend what is usual."""
    monkeypatch.setattr(patience, "AFRESH", patience.LIMIT)
    monkeypatch.setattr(patience, "LIMIT", 1)


def test_a_question_on_which_the_solver_gives_up_is_asked_afresh(hasty):
    """The second try answers, with a model of the very terms that were asked about."""
    solver = PatientSolver()
    solver.add(*HARD)
    assert z3.sat == solver.check()
    model = solver.model()
    assert [True] * len(HARD) == [z3.is_true(model.eval(fact, True)) for fact in HARD]
    assert z3.unsat == solver.check(C < 0)


def test_the_first_answer_counts_where_there_is_one():
    """A question that is answered at once is not asked again."""
    solver = PatientSolver()
    solver.add(A > 3, A < 5)
    assert z3.sat == solver.check()
    assert 4 == solver.model()[A].as_long()


def test_giving_up_twice_is_not_known(monkeypatch):
    """If the second try gives up, too, the answer is that it is not known, and why."""
    monkeypatch.setattr(patience, "LIMIT", 1)
    monkeypatch.setattr(patience, "AFRESH", 1)
    solver = PatientSolver()
    solver.add(*HARD)
    assert z3.unknown == solver.check()
    assert solver.reason_unknown().startswith("given up twice: ")


def test_a_second_try_owes_nothing_to_what_was_asked_before():
    """In its own context a question gets the same answer, however many terms there are here."""
    before = ask_afresh(HARD, {}, patience.LIMIT)
    kept = [z3.Int(f"x{number}") + A for number in range(1000)]
    after = ask_afresh(HARD, {}, patience.LIMIT)
    assert str(before.model) == str(after.model)
    assert 1000 == len(kept)


def test_a_theorem_survives_a_hasty_solver(hasty):
    """What is proved does not hang on the first try."""
    whole = THEOREMS["a_sample_needs_everything_computed"]
    (proof,) = prove_bounded([attrs.evolve(whole, scenarios=(SMALL_BLOCKS,))])
    assert ("proved", []) == (proof.verdict, proof.undecided)


def test_an_obligation_in_the_middle_of_a_run_is_asked_afresh(hasty):
    """The prover's limit is that of a first try."""
    prover = Prover(limit=1)

    def body():
        prover.assume(*HARD)
        prover.oblige("b is odd", B % 2 == 1)

    prover.prove(body)
    assert prover.unproved is None
    assert 2 == prover.num_queries
