"""Which lines of code a change adds, alters or takes away, so that runs can be asked for them.

Entry point: `find_changed_files`. What is there after the change must be reached with it, what was
there before without it. Comments, docstrings and blank lines are no code.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Collection, Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from types import CodeType

from attrs import field, frozen

from checkers.patch.conditions import Condition, find_conditions
from checkers.patch.operands import Operand, find_operands

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
DECLARATIONS = (ast.Global, ast.Nonlocal, ast.AnnAssign)
"""Statements that may come to no instruction at all."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Binding = ast.Assign | ast.AnnAssign | ast.AugAssign
Changes = list[tuple[range, range]]
"""Old lines and the new ones in their place."""
CACHES = "__pycache__"
MIN_ALIKE = 0.5
"""The share of lines from which on a file that is new is one that is gone, under another name."""


@frozen
class Replaced:
    """A line of the old text in whose place others stand."""

    text: str
    by: tuple[int, ...]
    """Those lines of the new text."""


@frozen
class ChangedFile:
    """A file of the package that differs."""

    path: str
    """Relative to the tree."""
    old_path: str
    """Where it was before: mostly the same."""
    lines: tuple[int, ...] = ()
    """Lines of the new text that a run has to reach."""
    gone: dict[int, str] = field(factory=dict)
    """Lines of the old text that a run has to reach, and what stands there: nothing has come in
    their place."""
    was: dict[int, Replaced] = field(factory=dict)
    """The other changed lines of the old text: what they did is known only if a run reaches them,
    too."""
    beside: tuple[int, ...] = ()
    """Lines of the new text that run next where something is gone: who comes there may miss it."""
    is_python: bool = True
    """Whether it can be told which of its lines a run reaches."""
    is_run: bool = False
    """Whether anything changed but imports, so that a run must come to it."""
    is_same_code: bool = False
    """Whether nothing but comments, docstrings and layout differs."""
    texts: dict[int, str] = field(factory=dict)
    """What stands on the lines of the new text."""
    operands: tuple[Operand, ...] = ()
    """What the changed lines of the new text work with."""
    old_operands: tuple[Operand, ...] = ()
    """The same of the old text."""
    conditions: tuple[Condition, ...] = ()
    """What the changed lines of the new text hang on."""
    old_conditions: tuple[Condition, ...] = ()
    """The same of the old text."""

    @property
    def old_texts(self) -> dict[int, str]:
        """What stands on the lines of the old text."""
        return self.gone | {line: replaced.text for line, replaced in self.was.items()}


def find_changed_files(base: Path, head: Path) -> list[ChangedFile]:
    """Every file that differs between two trees, in order."""
    before, after = _read_tree(base), _read_tree(head)
    moved = _find_moved(before, after)
    return [
        _compare(path, moved.get(path, path), before.get(moved.get(path, path)), after.get(path))
        for path in sorted({*before, *after} - {*moved.values()})
        if before.get(path) != after.get(path)
    ]


def _read_tree(tree: Path) -> dict[str, bytes]:
    return {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file() and CACHES not in path.parts
    }


def _find_moved(before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, str]:
    """Where each file was that has another name now."""
    moved: dict[str, str] = {}
    for path in sorted(after.keys() - before.keys()):
        alike = {
            old: SequenceMatcher(None, before[old].splitlines(), after[path].splitlines()).ratio()
            for old in sorted(before.keys() - after.keys() - {*moved.values()})
            if Path(old).suffix == Path(path).suffix
        }
        nearest = max(alike, key=lambda old: alike[old], default="")
        if alike.get(nearest, 0.0) >= MIN_ALIKE:
            moved[path] = nearest
    return moved


