from __future__ import annotations

import pytest
import z3

from proofs.symbolic.heap import Memory, SymList
from proofs.symbolic.prover import Prover
from proofs.symbolic.values import SymInt
from proofs.unbounded.pool import Block, prove_allocate, prove_free
from proofs.unbounded.watch import NUM_RUNS
from proofs.unbounded.watch_pool import find_pool_breach


@pytest.mark.parametrize(("prove", "at_least"), [(prove_allocate, 55), (prove_free, 85)])
def test_a_table_of_any_length_is_proved_with_any_sharing(prove, at_least):
    """Handing out and freeing are proved for any number of blocks, tables and hits."""
    prover = prove()
    assert prover.unproved is None
    assert len(prover.discharged) >= at_least


def test_the_real_pool_keeps_its_books():
    """Random runs with a prefix cache find nothing wrong with the real pool."""
    assert NUM_RUNS >= 100
    assert find_pool_breach() is None


# ---- a list of any length does what a list does --------------------------------------------------


def prove_list(goal_of):
    """Shows a goal about a list of three that was grown in the middle or shrunk there."""
    prover = Prover()

    def body():
        memory = Memory(prover)
        memory.add_arrays("where", "pos")
        numbers = SymList(memory, "numbers", 1, Block)
        key = z3.Int("key")
        where = memory["where"]
        prover.assume(z3.ForAll([key], where[key] == 0, patterns=[where[key]]))
        numbers.empty()
        for number in (10, 20, 30):
            numbers.append(Block(z3.IntVal(number)))
        prover.oblige("as a list", goal_of(numbers))
        prover.oblige_all(numbers.representation)

    prover.prove(body)
    return prover.unproved


def grown(numbers, expected):
    """Whether the list is as expected once 15 was put behind the first."""
    numbers.insert(SymInt(z3.IntVal(1)), Block(z3.IntVal(15)))
    return holds(numbers, expected)


def shrunk(numbers, expected):
    """Whether the list is as expected once the second was removed."""
    numbers.remove(Block(z3.IntVal(20)))
    return holds(numbers, expected)


def holds(numbers, expected):
    """Whether a list holds just these."""
    same = [numbers.arr[numbers.lo + place] == value for place, value in enumerate(expected)]
    return z3.And(numbers.hi - numbers.lo == len(expected), *same)


@pytest.mark.parametrize(
    ("change", "expected"), [(grown, [10, 15, 20, 30]), (shrunk, [10, 30])], ids=["grown", "shrunk"]
)
def test_who_stands_behind_moves(change, expected):
    """Who joins or leaves in the middle moves all behind it by one place, and nobody else."""
    assert prove_list(lambda numbers: change(numbers, expected)) is None
    assert prove_list(lambda numbers: change(numbers, expected[::-1])) is not None
