"""Which values a changed line works with, and whether one of them is there while it runs.

Entry points: `find_operands`, `Operand.look` and `truth_of`. An operand is a name, or what is read
of one by dots: `num_tokens`, `self.config.num_lookahead_tokens`. A line that ran only while an
operand was nothing (0, False, None, empty) says little: what the operand does there could not show.
Nothing of an engine is called to find that out, so that looking changes nothing; what only a call
could tell, such as a property, is left out.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Collection, Mapping
from types import CodeType, MemberDescriptorType
from typing import Any

from attrs import frozen

PLAIN_MODULES = ("builtins", "collections")
"""Classes of these say whether they are empty without running anybody's code."""


class _Mark:
    """No value."""


UNBOUND, UNTOLD = _Mark(), _Mark()
"""What has no value yet, and what cannot be read without a call."""


@frozen(order=True)
class Operand:
    """A value that a line reads."""

    line: int
    name: str
    """Names, joined by dots."""
    is_optional: bool = False
    """Whether it is compared with None: then all but None is something."""

    def look(self, names: Mapping[str, Any]) -> str | None:
        """How it looks if it is nothing; "" if it is something, or nobody can tell.

        None if it has no value here.
        """
        root, *attributes = self.name.split(".")
        value = names.get(root, UNBOUND)
        for attribute in attributes:
            if isinstance(value, _Mark):
                break
            value = _read(value, attribute)
        if value is UNBOUND:
            return None
        is_nothing = value is None if self.is_optional else truth_of(value) is False
        return _show(value) if is_nothing else ""


def find_operands(tree: ast.Module, code: CodeType, lines: Collection[int]) -> tuple[Operand, ...]:
    """The operands on some lines of a module, in order: what hangs on a variable of a function.

    Globals are left out: modules, classes, functions and constants do not vary.
    """
    visitor = _Visitor()
    visitor.visit(tree)
    variables = _find_variables(code)
    asked = {
        operand
        for operand in visitor.found
        if operand.line in lines and operand.name.partition(".")[0] in variables[operand.line]
    }
    return tuple(sorted(asked))


def _find_variables(code: CodeType) -> defaultdict[int, set[str]]:
    """By line, the variables of the functions whose code it holds."""
    variables: defaultdict[int, set[str]] = defaultdict(set)
    if code.co_flags & inspect.CO_OPTIMIZED:
        for _, _, line in code.co_lines():
            variables[line or 0] |= {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            for line, names in _find_variables(constant).items():
                variables[line] |= names
    return variables


class _Visitor(ast.NodeVisitor):
    """Collects the longest chains that are read; nobody's message, annotation or own store."""

    def __init__(self) -> None:
        self.found: set[Operand] = set()

    def visit_Name(self, node: ast.Name) -> None:
        self._note(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._note(node):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        # What is called is no operand; the one whose method it is, is.
        if isinstance(node.func, ast.Attribute):
            self.visit(node.func.value)
        elif not isinstance(node.func, ast.Name):
            self.visit(node.func)
        for argument in (*node.args, *node.keywords):
            self.visit(argument)

    def visit_Compare(self, node: ast.Compare) -> None:
        is_optional = all(map(_is_none, node.comparators))
        if not is_optional or not self._note(node.left, is_optional=True):
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        # What an assertion wants to be nothing is not asked to be something.
        terms = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        for term in terms:
            if not _wants_nothing(term):
                self.visit(term)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def _note(self, node: ast.expr, *, is_optional: bool = False) -> bool:
        """Whether it is a chain; then it is noted, if it is read."""
        names: list[str] = []
        end = node
        while isinstance(end, ast.Attribute):
            names.append(end.attr)
            end = end.value
        if not isinstance(end, ast.Name):
            return False
        if isinstance(getattr(node, "ctx", None), ast.Load):
            name = ".".join([end.id, *reversed(names)])
            self.found.add(Operand(end.lineno, name, is_optional))
        return True


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _wants_nothing(node: ast.expr) -> bool:
    if isinstance(node, ast.Compare):
        last = node.comparators[-1]
        is_same = isinstance(node.ops[-1], ast.Eq | ast.Is)
        return is_same and isinstance(last, ast.Constant) and not last.value
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


# ---- reading without calling ---------------------------------------------------------------------


def _read(value: Any, name: str) -> Any:
    """What lies in an object under a name: in its dictionary, its slots or its class."""
    found = inspect.getattr_static(value, name, UNBOUND)
    if isinstance(found, MemberDescriptorType):
        try:
            return found.__get__(value)
        except AttributeError:  # A slot that is not filled yet.
            return UNBOUND
    return UNTOLD if hasattr(type(found), "__get__") else found


def truth_of(value: Any) -> bool | None:
    """Whether a value counts as true; None if only code of others could say so."""
    if value is None:
        return False
    for name in ("__bool__", "__len__"):
        for kind in type(value).__mro__:
            if name in vars(kind):
                return bool(value) if kind.__module__ in PLAIN_MODULES else None
    return True


def _show(value: Any) -> str:
    if value is None or type(value).__module__ == "builtins":
        return repr(value)
    return int.__repr__(value) if isinstance(value, int) else "nothing in it"