def _compare(path: str, old_path: str, before: bytes | None, after: bytes | None) -> ChangedFile:
    if not path.endswith(".py"):
        return ChangedFile(path, old_path, is_python=False)
    old = _Text((before or b"").decode(errors="replace"))
    new = _Text((after or b"").decode(errors="replace"))
    changes = [*_find_changes(old, new)]
    removed, added = ({line for pair in changes for line in pair[side]} for side in (0, 1))
    changed = set(_find_changed_lines(new, changes))
    is_run = not all(
        text.is_import(line)
        for text, lines in ((old, removed), (new, added))
        for line in text.lines_to_reach(lines)
    )
    uses = set(new.lines_using(new.names_bound_on(added))) - changed
    if path != old_path:
        changed |= {*new.with_code[:1]}  # Is it imported at all?
    beside = set(_find_lines_beside(old, new, changes)) - changed - uses
    texts = {line: f"{new.lines[line - 1].strip()}  [code beside it is gone]" for line in beside}
    texts |= {line: f"{new.lines[line - 1].strip()}  [uses what has changed]" for line in uses}
    texts |= {line: new.show(line, added) for line in changed}
    gone = {line: old.show(line, removed) for line in _find_gone(old, new, changes)}
    return ChangedFile(
        path,
        old_path,
        tuple(sorted(changed | uses)),
        gone=gone,
        was=dict(_find_replaced(old, new, changes)),
        beside=tuple(sorted(beside)),
        is_run=is_run,
        is_same_code=path == old_path
        and before is not None
        and after is not None
        and _is_same_code(before, after),
        texts=texts,
        operands=new.operands_on(added | uses),
        old_operands=old.operands_on(removed),
        conditions=new.conditions_on(added | uses),
        old_conditions=old.conditions_on(removed),
    )


def _is_same_code(before: bytes, after: bytes) -> bool:
    """Whether two texts come to one syntax tree, docstrings left out."""
    try:
        old, new = (ast.parse(text) for text in (before, after))
    except (SyntaxError, ValueError):
        return False
    return ast.dump(_WITHOUT_DOCSTRINGS.visit(old)) == ast.dump(_WITHOUT_DOCSTRINGS.visit(new))


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if _docstring_lines(node) else node


_WITHOUT_DOCSTRINGS = _WithoutDocstrings()


def _find_changed_lines(new: _Text, changes: Changes) -> Iterator[int]:
    for _, added in changes:
        yield from new.lines_to_reach(added)


def _find_gone(old: _Text, new: _Text, changes: Changes) -> Iterator[int]:
    """Yields the lines of code that were taken away, with none in their place."""
    for removed, added in changes:
        if new.significant.isdisjoint(added):
            yield from old.lines_to_reach(removed)


def _find_replaced(old: _Text, new: _Text, changes: Changes) -> Iterator[tuple[int, Replaced]]:
    """Yields the lines of code that were taken away for others."""
    for removed, added in changes:
        by = tuple(new.lines_to_reach(added))
        for line in old.lines_to_reach(removed) if by else ():
            yield line, Replaced(old.show(line, removed), by)


def _find_lines_beside(old: _Text, new: _Text, changes: Changes) -> Iterator[int]:
    """Yields the lines that come next where code was taken away."""
    for removed, added in changes:
        if new.significant.isdisjoint(added) and not old.significant.isdisjoint(removed):
            is_inside = old.function_at(removed.start) is not None
            yield from new.line_after_cut(added.stop - 1, is_inside=is_inside)


