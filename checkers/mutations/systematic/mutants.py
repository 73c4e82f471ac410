"""Every mutant of a source file, and how one is planted.

Entry points: `find_mutants` and `planted`. A mutant is planted by giving the function another code
object: whoever has imported the function, inherits it, or calls it through a property, runs the
mutant, and nothing is imported again. So what stands outside of functions has no mutants: defaults
of fields and arguments, constants, tables.
"""

from __future__ import annotations
import __future__

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from types import CodeType, FunctionType

from attrs import field, frozen

from checkers.mutations.systematic.operators import find_edits

ROOT = Path(__file__).parents[3]
FILES = {
    "spec": (
        "spec/scheduler.py",
        "spec/lifecycle.py",
        "spec/block_pool.py",
        "spec/request.py",
        "spec/request_queue.py",
        "spec/slots.py",
        "spec/stop.py",
        "spec/padding.py",
        "spec/streaming.py",
        "spec/remote_kv.py",
        "spec/deferred_frees.py",
    ),
    "engine": (
        "impl/scheduler.py",
        "impl/lifecycle.py",
        "impl/block_pool.py",
        "impl/free_block_queue.py",
        "impl/prefix_cache.py",
        "impl/request.py",
        "impl/request_queue.py",
        "impl/slots.py",
        "impl/stop.py",
        "impl/streaming.py",
        "impl/remote_kv.py",
        "impl/deferred_frees.py",
    ),
}
"""What is mutated, by whom it belongs to."""
MAX_SHOWN = 100
"""Characters of an edited place in a name."""


@frozen
class Patch:
    """Another body for a function."""

    file: str
    function: str
    """Its qualified name in the file."""
    line: int
    """Where it differs."""
    code: CodeType = field(eq=False, repr=False)


@frozen
class Mutant:
    """One small edit of one function."""

    patch: Patch
    wire: Patch
    """Raises where the edited statement begins: who runs into it would have run the edit."""
    kind: str
    """Of the edit."""
    before: str
    """The edited place."""
    after: str
    number: int
    """Among those of the function that read the same, from 1."""

    @property
    def side(self) -> str:
        """Whose it is: `spec` or `engine`."""
        return next(side for side, files in FILES.items() if self.patch.file in files)

    @property
    def function(self) -> str:
        """What is edited: file and function."""
        return f"{self.patch.file} {self.patch.function}"

    @property
    def name(self) -> str:
        """What identifies it for as long as its function stays: no line is in it."""
        number = f" #{self.number}" if self.number > 1 else ""
        return f"{self.function}: {self.before} -> {self.after}{number}"


@frozen(eq=False)
class _Place:
    """Where a node stands in its parent."""

    parent: ast.AST
    name: str
    index: int | None

    def get(self) -> ast.AST:
        value = getattr(self.parent, self.name)
        found = value if self.index is None else value[self.index]
        assert isinstance(found, ast.AST), "a place is one of a node"
        return found

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.index] = node


def find_mutants(file: str) -> Iterator[Mutant]:
    """Yields the mutants of all functions of a file, in the order of its lines."""
    yield from find_in_source(file, (ROOT / file).read_text())


def find_in_source(file: str, source: str) -> Iterator[Mutant]:
    """Yields the mutants of a source that is, or could be, that of a file."""
    for owner in ast.parse(source, file).body:
        if isinstance(owner, ast.FunctionDef):
            yield from _find_in_function(file, owner, owner.name)
        elif isinstance(owner, ast.ClassDef):
            for node in owner.body:
                if isinstance(node, ast.FunctionDef):
                    yield from _find_in_function(file, node, f"{owner.name}.{node.name}")


def find_function(file: str, name: str) -> FunctionType:
    """The function of a file that has a qualified name; of a property, what it calls."""
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    *owners, last = name.split(".")
    found = vars(reduce(getattr, owners, module))[last]
    if isinstance(found, property):
        found = found.fget
    assert isinstance(found, FunctionType), f"{file} {name} is a function"
    return found


