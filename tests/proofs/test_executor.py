from __future__ import annotations

import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

from proofs.symbolic.executor import Executor, UnsteadyError, VacuousError
from proofs.symbolic.values import integer


def triangle(sides):
    """Classifies a triangle by its sides."""
    a, b, c = sides
    if a + b <= c or b + c <= a or a + c <= b:
        return "none"
    if a == b and b == c:
        return "equilateral"
    return "isosceles" if any((a == b, b == c, a == c)) else "scalene"


def setup():
    """Any three positive sides."""
    sides = [integer(name) for name in "abc"]
    return sides, [side > 0 for side in sides]


def paths():
    """All ways through `triangle`."""
    return list(Executor().paths(setup, triangle))


def test_every_path_is_found():
    """A classic with eleven ways through it: 3 to "none", 1, 3 and 1 to the others."""
    results = [path.result for path in paths()]
    assert {"none", "equilateral", "isosceles", "scalene"} == set(results)
    assert 3 == results.count("none")
    assert 1 == results.count("scalene")


def test_paths_are_exhaustive_and_disjoint():
    """With the precondition, exactly one path's condition is true, whatever the numbers are."""
    found = paths()
    solver = z3.Solver()
    solver.add(*[fact.term for fact in setup()[1]])
    conditions = [z3.And(*path.condition) for path in found]
    assert z3.unsat == solver.check(z3.Not(z3.Or(*conditions)))
    for number, one in enumerate(conditions):
        for other in conditions[:number]:
            assert z3.unsat == solver.check(one, other)


def test_a_model_goes_its_path():
    """Each path's model, run on plain integers, gives the path's result."""
    for path in paths():
        sides = [path.model.eval(z3.Int(name), model_completion=True).as_long() for name in "abc"]
        assert path.result == triangle(sides)


@given(st.lists(st.integers(1, 6), min_size=3, max_size=3))
def test_any_start_is_on_the_path_of_its_result(sides):
    """A plain run ends as the path says on whose condition its start is."""
    start = [z3.Int(name) == side for name, side in zip("abc", sides, strict=True)]
    for path in FOUND:
        solver = z3.Solver()
        solver.add(*path.condition, *start)
        if solver.check() == z3.sat:
            assert path.result == triangle(sides)


FOUND = paths()


def test_a_contradiction_is_no_proof():
    """A precondition without a model raises, since everything would hold."""

    def no_start():
        return None, [integer("x") > 0, integer("x") < 0]

    with pytest.raises(VacuousError, match="no start"):
        list(Executor().paths(no_start, triangle))


def test_code_that_changes_its_mind_is_noticed():
    """Code that asks other things when it is run again raises: its paths would mean nothing."""
    asked = iter(range(5, 10))

    def body(sides):
        # The second run of the code begins with another question.
        return sides[0] > next(asked) and sides[1] > 7

    with pytest.raises(UnsteadyError, match="in the run before"):
        list(Executor().paths(setup, body))


LINEAR = st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-9, 9))
PROGRAMS = st.recursive(LINEAR, lambda inner: st.tuples(LINEAR, inner, inner), max_leaves=8)


def value(linear, x, y):
    """A linear expression at a place."""
    return x * linear[0] + y * linear[1] + linear[2]


def run_program(program, x, y):
    """A program is an expression, or a condition and two programs."""
    while not isinstance(program[1], int):
        condition, yes, no = program
        program = yes if value(condition, x, y) > 0 else no
    return value(program, x, y)


@given(PROGRAMS, st.integers(-20, 20), st.integers(-20, 20))
def test_random_programs_do_on_symbols_what_they_do_on_integers(program, x, y):
    """Exactly one path is open to a start, and its result is what the plain run returns."""
    found = Executor().paths(
        lambda: ([integer("x"), integer("y")], []), lambda start: run_program(program, *start)
    )
    start = [(z3.Int("x"), z3.IntVal(x)), (z3.Int("y"), z3.IntVal(y))]

    def at_start(formula):
        return z3.simplify(z3.substitute(formula, *start))

    results = [
        at_start(path.result.term).as_long()
        for path in found
        if z3.is_true(at_start(z3.And(True, *path.condition)))
    ]
    assert [run_program(program, x, y)] == results
