from __future__ import annotations

import itertools
import operator

import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

from proofs.symbolic import values
from proofs.symbolic.values import (
    Same,
    SymInt,
    UnsupportedError,
    all_of,
    any_of,
    choose,
    implies,
    integer,
    negate,
    symbolic_len,
    symbolic_max,
    symbolic_min,
    term,
    value_in,
)

NUMBERS = st.integers(-50, 50)
ARITHMETIC = [operator.add, operator.sub]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def symbol(number):
    """A symbol that is a number."""
    return SymInt(z3.IntVal(number))


def value_of(value):
    """The plain value of a closed term."""
    simple = z3.simplify(term(value))
    return z3.is_true(simple) if z3.is_bool(simple) else simple.as_long()


@given(NUMBERS, NUMBERS)
def test_a_symbol_computes_as_an_integer(a, b):
    """Arithmetic and comparisons of symbols, mixed or not, give what Python's integers give."""
    for compute in ARITHMETIC + COMPARISONS:
        expected = compute(a, b)
        assert expected == value_of(compute(symbol(a), symbol(b)))
        assert expected == value_of(compute(symbol(a), b))
        assert expected == value_of(compute(a, symbol(b)))
    assert -a == value_of(-symbol(a))
    assert a * 3 == value_of(symbol(a) * 3)


@given(NUMBERS, st.integers(1, 20))
def test_a_symbol_divides_as_an_integer(a, divisor):
    """Division rounds down, of negative numbers too, and the remainder fits it."""
    assert a // divisor == value_of(symbol(a) // divisor)
    assert a % divisor == value_of(symbol(a) % divisor)


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_min_and_max_do_not_fork(numbers):
    """Outside of an executor, where a fork is an error, `min` and `max` find the right number."""
    symbols = [symbol(number) for number in numbers]
    assert min(numbers) == value_of(symbolic_min(*symbols))
    assert max(numbers) == value_of(symbolic_max(*symbols))
    assert min(numbers) == symbolic_min(*numbers)
    assert max(numbers) == symbolic_max(*numbers)


@pytest.mark.parametrize(("a", "b"), list(itertools.product([False, True], repeat=2)))
def test_connectives_agree_on_plain_and_symbolic_truths(a, b):
    """`all_of`, `any_of`, `implies`, `negate` and `choose` are what logic says, of either kind."""
    for lift in (lambda truth: truth, lambda truth: symbol(int(truth)) == 1):
        assert (a and b) == value_of(all_of(lift(a), lift(b)))
        assert (a or b) == value_of(any_of(lift(a), lift(b)))
        assert (not a or b) == value_of(implies(lift(a), lift(b)))
        assert (not a) == value_of(negate(lift(a)))
        assert (1 if a else 2) == value_of(choose(lift(a), 1, 2))


@pytest.mark.parametrize(
    "use",
    [
        bool,
        int,
        float,
        range,
        round,
        abs,
        hash,
        lambda x: x / 2,
        lambda x: x * x,
        lambda x: x // x,
        lambda x: 5 // x,
        lambda x: x // -2,
        lambda x: x**2,
        lambda x: x & 1,
        lambda x: [1, 2][x],
        lambda x: f"{x}",
        lambda x: {x},
        lambda x: bool(x > 0),
        lambda x: 1 if x == 0 else 2,
    ],
)
def test_what_has_no_symbolic_meaning_is_refused(use):
    """Nothing is made concrete silently: each of these raises, outside of an executor."""
    with pytest.raises((UnsupportedError, TypeError)):
        use(integer("x"))


def test_len_of_what_is_no_symbol_is_plain():
    """`symbolic_len` of a list is `len`."""
    assert symbolic_len([1, 2]) == 2


def test_a_term_is_made_once():
    """The same operation on the same terms gives the very same term, another one another."""
    x, y = integer("x"), integer("y")
    assert (x + y) is (x + y)
    assert (x - y) is not (y - x)
    assert (x < y) is not (x <= y)
    assert (x + 1) is not (x + 2)


def test_what_was_forgotten_is_made_again(monkeypatch):
    """An operation that remembers no more than a few terms still gives the right ones."""
    monkeypatch.setattr(values, "MAX_NUM_TERMS", 2)
    for a, b in itertools.product(range(-3, 4), repeat=2):
        assert a + b == value_of(symbol(a) + symbol(b))


def test_terms_are_keys_by_identity():
    """As keys, equal terms are one, others are not, and no formula is built to tell."""
    x = integer("x").term
    assert {Same(x): 1, Same(z3.Int("x")): 2, Same(x + 1): 3} == {Same(x): 2, Same(x + 1): 3}


@given(NUMBERS)
def test_a_symbol_has_a_value_in_a_model(number):
    """Numbers and truths are read out of a model; what it leaves open is 0 or false."""
    x = integer("x")
    solver = z3.Solver()
    solver.add((x == number).term)
    solver.check()
    model = solver.model()
    assert number + 1 == value_in(model, x + 1)
    assert (number > 0) is value_in(model, x > 0)
    assert (0, False) == (value_in(model, integer("y")), value_in(model, integer("y") > 0))