@contextmanager
def planted(patch: Patch) -> Iterator[None]:
    """Gives a function another body for as long as the block lasts."""
    function = find_function(patch.file, patch.function)
    original = function.__code__
    # Whoever calls `super` has a variable for that, also where the patch does not call it.
    function.__code__ = patch.code.replace(co_freevars=original.co_freevars)
    try:
        yield
    finally:
        function.__code__ = original


def _find_in_function(file: str, function: ast.FunctionDef, name: str) -> Iterator[Mutant]:
    seen = {ast.unparse(function)}
    if isinstance(function.body[-1], ast.Return):
        # Without its last return a function answers None, which tells nothing of any rule.
        seen.add(_unparse_without_end(function))
    alike: Counter[tuple[str, str]] = Counter()
    wires: dict[_Place, Patch] = {}
    for statement, place in _find_places(function):
        node = place.get()
        line = _find_line(node) or _find_line(statement.get())
        for kind, edit in find_edits(node):
            needs_more = _is_small(node) or _is_small(edit)
            before = _show(place, needs_more=needs_more)
            place.put(ast.copy_location(edit, node))
            text, after = ast.unparse(function), _show(place, needs_more=needs_more)
            code = None if text in seen else _compile(file, function, name)
            place.put(node)
            if code is None:
                continue
            seen.add(text)
            alike[before, after] += 1
            if statement not in wires:
                wires[statement] = _stretch_wire(file, function, name, statement)
            patch = Patch(file, name, line, code)
            yield Mutant(patch, wires[statement], kind, before, after, alike[before, after])


def _find_places(function: ast.FunctionDef) -> Iterator[tuple[_Place, _Place]]:
    """Yields where the nodes of a function's body stand, outermost first, after their statement."""
    has_docstring = ast.get_docstring(function) is not None
    for index in range(has_docstring, len(function.body)):
        place = _Place(function, "body", index)
        yield from _walk(place, place)


def _walk(statement: _Place, place: _Place) -> Iterator[tuple[_Place, _Place]]:
    node = place.get()
    if isinstance(node, ast.stmt):
        statement = place
    yield statement, place
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        if isinstance(value, ast.AST):
            yield from _walk(statement, _Place(node, name, None))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _walk(statement, _Place(node, name, index))


def _find_line(node: ast.AST) -> int:
    """Where a node stands; 0 for one that is never told its line."""
    return node.lineno if isinstance(node, ast.stmt | ast.expr) else 0


def _stretch_wire(file: str, function: ast.FunctionDef, name: str, statement: _Place) -> Patch:
    node = statement.get()
    statement.put(ast.copy_location(ast.Raise(ast.Name("AssertionError", ast.Load())), node))
    patch = Patch(file, name, _find_line(node), _compile(file, function, name))
    statement.put(node)
    return patch


def _is_small(node: ast.AST) -> bool:
    """Whether a node tells a reader little by itself."""
    return isinstance(node, ast.Constant | ast.Name | ast.UnaryOp)


def _show(place: _Place, *, needs_more: bool) -> str:
    """An edited place as a reader finds it, if need be with what stands around it."""
    node = place.get()
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    is_part = isinstance(place.parent, ast.expr | ast.stmt) and isinstance(node, ast.expr)
    # A statement that holds others would be more than what stands around.
    is_block = isinstance(place.parent, ast.If | ast.While | ast.For)
    shown = place.parent if needs_more and is_part and not is_block else node
    text = " ".join(ast.unparse(ast.fix_missing_locations(shown)).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _unparse_without_end(function: ast.FunctionDef) -> str:
    last = function.body[-1]
    function.body[-1] = ast.Pass()
    text = ast.unparse(function)
    function.body[-1] = last
    return text


def _compile(file: str, function: ast.FunctionDef, name: str) -> CodeType:
    """Compiles a function as it stands now, in a class of that name if it has one."""
    node: ast.stmt = function
    for owner in reversed(name.split(".")[:-1]):
        node = ast.ClassDef(owner, [], [], [node], [])
    module = ast.fix_missing_locations(ast.Module([node], []))
    flag = __future__.annotations.compiler_flag
    code: CodeType = compile(module, str(ROOT / file), "exec", flag, dont_inherit=True)
    for part in name.split("."):
        inner = [item for item in code.co_consts if isinstance(item, CodeType)]
        code = next(item for item in inner if item.co_name == part)
    return code
