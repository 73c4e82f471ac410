from __future__ import annotations

import sys
import textwrap

import pytest

from checkers.patch.changed_lines import find_changed_files
from checkers.patch.reach import Reach

BEFORE = '''
"""A module."""

LIMIT = 3


def first(numbers, start=0):
    """Adds up."""
    total = start
    for number in numbers:
        total += number
    return total


def second(text):
    return (
        text.strip()
        and text.lower()
    )
'''


GONE = "  [code beside it is gone]"
HEAD = "  [the head of its function has changed]"


def compare(tmp_path, *changes, before=BEFORE):
    """The file in which texts have been replaced."""
    after = before
    for old, new in changes:
        assert 1 == after.count(old)
        after = after.replace(old, new)
    for folder, text in (("base", before), ("head", after)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "a.py").write_text(textwrap.dedent(text))
    (file,) = find_changed_files(tmp_path / "base", tmp_path / "head")
    return file


def changed_lines(tmp_path, *changes):
    """What a run has to reach after texts have been replaced: line by line, as it stands there."""
    file = compare(tmp_path, *changes)
    return [file.texts[line] for line in file.lines]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("total += number", "total -= number", ["total -= number"]),
        ("LIMIT = 3", "LIMIT = 4", ["LIMIT = 4"]),
        # An import runs the head of a function, too; it takes a call to show what it does.
        ("start=0", "start=1", [f"total = start{HEAD}"]),
        ("def first", "@staticmethod\ndef first", [f"total = start{HEAD}"]),
        ("text.lower()", "text.upper()", ["and text.upper()"]),
        ("        and text.lower()\n", "        and text\n", ["and text"]),
        # Where nothing but a bracket changes, the statement has to run.
        ("    )\n", "    )  # done\n", ["and text.lower()"]),
        # Comments, docstrings and blank lines are no code.
        ("Adds up.", "Adds all up.", []),
        ("A module.", "Our module.", []),
        ("    total = start\n", "    # The sum.\n\n    total = start\n", []),
        ("LIMIT = 3", "LIMIT = 3  # at most", ["LIMIT = 3  # at most"]),
        # Nor is what only a type checker reads; the message of an assertion runs if it fails.
        ("LIMIT = 3", "LIMIT = 3\nif TYPE_CHECKING:\n    import os\n", ["if TYPE_CHECKING:"]),
        (
            "    return total\n",
            "    assert total >= 0, (\n        str(total)\n    )\n    return total\n",
            ["assert total >= 0, ("],
        ),
    ],
)
def test_a_changed_line_is_to_be_reached(tmp_path, old, new, expected):
    """A line of code that was added or altered stands for itself; other text asks for nothing."""
    assert expected == changed_lines(tmp_path, (old, new))


FIRST = BEFORE[BEFORE.index("def first") : BEFORE.index("def second")]
SECOND = BEFORE[BEFORE.index("def second") :]


@pytest.mark.parametrize(
    ("old", "gone", "beside"),
    [
        ("    total = start\n", ["total = start"], ["for number in numbers:"]),
        ("    return total\n", ["return total"], ["total += number"]),
        ("LIMIT = 3\n", ["LIMIT = 3"], ["def first(numbers, start=0):"]),
        ('    """Adds up."""\n', [], []),
        (
            SECOND,
            ["return (", "text.strip()", "and text.lower()"],
            ["return total"],
        ),
        (
            FIRST,
            ["total = start", "for number in numbers:", "total += number", "return total"],
            ["def second(text):"],
        ),
    ],
)
def test_what_is_gone_is_to_be_reached_without_the_change(tmp_path, old, gone, beside):
    """Code that was taken away is asked of base; the next line says where head may miss it."""
    file = compare(tmp_path, (old, ""))
    assert ((), gone) == (file.lines, list(file.gone.values()))
    assert [f"{line}{GONE}" for line in beside] == [file.texts[line] for line in file.beside]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Adds up.", "Adds all up.", True),
        ('    """Adds up."""\n', "", True),
        ("    total = start\n", "    # The sum.\n\n    total = start  # 0, mostly\n", True),
        ("        text.strip()\n        and", "        text.strip() and", True),
        ("LIMIT = 3", "LIMIT = 4", False),
        ("    return total\n", "    return total\n    pass\n", False),
        ("    return total\n", "    return total (\n", False),
        ("text.lower()", 'text.replace("a", "b")', False),
    ],
)
def test_code_is_the_same_but_for_what_nobody_runs(tmp_path, old, new, expected):
    """Comments, docstrings and layout make no other code; every statement does."""
    assert expected == compare(tmp_path, (old, new)).is_same_code