def _find_changes(old: _Text, new: _Text) -> Iterator[tuple[range, range]]:
    """Yields the lines of each change, counted from 1: the old ones, then the new ones."""
    matcher = SequenceMatcher(None, old.lines, new.lines, autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag != "equal":
            yield range(start + 1, end + 1), range(new_start + 1, new_end + 1)


class _Text:
    """A Python file: which of its lines say something, and which have instructions.

    One that Python cannot read has none; then every line counts that was changed.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.statements: list[ast.stmt] = []
        self.with_code: list[int] = []
        self.significant = {n for n, line in enumerate(self.lines, 1) if line.strip()}
        self.tree = ast.Module([], [])
        self.code = compile("", "", "exec")
        # Where a function begins, by the lines of its head.
        self._begins: dict[int, int] = {}
        try:
            self.tree = ast.parse(text)
            self.code = compile(text, "", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return
        self.with_code = sorted(_lines_with_code(self.code))
        self.statements = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]
        idle = {line for node in ast.walk(self.tree) for line in _idle_lines(node)}
        self.significant = _significant_lines(text) - idle
        self._begins = dict(pair for node in self.statements for pair in self._find_begin(node))

    def lines_to_reach(self, lines: Iterable[int]) -> list[int]:
        """The lines that run if lines of code run, in order."""
        own = [line for line in lines if line in self.significant]
        return sorted({reached for line in own for reached in self._line_to_reach(line)})

    def names_bound_on(self, lines: Collection[int]) -> set[str]:
        """What an import binds on some lines: constants of a module or a class.

        That the lines run says nothing; whoever uses the names must.
        """
        owners = [self._statement_at(line) for line in lines if line in self.significant]
        bound = [
            node
            for owner in owners
            if isinstance(owner, Binding) and self.function_at(owner.lineno) is None
            for node in ast.walk(owner)
        ]
        return {
            node.id
            for node in bound
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }

    def lines_using(self, names: Collection[str]) -> Iterator[int]:
        """Yields the lines of functions that read one of some names."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
                continue
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in names and self.function_at(node.lineno) is not None:
                yield from self._line_to_reach(node.lineno)

    def is_import(self, line: int) -> bool:
        """Whether a line imports, which is all that it does."""
        return isinstance(self._statement_at(line), ast.Import | ast.ImportFrom)

    def show(self, line: int, changed: Collection[int]) -> str:
        """What stands on a line that stands for changed ones."""
        is_for_head = line not in changed and line in self._begins.values()
        sign = "  [the head of its function has changed]" if is_for_head else ""
        return self.lines[line - 1].strip() + sign

    def operands_on(self, lines: Collection[int]) -> tuple[Operand, ...]:
        """What some lines work with."""
        return find_operands(self.tree, self.code, lines)

    def conditions_on(self, lines: Collection[int]) -> tuple[Condition, ...]:
        """What some lines hang on."""
        return tuple(sorted(c for c in find_conditions(self.tree) if c.line in lines))

    def _line_to_reach(self, line: int) -> Iterator[int]:
        """The line that runs if a line runs: itself, or the nearest of its statement."""
        owner = self._statement_at(line)
        if isinstance(owner, ast.Assert):
            line = min(line, owner.test.end_lineno or line)  # A message runs only if it fails.
        if line in self._begins:
            yield self._begins[line]
            return
        if line in self.with_code or owner is None:
            yield line
            return
        first, last = _span(owner)
        own = [number for number in self.with_code if first <= number <= last]
        earlier = [number for number in own if number < line]
        later = [number for number in own if number > line]
        # `else:` belongs to what follows, the end of a call to what comes before.
        order = [*later, *earlier] if hasattr(owner, "body") else [*reversed(earlier), *later]
        if order or not isinstance(owner, DECLARATIONS):
            yield (order or [line])[0]

    def line_after_cut(self, line: int, *, is_inside: bool) -> Iterator[int]:
        """The line that stands for what was taken away behind `line`: the next one with code.

        If a function lost its end, its last line does.
        """
        owner = self.function_at(line) if is_inside else None
        first, last = (1, len(self.lines)) if owner is None else _span(owner)
        own = [number for number in self.with_code if first < number <= last or owner is None]
        later = [number for number in own if number > line]
        yield from (later or own[-1:])[:1]

    def function_at(self, line: int) -> Function | None:
        """The innermost function in whose body a line stands."""
        found = None
        for node in self.statements:
            inside = isinstance(node, Function) and node.body[0].lineno <= line
            if inside and line <= _span(node)[1]:
                found = node
        return found if isinstance(found, Function) else None

    def _find_begin(self, node: ast.stmt) -> Iterator[tuple[int, int]]:
        """Yields the lines of a function's head, each with the first line of its body.

        An import runs the head, too; what it says of the function shows in a call.
        """
        if isinstance(node, Function):
            start, (first, last) = node.body[0].lineno, _span(node)
            body = [line for line in self.with_code if start <= line <= last]
            if body:
                yield from ((line, body[0]) for line in range(first, start))

    def _statement_at(self, line: int) -> ast.stmt | None:
        around = [node for node in self.statements if _span(node)[0] <= line <= _span(node)[1]]
        return min(around, key=lambda node: _span(node)[1] - _span(node)[0], default=None)


def _lines_with_code(code: CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines_with_code(constant)


def _significant_lines(text: str) -> set[int]:
    return {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }


def _idle_lines(node: ast.AST) -> Iterator[int]:
    """The lines that no run can come to: docstrings, and what only a type checker reads."""
    yield from _docstring_lines(node)
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        yield from range(node.body[0].lineno, _span(node.body[-1])[1] + 1)


def _docstring_lines(node: ast.AST) -> range:
    """The lines of a bare text: a docstring, or what stands below a field."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return range(0)
    return range(node.lineno, _span(node)[1] + 1) if isinstance(node.value.value, str) else range(0)


def _span(node: ast.stmt) -> tuple[int, int]:
    """The first line of a statement, decorators included, and the last."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return first, node.end_lineno or node.lineno
