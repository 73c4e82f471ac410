"""Which lines of code a change adds, alters or takes away, so that runs can be asked for them.

Entry point: `find_changed_files`. What is there after the change must be reached with it, what is
only taken away without it. Comments, docstrings and blank lines are no code.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from types import CodeType

from attrs import field, frozen

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
CACHES = "__pycache__"


@frozen
class ChangedFile:
    """A file of the package that differs."""

    path: str
    """Relative to the tree."""
    lines: tuple[int, ...] = ()
    """Lines of the new text that a run has to reach."""
    gone: dict[int, str] = field(factory=dict)
    """Lines of the old text that a run has to reach, and what stands there: nothing has come in
    their place."""
    beside: tuple[int, ...] = ()
    """Lines of the new text that run next where something is gone: who comes there may miss it."""
    is_python: bool = True
    """Whether it can be told which of its lines a run reaches."""
    is_same_code: bool = False
    """Whether nothing but comments, docstrings and layout differs."""
    texts: dict[int, str] = field(factory=dict)
    """What stands on the lines of the new text."""


def find_changed_files(base: Path, head: Path) -> list[ChangedFile]:
    """Every file that differs between two trees, in order."""
    return [
        _compare(path, _read(base / path), _read(head / path))
        for path in sorted({*_files_of(base), *_files_of(head)})
        if _read(base / path) != _read(head / path)
    ]


def _files_of(tree: Path) -> Iterator[str]:
    for path in tree.rglob("*"):
        if path.is_file() and CACHES not in path.parts:
            yield path.relative_to(tree).as_posix()


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _compare(path: str, before: bytes | None, after: bytes | None) -> ChangedFile:
    if not path.endswith(".py"):
        return ChangedFile(path, is_python=False)
    if after is None:
        return ChangedFile(path)  # Whoever still needs it fails to import it.
    old = _Text((before or b"").decode(errors="replace"))
    new = _Text(after.decode(errors="replace"))
    changed = set(_find_changed_lines(old, new))
    beside = set(_find_lines_beside(old, new)) - changed
    texts = {line: f"{new.lines[line - 1].strip()}  [code beside it is gone]" for line in beside}
    texts |= {line: new.lines[line - 1].strip() for line in changed}
    return ChangedFile(
        path,
        tuple(sorted(changed)),
        gone={line: old.lines[line - 1].strip() for line in sorted(set(_find_gone(old, new)))},
        beside=tuple(sorted(beside)),
        is_same_code=before is not None and _is_same_code(before, after),
        texts=texts,
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


def _find_changed_lines(old: _Text, new: _Text) -> Iterator[int]:
    for _, _, start, end in _find_changes(old, new):
        for line in range(start, end):
            if line in new.significant:
                yield from new.line_to_reach(line)


def _find_gone(old: _Text, new: _Text) -> Iterator[int]:
    """Yields the lines of code that were taken away, with none in their place."""
    for old_start, old_end, _ in _find_cuts(old, new):
        for line in range(old_start, old_end):
            if line in old.significant:
                yield from old.line_to_reach(line)


def _find_lines_beside(old: _Text, new: _Text) -> Iterator[int]:
    """Yields the lines that come next where code was taken away."""
    for old_start, _, end in _find_cuts(old, new):
        is_inside = old.function_at(old_start) is not None
        yield from new.line_after_cut(end - 1, is_inside=is_inside)


def _find_cuts(old: _Text, new: _Text) -> Iterator[tuple[int, int, int]]:
    """Yields the old lines of each cut, and the new line before which it is."""
    for old_start, old_end, start, end in _find_changes(old, new):
        is_cut = new.significant.isdisjoint(range(start, end))
        if is_cut and not old.significant.isdisjoint(range(old_start, old_end)):
            yield old_start, old_end, end


def _find_changes(old: _Text, new: _Text) -> Iterator[tuple[int, int, int, int]]:
    """Yields the lines of each change, counted from 1, as half-open ranges: old, then new."""
    matcher = SequenceMatcher(None, old.lines, new.lines, autojunk=False)
    for tag, *places in matcher.get_opcodes():
        if tag != "equal":
            start, end, new_start, new_end = (place + 1 for place in places)
            yield start, end, new_start, new_end


class _Text:
    """A Python file: which of its lines say something, and which have instructions.

    One that Python cannot read has none; then every line counts that was changed.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.statements: list[ast.stmt] = []
        self.with_code: list[int] = []
        self.significant = {n for n, line in enumerate(self.lines, 1) if line.strip()}
        try:
            tree = ast.parse(text)
            self.with_code = sorted(_lines_with_code(compile(text, "", "exec", dont_inherit=True)))
        except (SyntaxError, ValueError):
            return
        self.statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        docstrings = {line for node in ast.walk(tree) for line in _docstring_lines(node)}
        self.significant = _significant_lines(text) - docstrings

    def line_to_reach(self, line: int) -> Iterator[int]:
        """The line that runs if a line runs: itself, or the nearest of its statement."""
        owner = self._statement_at(line)
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
