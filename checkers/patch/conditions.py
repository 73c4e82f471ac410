"""Which ways the conditions on changed lines have gone.

Entry points: `find_conditions` and `Ways`. A condition is what a branch hangs on, down to the parts
that `and`, `or` and `not` put together, a comparison, or which argument `min` or `max` takes. One
that always went the same way says nothing of the other: a part that is left out of a condition can
show only where it would have decided. To see the ways, a module is compiled with each of them
handed through a function that notes it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, TypeGuard

from attrs import frozen

from checkers.patch.operands import truth_of

NOTE, CHOOSE = "__schedcheck_note__", "__schedcheck_choose__"
"""What the functions are called in the module, for what is true or not, and for a choice."""
CHOICES, PAIR = ("min", "max"), 2
BOTH = frozenset({False, True})
Functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Tested = ast.If | ast.While | ast.IfExp


@frozen(order=True)
class Condition:
    """A part of a condition, as it is written."""

    line: int
    column: int
    text: str
    is_value: bool = False
    """Whether it may be what comes of the whole, as {} in `options or {}`."""
    is_choice: bool = False
    """Whether it is the least or the greatest of two: true if that is the first one."""

    def describe(self, way: bool) -> str:
        """How it went."""
        if self.is_choice:
            return f"{self.text} was its {'first' if way else 'second'} argument"
        return f"{self.text} was {str(way).lower()}"


@frozen
class OneWay:
    """A condition, and the ways that it went: not both."""

    condition: Condition
    ways: list[bool]


Conditions = dict[str, list[Condition]]
"""Conditions by file."""


def find_conditions(tree: ast.Module) -> dict[Condition, ast.expr]:
    """The conditions in the functions of a module, but for what is asserted."""
    functions = [node for node in ast.walk(tree) if isinstance(node, Functions)]
    asserted = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        for inner in ast.walk(node)
    }
    nodes = [node for function in functions for node in ast.walk(function)]
    nodes = [node for node in nodes if id(node) not in asserted]
    tested = [leaf for node in nodes for test in _tests_of(node) for leaf in _split(test)]
    tested += [node for node in nodes if isinstance(node, ast.Compare) or _is_choice(node)]
    values = [leaf for node in nodes if isinstance(node, ast.BoolOp) for leaf in _split(node)]
    last = {id(node.values[-1]) for node in nodes if isinstance(node, ast.BoolOp)}
    last -= {id(leaf) for leaf in tested}
    return {
        Condition(
            leaf.lineno,
            leaf.col_offset,
            ast.unparse(leaf),
            is_value=id(leaf) in last,
            is_choice=_is_choice(leaf),
        ): leaf
        for leaf in (*tested, *values)
    }


def _tests_of(node: ast.AST) -> Sequence[ast.expr]:
    if isinstance(node, Tested):
        return (node.test,)
    return node.ifs if isinstance(node, ast.comprehension) else ()


def _is_choice(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether it takes the least or the greatest of two."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in CHOICES
        and len(node.args) == PAIR
        and not node.keywords
        and not any(isinstance(argument, ast.Starred) for argument in node.args)
    )


def _split(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _split(test.operand)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _split(value)
    elif not isinstance(test, ast.Constant):
        yield test


class Ways:
    """The ways that some conditions have not gone yet."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._seen: dict[str, list[set[bool]]] = {
            path: [set() for _ in wanted] for path, wanted in conditions.items()
        }

    def missing(self) -> dict[str, list[OneWay]]:
        """Those that have not gone both ways, by file."""
        return {
            path: [
                OneWay(condition, sorted(seen))
                for condition, seen in zip(wanted, self._seen[path], strict=True)
                if seen != BOTH
            ]
            for path, wanted in self._conditions.items()
        }

    def watch(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        """Lets a module that is about to be imported note its ways, if it has any to note."""
        if spec is not None and spec.origin in self._conditions:
            spec.loader = _NotingLoader(spec.name, spec.origin, self)
        return spec

    def compile(self, source: bytes, path: str) -> CodeType:
        """Compiles a module; its conditions are handed through `NOTE`."""
        tree = ast.parse(source, path)
        found = find_conditions(tree)
        numbers = {
            id(found[condition]): number
            for number, condition in enumerate(self._conditions[path])
            if condition in found
        }
        noting = ast.fix_missing_locations(_Noting(numbers).visit(tree))
        code: CodeType = compile(noting, path, "exec", dont_inherit=True)
        return code

    def note(self, path: str, number: int, value: Any) -> Any:
        """Notes where a value leads, and hands it on."""
        seen = self._seen[path][number]
        if len(seen) < len(BOTH):
            condition = self._conditions[path][number]
            truth = truth_of(value)
            is_told = isinstance(value, bool) or not condition.is_value
            seen |= BOTH if truth is None or not is_told else {truth}
        return value

    def choose(self, path: str, number: int, choice: Callable[[Any, Any], Any], *of: Any) -> Any:
        """Notes whether the first of two is taken; nothing if they are equal."""
        one, other = of
        taken = choice(one, other)
        seen = self._seen[path][number]
        if len(seen) < len(BOTH):
            is_plain = isinstance(one, int | float) and isinstance(other, int | float)
            if not is_plain:
                seen |= BOTH
            elif one != other:
                seen.add(taken == one)
        return taken


class _NotingLoader(SourceFileLoader):
    """Loads a module from its source, and hands it the function that notes."""

    def __init__(self, name: str, path: str, ways: Ways) -> None:
        super().__init__(name, path)
        self._ways = ways

    def get_code(self, fullname: str) -> CodeType:
        return self._ways.compile(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[NOTE] = partial(self._ways.note, self.path)
        vars(module)[CHOOSE] = partial(self._ways.choose, self.path)
        super().exec_module(module)


class _Noting(ast.NodeTransformer):
    """Hands some expressions through `NOTE`, or `CHOOSE`, each with its number."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self._numbers = numbers

    def visit(self, node: ast.AST) -> Any:
        number = self._numbers.get(id(node))
        visited = self.generic_visit(node)
        if number is None or not isinstance(visited, ast.expr):
            return visited
        asked = [visited.func, *visited.args] if _is_choice(visited) else [visited]
        name = ast.Name(CHOOSE if len(asked) > 1 else NOTE, ast.Load())
        return ast.copy_location(ast.Call(name, [ast.Constant(number), *asked], []), visited)
