"""The small edits that make mutants: of one node of a syntax tree, whatever stands around it.

Entry point: `find_edits`. An edit is a kind and the node that takes the place of the old one; it
reuses the old one's parts, so it is for one use at a time.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

Edit = tuple[str, ast.AST]
"""The kind, and what stands there instead."""

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
"""A limit moves by one; what has no neighbour is denied."""
DENIED = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
EXTREMES = {"min": "max", "max": "min"}


def find_edits(node: ast.AST) -> Iterator[Edit]:
    """Yields each small edit of a node itself; its parts have their own."""
    for kind, find in FINDERS.items():
        if isinstance(node, kind):
            yield from find(node)


def _edit_compare(node: ast.Compare) -> Iterator[Edit]:
    for index, operator in enumerate(node.ops):
        # Where the limit is a number, to move it by one is an edit of that number.
        if isinstance(operator, DENIED) or not _is_number(node.comparators[index]):
            ops = [*node.ops[:index], COMPARED[type(operator)](), *node.ops[index + 1 :]]
            yield "comparison", ast.Compare(node.left, ops, node.comparators)


def _edit_operation(node: ast.BinOp | ast.AugAssign) -> Iterator[Edit]:
    if type(node.op) in CALCULATED:
        operator = CALCULATED[type(node.op)]()
        if isinstance(node, ast.BinOp):
            yield "arithmetic", ast.BinOp(node.left, operator, node.right)
        else:
            yield "arithmetic", ast.AugAssign(node.target, operator, node.value)


def _edit_boolean(node: ast.BoolOp) -> Iterator[Edit]:
    operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "boolean", ast.BoolOp(operator, node.values)
    for index in range(len(node.values)):
        others = [*node.values[:index], *node.values[index + 1 :]]
        rest = others[0] if len(others) == 1 else ast.BoolOp(node.op, others)
        yield "boolean", rest


def _edit_unary(node: ast.UnaryOp) -> Iterator[Edit]:
    if isinstance(node.op, ast.Not):
        yield "boolean", node.operand


def _edit_constant(node: ast.Constant) -> Iterator[Edit]:
    if isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield "constant", ast.Constant(node.value + 1)
        yield "constant", ast.Constant(node.value - 1)


def _edit_condition(node: ast.If | ast.While | ast.IfExp | ast.comprehension) -> Iterator[Edit]:
    """A condition is denied; an equality, and what is denied already, have that from others."""
    if isinstance(node, ast.comprehension):
        for index, test in enumerate(node.ifs):
            if not _is_denied(test):
                ifs = [*node.ifs[:index], _deny(test), *node.ifs[index + 1 :]]
                yield "condition", ast.comprehension(node.target, node.iter, ifs, node.is_async)
    elif not _is_denied(node.test):
        fields = dict(ast.iter_fields(node))
        yield "condition", type(node)(**{**fields, "test": _deny(node.test)})


def _edit_return(node: ast.Return) -> Iterator[Edit]:
    """What is returned as true or false is denied."""
    value = node.value
    if isinstance(value, ast.BoolOp) or (isinstance(value, ast.Compare) and not _is_denied(value)):
        yield "condition", ast.Return(_deny(value))


def _edit_call(node: ast.Call) -> Iterator[Edit]:
    called = node.func
    if isinstance(called, ast.Name):
        if called.id in EXTREMES:
            yield "extreme", ast.Call(_name(EXTREMES[called.id]), node.args, node.keywords)
        if called.id == "reversed":
            yield "end", node.args[0]
    elif isinstance(called, ast.Attribute) and not node.keywords:
        yield from _edit_list_call(called, node.args)


def _edit_list_call(called: ast.Attribute, args: list[ast.expr]) -> Iterator[Edit]:
    """What joins or leaves a list does so at the other end."""

    def call(name: str, *new_args: ast.expr) -> Edit:
        return "end", ast.Call(ast.Attribute(called.value, name, ast.Load()), list(new_args), [])

    if called.attr == "append":
        yield call("insert", ast.Constant(0), *args)
    elif called.attr == "insert" and _is_number(args[0], 0):
        yield call("append", args[1])
    elif called.attr == "pop" and not args:
        yield call("pop", ast.Constant(0))
    elif called.attr == "pop" and _is_number(args[0], 0):
        yield call("pop")


def _edit_subscript(node: ast.Subscript) -> Iterator[Edit]:
    if _is_number(node.slice, 0):
        yield "end", ast.Subscript(node.value, ast.Constant(-1), node.ctx)
    elif ast.unparse(node.slice) == "-1":
        yield "end", ast.Subscript(node.value, ast.Constant(0), node.ctx)


def _edit_statement(node: ast.stmt) -> Iterator[Edit]:
    """A statement is left out, unless nothing would be left that could run without it."""
    yield "statement", ast.Pass()


def _edit_assignment(node: ast.Assign | ast.AnnAssign) -> Iterator[Edit]:
    """One to a bare name would only leave the name unknown."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if not any(isinstance(target, ast.Name) for target in targets):
        yield "statement", ast.Pass()


def _edit_expression(node: ast.Expr) -> Iterator[Edit]:
    if not isinstance(node.value, ast.Constant):
        yield "statement", ast.Pass()


def _is_denied(test: ast.expr) -> bool:
    """Whether the test is denied by a smaller edit anyway."""
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1 and isinstance(test.ops[0], DENIED)
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _deny(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _is_number(node: ast.expr, number: int | None = None) -> bool:
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return False
    return number is None or node.value == number


FINDERS: dict[tuple[type[ast.AST], ...], Callable[..., Iterator[Edit]]] = {
    (ast.Compare,): _edit_compare,
    (ast.BinOp, ast.AugAssign): _edit_operation,
    (ast.BoolOp,): _edit_boolean,
    (ast.UnaryOp,): _edit_unary,
    (ast.Constant,): _edit_constant,
    (ast.If, ast.While, ast.IfExp, ast.comprehension): _edit_condition,
    (ast.Return,): _edit_return,
    (ast.Call,): _edit_call,
    (ast.Subscript,): _edit_subscript,
    (ast.AugAssign, ast.Delete, ast.Return, ast.Continue, ast.Break): _edit_statement,
    (ast.Assign, ast.AnnAssign): _edit_assignment,
    (ast.Expr,): _edit_expression,
}
