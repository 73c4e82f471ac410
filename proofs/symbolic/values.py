"""Symbolic integers and truths: what the spec's plain integers become in a proof.

Entry points: `SymInt`, `integer`, and the stand-ins for `min`, `max` and `len` that do not fork. An operation that
these values do not support raises `UnsupportedError`; nothing is ever turned into a concrete value silently.
"""

from __future__ import annotations

from collections.abc import Callable
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
        return z3.BoolVal(value)
    if isinstance(value, int):
        return z3.IntVal(int(value))
    return value


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
        return SymInt(self.term + term(other))

    def __radd__(self, other: Any) -> SymInt:
        return SymInt(term(other) + self.term)

    def __sub__(self, other: Any) -> SymInt:
        return SymInt(self.term - term(other))

    def __rsub__(self, other: Any) -> SymInt:
        return SymInt(term(other) - self.term)

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
        return SymBool(self.term < term(other))

    def __le__(self, other: Any) -> SymBool:
        return SymBool(self.term <= term(other))

    def __gt__(self, other: Any) -> SymBool:
        return SymBool(self.term > term(other))

    def __ge__(self, other: Any) -> SymBool:
        return SymBool(self.term >= term(other))

    def __eq__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(z3.BoolVal(False)) if other is None else SymBool(self.term == term(other))

    def __ne__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(z3.BoolVal(True)) if other is None else SymBool(self.term != term(other))

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


def integer(name: str) -> SymInt:
    """A fresh integer, known by its name only."""
    return SymInt(z3.Int(name))


def conjunction(*values: Any) -> z3.BoolRef:
    """All of the values, which may be symbolic or plain truths."""
    return z3.And(*[term(value) for value in values])


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """One of two integers, without a fork."""
    if isinstance(condition, SymBool):
        return SymInt(z3.simplify(z3.If(condition.term, term(yes), term(no))))
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
