from __future__ import annotations

import ast
import sys
from collections import deque
from enum import IntEnum

import pytest
from attrs import define

from checkers.patch.operands import Operand, find_operands
from checkers.patch.reach import Absent, Reach

# ---- which there are -----------------------------------------------------------------------------


def names_on_last_line(text):
    """What the last line of a function's body works with."""
    body = "\n    ".join(["def f(a, b, c=LIMIT, *, self=None):", *text.splitlines()])
    source = f"LIMIT = 0\n{body}\n"
    code = compile(source, "", "exec")
    return [
        operand.name for operand in find_operands(ast.parse(source), code, {body.count("\n") + 2})
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a += self.config.b", ["self.config.b"]),
        ("self.x.y = a.b.c + b", ["a.b.c", "b"]),
        ("return min(a, LIMIT, key=c.d)", ["a", "c.d"]),
        ("self.queue.remove(a)", ["a", "self.queue"]),
        ("b(a[c].d)", ["a", "c"]),
        ("return [x.y for x in a if not b]", ["a", "b", "x.y"]),
        ("return lambda z: z.a and c", ["c", "z.a"]),
        ("if (z := a): pass", ["a"]),
        ("x: list[a] = b", ["b"]),
        # Messages decide nothing, and globals do not vary.
        ("raise ValueError(a)", []),
        ('a = f"{b} {c}"', []),
        ("return LIMIT + len(__doc__)", []),
        # What is asserted to be nothing need not be something.
        ("assert not a and b == 0 and c > 0, a", ["c"]),
        ("assert a.b is None", []),
    ],
)
def test_operands_are_what_a_line_reads_of_variables(line, expected):
    """Names and what is read of them by dots, as far as they go; what is called is none."""
    assert expected == names_on_last_line(line)


def test_only_the_lines_that_are_asked_for_count():
    """Each operand stands where its first name does, also in the middle of an expression."""
    source = "def f(a, b):\n    return (\n        a\n        + b\n    )\n"
    found = find_operands(ast.parse(source), compile(source, "", "exec"), {4, 5})
    assert (Operand(4, "b"),) == found


def test_what_is_compared_with_none_is_optional():
    """There, 0 is something, and only None is nothing."""
    source = "def f(a, b):\n    return a is not None or b == 0\n"
    found = find_operands(ast.parse(source), compile(source, "", "exec"), {2})
    assert (Operand(2, "a", is_optional=True), Operand(2, "b")) == found
    assert ("", "0") == tuple(operand.look({"a": 0, "b": 0}) for operand in found)


# ---- whether they are there ----------------------------------------------------------------------


class Level(IntEnum):
    """Its first member is nothing."""

    OFF = 0


@define
class Slotted:
    """Has no dictionary."""

    filled: int = 0
    empty: int = 1


class Touchy:
    """Raises whenever its code runs."""

    constant = 0

    def __init__(self):
        self.queue = deque()

    def __len__(self):
        raise AssertionError

    def __getattr__(self, name):
        raise AssertionError

    @property
    def size(self):
        """What only a call can tell."""
        raise AssertionError


def slotted_without_empty():
    """An object one slot of which is not filled."""
    value = Slotted()
    del value.empty
    return value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("a", 0, "0"),
        ("a", None, "None"),
        ("a", [], "[]"),
        ("a", False, "False"),
        ("a", Level.OFF, "0"),
        ("a", 1, ""),
        ("a", {"b": 0}, ""),
        ("a", object(), ""),
        ("a.filled", Slotted(), "0"),
        ("a.empty", Slotted(), ""),
        ("a.empty", slotted_without_empty(), None),
        ("a.b", None, None),
        ("b", 0, None),
    ],
)
def test_an_operand_is_looked_at(name, value, expected):
    """It shows how it looks if it is nothing, "" if it is something, and None without a value."""
    assert expected == Operand(1, name).look({"a": value})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.queue", "nothing in it"),
        ("a.constant", "0"),
        ("a", ""),
        ("a.size", ""),
        ("a.size.more", ""),
        ("a.nothing_such", None),
    ],
)
def test_nothing_of_an_engine_is_called(name, expected):
    """What only a call could tell counts as something."""
    assert expected == Operand(1, name).look({"a": Touchy()})


# ---- while a line runs ---------------------------------------------------------------------------

SOURCE = """
def add(items, extra, start=None):
    total = 0
    for item in items:
        total = total + item
    total += extra
    return [item for item in items if item]


def wait(queue):
    return queue.size


def take(items):
    items.clear()


def count(items):
    return (num := len(items)) and num
"""


def load(tmp_path, *lines):
    """The functions of `SOURCE`, and a watch over what some of their lines work with, or all."""
    path = str(tmp_path / "a.py")
    names = {}
    code = compile(SOURCE, path, "exec")
    exec(code, names)  # noqa: S102
    operands = find_operands(ast.parse(SOURCE), code, lines or range(12))
    return names, Reach({}, {path: list(operands)}), path


def absent(reach):
    """What was nothing whenever its line ran: (line, name, how it looked)."""
    return [
        (row.operand.line, row.operand.name, *row.values)
        for rows in reach.missing().operands.values()
        for row in rows
        if row.values
    ]


def test_an_operand_is_there_if_it_is_so_once(tmp_path):
    """What was nothing at first, and something later, is there; how nothing looked is kept."""
    names, reach, _ = load(tmp_path)
    with reach.watching():
        names["add"]([], 0)
        names["add"]([], None or 0)
    assert [(4, "items", "[]"), (6, "extra", "0"), (7, "items", "[]")] == absent(reach)
    with reach.watching():
        names["add"]([2], 0)
    assert [(6, "extra", "0")] == absent(reach)
    with reach.watching():
        names["add"]([], 5)
    assert [] == absent(reach)


def test_a_line_that_did_not_run_says_nothing_of_its_operands(tmp_path):
    """It is asked for among the lines; here it is open, with no looks."""
    _, reach, path = load(tmp_path)
    assert [] == absent(reach)
    assert Absent(Operand(11, "queue.size"), []) in reach.missing().operands[path]


def test_what_a_line_binds_is_looked_at_when_it_has_run(tmp_path):
    """The variable of a loop or of a comprehension has its value only then."""
    names, reach, path = load(tmp_path)
    with reach.watching():
        names["add"]([0, 3], 1)
    assert [Absent(Operand(11, "queue.size"), [])] == reach.missing().operands[path]


def test_the_last_line_of_a_function_counts_when_it_has_run(tmp_path):
    """What it binds has its value when the function returns."""
    names, reach, _ = load(tmp_path, 19)
    with reach.watching():
        names["count"]([0])
    assert {} == reach.missing().operands


def test_what_a_line_uses_up_is_looked_at_before_it_runs(tmp_path):
    """A queue that the line empties was something."""
    names, reach, _ = load(tmp_path, 15)
    with reach.watching():
        names["take"]([0])
    assert {} == reach.missing().operands


def test_nothing_is_followed_once_each_operand_was_there(tmp_path):
    """The watch ends with the last of them, within the block and after it."""
    names, reach, _ = load(tmp_path)
    with reach.watching():
        names["add"]([3], 1)
        assert sys.gettrace() is not None
        names["wait"](type("Queue", (), {"size": 4})())
        assert sys.gettrace() is None
    with reach.watching():
        assert sys.gettrace() is None
