"""Symbolic integers and truths: what the spec's plain integers become in a proof.

Entry points: `SymInt`, `integer`, the connectives `all_of`, `any_of` and `implies`, which also take
plain truths, and the stand-ins for `min`, `max` and `len`; none of them forks. An operation that
these values do not support raises `UnsupportedError`; nothing is ever made concrete silently.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import z3
from attrs import define, field


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


class Same:
    """A term as a part of a key: equal to itself only. z3 builds a formula to compare two terms."""

    __slots__ = ("address", "kept")

    def __init__(self, value: z3.ExprRef) -> None:
        self.address: int = value.ast.value
        # So that no other term gets this address.
        self.kept = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)


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


Made = TypeVar("Made")

_CONTEXT = z3.main_ctx()
MAX_NUM_TERMS = 50_000
"""How many terms an operation remembers before it begins anew."""


@define(eq=False)
class _Operation(Generic[Made]):
    """A constructor of z3: what it has made of some terms before, it does not make again.

    Paths of one piece of code begin alike, and z3's own operators check sorts that are known here:
    both cost more time than the solver needs.
    """

    make: Callable[..., Any]
    wrap: Callable[[Any], Made]
    """What becomes of the bare term."""
    takes_list: bool = False
    _made: dict[tuple[int, ...], tuple[Made, tuple[Any, ...]]] = field(factory=dict)
    """By the addresses of the terms, which are kept so that no other term gets these."""

    def __call__(self, *values: Any) -> Made:
        terms = tuple([term(value) for value in values])
        key = tuple([each.ast.value for each in terms])
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= MAX_NUM_TERMS:
                self._made.clear()
            made = self._made[key] = (self.wrap(self._make_of(terms)), terms)
        return made[0]

    def _make_of(self, terms: tuple[Any, ...]) -> Any:
        asts = [each.ast for each in terms]
        if self.takes_list:
            return self.make(_CONTEXT.ref(), len(asts), (z3.Ast * len(asts))(*asts))
        return self.make(_CONTEXT.ref(), *asts)


def _to_integer(ast: Any) -> SymInt:
    return SymInt(z3.ArithRef(ast, _CONTEXT))


def _to_truth(ast: Any) -> SymBool:
    return SymBool(z3.BoolRef(ast, _CONTEXT))


_ADD = _Operation(z3.Z3_mk_add, _to_integer, takes_list=True)
_SUBTRACT = _Operation(z3.Z3_mk_sub, _to_integer, takes_list=True)
_MULTIPLY = _Operation(z3.Z3_mk_mul, _to_integer, takes_list=True)
_DIVIDE = _Operation(z3.Z3_mk_div, _to_integer)
_REMAINDER = _Operation(z3.Z3_mk_mod, _to_integer)
_IF = _Operation(z3.Z3_mk_ite, _to_integer)
_LESS = _Operation(z3.Z3_mk_lt, _to_truth)
_AT_MOST = _Operation(z3.Z3_mk_le, _to_truth)
_GREATER = _Operation(z3.Z3_mk_gt, _to_truth)
_AT_LEAST = _Operation(z3.Z3_mk_ge, _to_truth)
_EQUAL = _Operation(z3.Z3_mk_eq, _to_truth)
_NOT = _Operation(z3.Z3_mk_not, _to_truth)
_AND = _Operation(z3.Z3_mk_and, _to_truth, takes_list=True)
_OR = _Operation(z3.Z3_mk_or, _to_truth, takes_list=True)


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
        return _ADD(self, other)

    def __radd__(self, other: Any) -> SymInt:
        return _ADD(other, self)

    def __sub__(self, other: Any) -> SymInt:
        return _SUBTRACT(self, other)

    def __rsub__(self, other: Any) -> SymInt:
        return _SUBTRACT(other, self)

    def __neg__(self) -> SymInt:
        return _SUBTRACT(0, self)

    def __mul__(self, other: Any) -> SymInt:
        if not isinstance(other, int):
            raise UnsupportedError(f"{self!r} * {other!r} is not linear; fix one side")
        return _MULTIPLY(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> SymInt:
        self._check_divisor(other)
        # z3 rounds towards minus infinity for a positive divisor, as Python does.
        return _DIVIDE(self, other)

    def __mod__(self, other: Any) -> SymInt:
        self._check_divisor(other)
        return _REMAINDER(self, other)

    def _check_divisor(self, other: Any) -> None:
        if not (isinstance(other, int) and other > 0):
            raise UnsupportedError(f"{self!r} is divided by {other!r}, not by a positive constant")

    def __lt__(self, other: Any) -> SymBool:
        return _LESS(self, other)

    def __le__(self, other: Any) -> SymBool:
        return _AT_MOST(self, other)

    def __gt__(self, other: Any) -> SymBool:
        return _GREATER(self, other)

    def __ge__(self, other: Any) -> SymBool:
        return _AT_LEAST(self, other)

    def __eq__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(_constant_truth(False)) if other is None else _EQUAL(self, other)

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


def value_in(model: z3.ModelRef, value: SymInt | SymBool) -> int:
    """What a symbol is in a model; what the model leaves open is 0, or false.

    z3's own way of asking builds objects for what is thrown away, and proofs ask very often.
    """
    context, found = _CONTEXT.ref(), (z3.Ast * 1)()
    z3.Z3_model_eval(context, model.model, value.term.ast, True, found)
    if isinstance(value, SymBool):
        return bool(z3.Z3_get_bool_value(context, found[0]) == z3.Z3_L_TRUE)
    return int(z3.Z3_get_numeral_string(context, found[0]))


def is_symbolic(value: Any) -> bool:
    """Whether a value is a term, of ours or of z3, and not a plain one."""
    return isinstance(value, SymInt | SymBool | z3.ExprRef)


def conjunction(*values: Any) -> z3.BoolRef:
    """All of the values, which may be symbolic or plain truths, as one z3 term."""
    return term(_join(_AND, values, True))


def _join(operation: _Operation[SymBool], values: tuple[Any, ...], of_nothing: bool) -> SymBool:
    # Of nothing, or of one thing, z3 would write what is no SMT-LIB.
    if len(values) < 2:
        return SymBool(term(values[0] if values else of_nothing))
    return operation(*values)


def all_of(*values: Any) -> Any:
    """Whether all of the values are true: plain if they are, else a symbol; never forks."""
    if any(is_symbolic(value) for value in values):
        return _join(_AND, values, True)
    return all(values)


def any_of(*values: Any) -> Any:
    """Whether any of the values is true: plain if they are, else a symbol; never forks."""
    if any(is_symbolic(value) for value in values):
        return _join(_OR, values, False)
    return any(values)


def negate(value: Any) -> Any:
    """Whether a value is false; never forks."""
    return _NOT(value) if is_symbolic(value) else not value


def implies(condition: Any, conclusion: Any) -> Any:
    """Whether the conclusion holds wherever the condition does; never forks."""
    return any_of(negate(condition), conclusion)


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """One of two integers, without a fork."""
    if isinstance(condition, SymBool):
        return _IF(condition, yes, no)
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
