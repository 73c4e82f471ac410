from __future__ import annotations

import multiprocessing
import re
from concurrent.futures import Future

import attrs
import pytest
import z3

import proofs.theorems  # noqa: F401  (fills the registry)
from proofs.bounded import BoundedTheorem, prove_bounded
from proofs.recheck import Recheck, ask_cvc5, to_smt2
from proofs.scenarios import ASYNC
from proofs.theorem import THEOREMS, Obligation
from tests.proofs.nights import at_night

pytest.importorskip("cvc5", reason="the extra `proofs` brings cvc5")

X = z3.Int("x")


def test_cvc5_confirms_what_z3_proves():
    """Every obligation of a theorem, path by path, is unsatisfiable for cvc5 too."""
    with Recheck() as recheck:
        (proof,) = prove_bounded(
            [attrs.evolve(THEOREMS["budgets_are_kept"], scenarios=(ASYNC,))], export=recheck
        )
    assert ([], proof.num_paths) == (recheck.unconfirmed, recheck.num_confirmed)


def test_cvc5_does_not_confirm_what_is_wrong():
    """An obligation that does not hold is kept with cvc5's answer."""
    with Recheck() as recheck:
        recheck(Obligation("x is above 1", (X > 0,), X > 1))
    assert [("x is above 1", "sat")] == recheck.unconfirmed


def test_what_is_wrong_is_found_among_others():
    """Of obligations that share a question, or what they assume, the wrong one is named."""
    paths = [Obligation(f"path {n}", (X > 0, X < n), X < n - (n == 5)) for n in range(2, 9)]
    goals = [Obligation(f"goal {n}", (X > 3, X > 2), X > n) for n in range(6)]
    with Recheck() as recheck:
        for each in paths + goals:
            recheck(each)
    assert [("path 5", "sat"), ("goal 4", "sat"), ("goal 5", "sat")] == recheck.unconfirmed
    assert len(paths + goals) - 3 == recheck.num_confirmed


def test_what_is_too_hard_together_is_asked_claim_by_claim(monkeypatch):
    """If cvc5 gives up on all that is claimed of a path, each claim by itself may do."""
    monkeypatch.setattr(Recheck, "_submit", submit_to_somebody_hasty)
    easy = Obligation("easy", (X > 3,), z3.And(X > 2, z3.And(X > 1, X > 0)))
    hard = Obligation("hard", (X > 4,), z3.And(X > 2, X * X > 2, X > 1))
    wrong = Obligation("wrong", (X > 5,), z3.And(X > 2, X > 6))
    with Recheck() as recheck:
        for each in (easy, hard, wrong):
            recheck(each)
    assert (1, [("hard", "unknown (TIMEOUT)"), ("wrong", "sat")]) == (
        recheck.num_confirmed,
        recheck.unconfirmed,
    )


def submit_to_somebody_hasty(self, hypotheses, questions):
    """A solver that gives up on conjunctions and on products."""
    texts = [to_smt2(hypotheses, [each.formula]) for each in questions]
    answer = Future()
    answer.set_result(
        ["unknown (TIMEOUT)" if re.search(r"\((and|\*)", t) else ask_cvc5(t)[0] for t in texts]
    )
    return answer


def test_texts_are_shared():
    """Paths are one question, goals of the same hypotheses one text, and both say all they must."""
    text = to_smt2([X > 0], [X < 0, X == 0])
    assert (3, 2) == (text.count("(assert"), text.count("(check-sat)"))
    assert ["unsat", "unsat"] == ask_cvc5(text)
    assert ["sat"] == ask_cvc5(to_smt2([], [X < 0]))


def test_an_interrupt_leaves_no_process():
    """An error, or Ctrl-C, is passed on, and nobody goes on asking."""

    def interrupted(recheck):
        with recheck:
            for n in range(40):
                recheck(Obligation(f"goal {n}", (X > n,), X > 0))
            raise KeyboardInterrupt

    recheck = Recheck()
    with pytest.raises(KeyboardInterrupt):
        interrupted(recheck)
    assert 0 == recheck.num_confirmed
    assert [] == multiprocessing.active_children()


@pytest.mark.slow
@at_night
def test_cvc5_confirms_all_bounded_theorems():
    """Every obligation of the fast set is confirmed."""
    recheck = Recheck()
    about = [each for each in THEOREMS.values() if isinstance(each, BoundedTheorem)]
    prove_bounded(about, export=recheck)
    assert [] == recheck.unconfirmed
