from __future__ import annotations

import ast
import importlib.util

import pytest

from checkers.patch.conditions import Condition, Ways, find_conditions

# ---- which there are -----------------------------------------------------------------------------


def conditions_in(line):
    """What the last line of a function hangs on, as it is written."""
    source = f"def f(a, b, c):\n    {line}\n"
    return [condition.text for condition in sorted(find_conditions(ast.parse(source)))]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if a: pass", ["a"]),
        ("while not (a and b < c): pass", ["a", "b < c"]),
        ("return a if b or not c else 0", ["b", "c"]),
        ("return [x for x in a if x and b]", ["x", "b"]),
        ("return lambda: a and b", ["a", "b"]),
        ("return a or {}", ["a", "{}"]),
        ("if a(b or c): pass", ["a(b or c)", "b", "c"]),
        ("return (a, b)[c > 1]", ["c > 1"]),
        ("return min(a, max(b, 7), key=c) + max(a, b)", ["max(b, 7)", "max(a, b)"]),
        ("return min(*a) + min(a) + min(a, b, c)", []),
        # An assertion promises that it goes one way.
        ("assert a and b", []),
        ("while True: pass", []),
    ],
)
def test_conditions_are_what_a_branch_hangs_on(line, expected):
    """Each part that `and`, `or` and `not` put together is a condition of its own."""
    assert expected == conditions_in(line)


def test_what_a_module_hangs_on_is_none():
    """It is asked once, when the module is imported."""
    assert {} == find_conditions(ast.parse("if a:\n    b = c or d\n"))


# ---- which ways they went ------------------------------------------------------------------------


class Unsure:
    """Nobody but itself could tell whether it is true."""

    def __bool__(self):
        """Must not be asked for anything else than its own branch."""
        return True


def import_noting(tmp_path, source, *wanted):
    """A module that notes the ways of some conditions, or of all."""
    path = tmp_path / "noting.py"
    path.write_text(source)
    found = sorted(find_conditions(ast.parse(source)))
    conditions = [condition for condition in found if not wanted or condition.text in wanted]
    ways = Ways({str(path): conditions})
    spec = ways.watch(importlib.util.spec_from_file_location("noting", path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, lambda: {row.condition.text: row.ways for row in ways.missing()[str(path)]}


def test_a_condition_has_gone_both_ways_or_is_missing(tmp_path):
    """What another part has decided was not asked; the code does as it did without."""
    source = "def f(a, b):\n    return 'yes' if a and not b else 'no'\n"
    module, missing = import_noting(tmp_path, source)
    assert {"a": [], "b": []} == missing()
    assert "no" == module.f(0, 1)
    assert {"a": [False], "b": []} == missing()
    assert "yes" == module.f(1, 0)
    assert {"b": [False]} == missing()
    assert "no" == module.f(1, 1)
    assert {} == missing()


def test_only_what_was_asked_for_is_noted(tmp_path):
    """Others are left as they are written."""
    module, missing = import_noting(tmp_path, "def f(a, b):\n    return a and b\n", "b")
    assert [] == module.f([], 1)
    assert {"b": []} == missing()


@pytest.mark.parametrize(("value", "expected"), [({}, {}), (False, {"b": [False]}), (0, {})])
def test_a_value_is_no_condition(tmp_path, value, expected):
    """What comes of the whole must go both ways only if it is true or false."""
    module, missing = import_noting(tmp_path, "def f(a, b):\n    return a or b\n", "b")
    assert value == module.f(None, value)
    assert expected == missing()


def test_a_choice_has_taken_either_or_is_missing(tmp_path):
    """Of two that are equal none is taken, and of what is no number nobody can tell."""
    module, missing = import_noting(tmp_path, "def f(a, b):\n    return min(a, b)\n")
    assert (3, {"min(a, b)": []}) == (module.f(3, 3), missing())
    assert (3, {"min(a, b)": [True]}) == (module.f(3, 4), missing())
    assert (2, {}) == (module.f(3, 2), missing())
    module, missing = import_noting(tmp_path, "def f(a, b):\n    return max(a, b)\n")
    assert ("b", {}) == (module.f("a", "b"), missing())


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Condition(1, 0, "a > b"), "a > b was false"),
        (Condition(1, 0, "min(a, b)", is_choice=True), "min(a, b) was its second argument"),
    ],
)
def test_a_way_is_told_in_words(condition, expected):
    """What a reader of the report is told."""
    assert expected == condition.describe(False)


def test_nobody_is_asked_who_does_not_tell(tmp_path):
    """A value whose own code decides what it counts as may have gone both ways."""
    module, missing = import_noting(tmp_path, "def f(a):\n    return 1 if a else 0\n")
    assert 1 == module.f(Unsure())
    assert {} == missing()


def test_lines_and_names_stay_where_they_are(tmp_path):
    """A module that notes is traced, and fails, on the lines that it is written on."""
    source = (
        "def f(a):\n    if (\n        a\n        or g()\n    ):\n        return 1\n    return 0\n"
    )
    module, _ = import_noting(tmp_path, source)
    with pytest.raises(NameError) as caught:
        module.f(0)
    assert 4 == caught.tb.tb_next.tb_lineno
    assert {2, 3, 4, 6, 7} <= {line for _, _, line in module.f.__code__.co_lines()}


def test_a_module_without_conditions_is_left_alone(tmp_path):
    """Its loader is Python's own."""
    path = tmp_path / "plain.py"
    path.write_text("x = 1\n")
    spec = importlib.util.spec_from_file_location("plain", path)
    assert spec.loader is Ways({}).watch(spec).loader
    assert Ways({}).watch(None) is None


def test_conditions_are_told_apart_by_their_place():
    """The same text twice on a line is two conditions."""
    found = find_conditions(ast.parse("def f(a):\n    return (1 if a else 2) + (3 if a else 4)\n"))
    assert [Condition(2, 17, "a"), Condition(2, 35, "a")] == sorted(found)