def test_a_file_that_is_no_python_counts_with_all_that_changed(tmp_path):
    """In a file that cannot be compiled, each changed line that is not blank is to be reached."""
    assert ["return total ("] == changed_lines(tmp_path, ("return total\n", "return total (\n"))


def test_code_that_cannot_run_is_to_be_reached(tmp_path):
    """A statement that Python leaves out, as it can never run, counts nevertheless."""
    change = ("    return total\n", "    return total\n    total = 0\n")
    assert ["total = 0"] == changed_lines(tmp_path, change)


def test_what_stood_in_the_place_of_new_lines_is_to_be_reached_before(tmp_path):
    """Old lines that were replaced are asked of base, and know which lines stand there now."""
    file = compare(
        tmp_path,
        ("    for number in numbers:\n        total += number\n", "    total += sum(numbers)\n"),
    )
    place = line_of("for number in numbers:")
    texts = ["for number in numbers:", "total += number"]
    assert {place: texts[0], place + 1: texts[1]} == file.old_texts
    assert {(place,)} == {replaced.by for replaced in file.was.values()}
    assert {} == file.gone


def test_a_file_may_have_moved(tmp_path):
    """A new file that resembles one that is gone is that one; it is to be imported, at least."""
    for folder, name, text in (
        ("base", "old.py", BEFORE),
        ("head", "new.py", BEFORE.replace("+=", "-=")),
        ("head", "other.py", "b = 1\n"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    moved, other = find_changed_files(tmp_path / "base", tmp_path / "head")
    lines = (line_of("A module."), line_of("total += number"))
    assert ("new.py", "old.py", lines) == (moved.path, moved.old_path, moved.lines)
    assert ("other.py", "other.py", (1,)) == (other.path, other.old_path, other.lines)
    assert not moved.is_same_code


def test_new_and_removed_files_are_found(tmp_path):
    """A new file counts as a whole, and so does a removed one; other files are named."""
    for name, text in (("base/old.py", "a = 1\n"), ("head/new.py", "b = 1\n"), ("head/c.txt", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [
        (file.path, file.lines, file.gone, file.is_python)
        for file in find_changed_files(tmp_path / "base", tmp_path / "head")
    ]
    assert [
        ("c.txt", (), {}, False),
        ("new.py", (1,), {}, True),
        ("old.py", (), {1: "a = 1"}, True),
    ] == found


# ---- reaching ------------------------------------------------------------------------------------


def load(tmp_path, lines):
    """The functions of `BEFORE`, in a file, and a watch over some of its lines."""
    path = str(tmp_path / "a.py")
    names = {}
    exec(compile(BEFORE, path, "exec"), names)  # noqa: S102
    return names, Reach({path: lines}), path


def line_of(text):
    """The number of the line that holds a text."""
    (number,) = [n for n, line in enumerate(BEFORE.splitlines(), 1) if text in line]
    return number


def test_lines_are_reached_one_by_one(tmp_path):
    """A line counts once it runs, also one in the middle of an expression."""
    wanted = [line_of("total += number"), line_of("and text.lower()")]
    names, reach, path = load(tmp_path, wanted)
    with reach.watching():
        names["first"]([])
        names["second"]("")
    assert {path: wanted} == reach.missing().lines
    with reach.watching():
        names["first"]([1])
    assert ({path: wanted[1:]}, [(path, wanted[0])]) == (reach.missing().lines, reach.reached())
    with reach.watching():
        names["second"]("a")
    assert {} == reach.missing().lines


def test_nothing_is_followed_once_all_is_reached(tmp_path):
    """When the last line is reached the watch ends, within the block and after it."""
    names, reach, _ = load(tmp_path, [line_of("total = start")])
    with reach.watching():
        assert sys.gettrace() is not None
        names["first"]([1])
        assert sys.gettrace() is None
    with reach.watching():
        assert sys.gettrace() is None
