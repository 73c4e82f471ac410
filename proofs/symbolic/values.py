"""Symbolic integers and truths: what the spec's plain integers become in a proof.

Entry points: `SymInt`, `integer`, the connectives `all_of`, `any_of` and `implies`, which also take
plain truths, and the stand-ins for `min`, `max` and `len`; none of them forks. An operation that
these values do not support raises `UnsupportedError`; nothing is ever made concrete silently.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn, Protocol

import z3


class UnsupportedError(TypeError):
    """The code under proof did something to a symbol that has no symbolic meaning here."""


class Brancher(Protocol):
    """Who decides which way a symbolic truth goes."""

    def branch(self, condition: z3.BoolRef) -> bool:
        """Takes a side, and remembers to come back for the other one."""


class _Current:
    """The executor that is running, if any."""

    brancher: Brancher | None = None


CURRENT = _Current()


def term(value: Any) -> Any:
    """The z3 term of a symbolic or plain value."""
    if isinstance(value, SymInt | SymBool):
        return value.term
    if isinstance(value, bool):
        return _constant_truth(value)
    if isinstance(value, int):
        return _constant(int(value))
    return value


@lru_cache(maxsize=4096)
def _constant(value: int) -> z3.ArithRef:
    # Building a term costs more than most questions to the solver, so they are kept.
    return z3.IntVal(value)


@lru_cache(maxsize=2)
def _constant_truth(value: bool) -> z3.BoolRef:
    return z3.BoolVal(value)


class SymBool:
    """A truth that depends on symbols; asking it forks the run."""

    __slots__ = ("term",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, condition: z3.BoolRef) -> None:
        self.term = condition

    def __bool__(self) -> bool:
        if CURRENT.brancher is None:
            raise UnsupportedError(f"the truth of {self.term} was asked outside of an executor")
        return CURRENT.brancher.branch(self.term)

    def __repr__(self) -> str:
        return f"<{self.term}>"


_CONTEXT = z3.main_ctx()
_Make = Callable[..., Any]


def _combine(make: _Make, *terms: z3.ExprRef) -> Any:
    """Calls a constructor of z3 that takes any number of terms.

    z3's own operators check the sorts of what they are given, which is known here, and that costs
    more time than the solver needs.
    """
    return make(_CONTEXT.ref(), len(terms), (z3.Ast * len(terms))(*[t.ast for t in terms]))


def _integer(make: _Make, a: Any, b: Any) -> SymInt:
    return SymInt(z3.ArithRef(_combine(make, term(a), term(b)), _CONTEXT))


def _truth(make: _Make, a: Any, b: Any) -> SymBool:
    return SymBool(z3.BoolRef(make(_CONTEXT.ref(), term(a).ast, term(b).ast), _CONTEXT))


def _refuse(operation: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *arguments: Any) -> NoReturn:
        raise UnsupportedError(f"{operation} is not supported on the symbol {self!r}")

    return refuse


class SymInt:
    """An integer that is a term. Arithmetic gives terms, comparisons give truths."""

    __slots__ = ("term",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: z3.ArithRef) -> None:
        self.term = value

    def __add__(self, other: Any) -> SymInt:
        return _integer(z3.Z3_mk_add, self, other)

    def __radd__(self, other: Any) -> SymInt:
        return _integer(z3.Z3_mk_add, other, self)

    def __sub__(self, other: Any) -> SymInt:
        return _integer(z3.Z3_mk_sub, self, other)

    def __rsub__(self, other: Any) -> SymInt:
        return _integer(z3.Z3_mk_sub, other, self)

    def __neg__(self) -> SymInt:
        return SymInt(-self.term)

    def __mul__(self, other: Any) -> SymInt:
        if not isinstance(other, int):
            raise UnsupportedError(f"{self!r} * {other!r} is not linear; fix one side")
        return SymInt(self.term * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> SymInt:
        self._check_divisor(other)
        # z3 rounds towards minus infinity for a positive divisor, as Python does.
        return SymInt(self.term / other)

    def __mod__(self, other: Any) -> SymInt:
        self._check_divisor(other)
        return SymInt(self.term % other)

    def _check_divisor(self, other: Any) -> None:
        if not (isinstance(other, int) and other > 0):
            raise UnsupportedError(f"{self!r} is divided by {other!r}, not by a positive constant")

    def __lt__(self, other: Any) -> SymBool:
        return _truth(z3.Z3_mk_lt, self, other)

    def __le__(self, other: Any) -> SymBool:
        return _truth(z3.Z3_mk_le, self, other)

    def __gt__(self, other: Any) -> SymBool:
        return _truth(z3.Z3_mk_gt, self, other)

    def __ge__(self, other: Any) -> SymBool:
        return _truth(z3.Z3_mk_ge, self, other)

    def __eq__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(z3.BoolVal(False)) if other is None else _truth(z3.Z3_mk_eq, self, other)

    def __ne__(self, other: object) -> SymBool:  # type: ignore[override]
        return negate(self == other)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self != 0)

    __int__ = _refuse("int()")
    __index__ = _refuse("use as an index or in range()")
    __float__ = _refuse("float()")
    __truediv__ = _refuse("/")
    __rtruediv__ = _refuse("/")
    __rfloordiv__ = _refuse("// by a symbol")
    __rmod__ = _refuse("% by a symbol")
    __divmod__ = _refuse("divmod()")
    __pow__ = _refuse("**")
    __rpow__ = _refuse("**")
    __lshift__ = _refuse("<<")
    __rshift__ = _refuse(">>")
    __and__ = _refuse("&")
    __or__ = _refuse("|")
    __xor__ = _refuse("^")
    __invert__ = _refuse("~")
    __abs__ = _refuse("abs()")
    __round__ = _refuse("round()")
    __format__ = _refuse("a format")

    def __repr__(self) -> str:
        return f"<{self.term}>"


@lru_cache(maxsize=4096)
def integer(name: str) -> SymInt:
    """An integer known by its name only."""
    return SymInt(z3.Int(name))


def is_symbolic(value: Any) -> bool:
    """Whether a value is a term, of ours or of z3, and not a plain one."""
    return isinstance(value, SymInt | SymBool | z3.ExprRef)


def conjunction(*values: Any) -> z3.BoolRef:
    """All of the values, which may be symbolic or plain truths, as one z3 term."""
    return _junction(z3.Z3_mk_and, values, True)


def _junction(make: _Make, values: tuple[Any, ...], of_nothing: bool) -> z3.BoolRef:
    # Of nothing, or of one thing, z3 would write what is no SMT-LIB.
    if len(values) < 2:
        return term(values[0] if values else of_nothing)
    return z3.BoolRef(_combine(make, *[term(value) for value in values]), _CONTEXT)


def all_of(*values: Any) -> Any:
    """Whether all of the values are true: plain if they are, else a symbol; never forks."""
    if any(is_symbolic(value) for value in values):
        return SymBool(conjunction(*values))
    return all(values)


def any_of(*values: Any) -> Any:
    """Whether any of the values is true: plain if they are, else a symbol; never forks."""
    if any(is_symbolic(value) for value in values):
        return SymBool(_junction(z3.Z3_mk_or, values, False))
    return any(values)


def negate(value: Any) -> Any:
    """Whether a value is false; never forks."""
    if not is_symbolic(value):
        return not value
    return SymBool(z3.BoolRef(z3.Z3_mk_not(_CONTEXT.ref(), term(value).ast), _CONTEXT))


def implies(condition: Any, conclusion: Any) -> Any:
    """Whether the conclusion holds wherever the condition does; never forks."""
    return any_of(negate(condition), conclusion)


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """One of two integers, without a fork."""
    if isinstance(condition, SymBool):
        arguments = (condition.term.ast, term(yes).ast, term(no).ast)
        return SymInt(z3.ArithRef(z3.Z3_mk_ite(_CONTEXT.ref(), *arguments), _CONTEXT))
    return yes if condition else no


def symbolic_min(*values: Any) -> Any:
    """`min` without a fork."""
    least = values[0]
    for value in values[1:]:
        least = choose(value < least, value, least)
    return least


def symbolic_max(*values: Any) -> Any:
    """`max` without a fork."""
    greatest = values[0]
    for value in values[1:]:
        greatest = choose(value > greatest, value, greatest)
    return greatest


def symbolic_len(container: Any) -> Any:
    """`len` that a symbolic container may answer with a symbol."""
    if hasattr(container, "symbolic_len"):
        return container.symbolic_len()
    return len(container)
