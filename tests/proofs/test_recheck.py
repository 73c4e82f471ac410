from __future__ import annotations

import attrs
import pytest
import z3

from proofs.bounded import prove_bounded
from proofs.recheck import Recheck
from proofs.scenarios import ASYNC
from proofs.theorem import THEOREMS, Obligation
from tests.proofs.nights import at_night

pytest.importorskip("cvc5", reason="the extra `proofs` brings cvc5")


def test_cvc5_confirms_what_z3_proves():
    """Every obligation of a theorem, path by path, is unsatisfiable for cvc5 too."""
    recheck = Recheck()
    (proof,) = prove_bounded(
        [attrs.evolve(THEOREMS["budgets_are_kept"], scenarios=(ASYNC,))], export=recheck
    )
    assert ([], proof.num_paths) == (recheck.unconfirmed, recheck.num_confirmed)


def test_cvc5_does_not_confirm_what_is_wrong():
    """An obligation that does not hold is kept with cvc5's answer."""
    x = z3.Int("x")
    recheck = Recheck()
    recheck(Obligation("x is above 1", (x > 0,), x > 1))
    assert [("x is above 1", "sat")] == recheck.unconfirmed


@pytest.mark.slow
@at_night
def test_cvc5_confirms_all_bounded_theorems():
    """Every obligation of the fast set is confirmed."""
    recheck = Recheck()
    prove_bounded([each for each in THEOREMS.values() if each.scope == "bounded"], export=recheck)
    assert [] == recheck.unconfirmed
