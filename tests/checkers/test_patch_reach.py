"""What a change must have come to before it is called fine: its lines, and what they work with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checkers.patched import (
    FORGETS,
    SCHEDULE,
    TOY,
    changed,
    diff_of,
    kinds_of,
    patch,
    patch_with,
    write_toy,
)

ROOT = Path(__file__).parents[2]
LOOKS_AHEAD = "        self.extra = self.config.num_lookahead_tokens + len(self.running)\n"
IN_VAIN = [("reached in vain", None)]
QUICK = ("--no-lockstep",)
"""Without leading an engine along all states, which takes longest."""


def line_of(text, sought):
    """The number of the line that holds a text."""
    (number,) = [n for n, line in enumerate(text.splitlines(), 1) if sought in line]
    return number


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_a_line_that_ran_only_while_a_feature_was_off_is_never_ok(tmp_path, form):
    """An operand that was nothing whenever its line ran is named, and the verdict undetermined."""
    change = (SCHEDULE, LOOKS_AHEAD + SCHEDULE)
    document = patch_with(tmp_path, change, options=QUICK)
    assert (3, IN_VAIN) == (document["exit_code"], kinds_of(document))
    number = line_of(changed(change), "self.extra")
    row = (
        f"toy/engine.py:{number}  {LOOKS_AHEAD.strip()}  "
        "[ran only with self.config.num_lookahead_tokens = 0]"
    )
    assert [row] == document["checks"][1]["facts"]["lines"]
    result = patch(tmp_path, tmp_path / "change.diff", *QUICK, form=form)
    assert 3 == result.exit_code
    assert row in result.stdout


def test_a_setting_in_which_it_is_there_settles_that(tmp_path):
    """Once the operand is something in some run, the line is reached."""
    options = (*QUICK, "--config", "tiny", "--config", "speculative")
    document = patch_with(tmp_path, (SCHEDULE, LOOKS_AHEAD + SCHEDULE), options=options)
    assert (0, []) == (document["exit_code"], kinds_of(document))


def test_what_is_gone_must_have_worked_with_something(tmp_path):
    """Code that base ran only while an operand was nothing may be missed where it is there."""
    before = changed((SCHEDULE, LOOKS_AHEAD + SCHEDULE))
    document = patch_with(tmp_path, (LOOKS_AHEAD, ""), before=before, options=QUICK)
    assert (3, IN_VAIN) == (document["exit_code"], kinds_of(document))
    (row,) = document["checks"][1]["facts"]["lines"]
    assert f":{line_of(before, 'self.extra')}  {LOOKS_AHEAD.strip()}" in row
    assert "[base ran it only with self.config.num_lookahead_tokens = 0]" in row


def test_what_was_replaced_must_have_worked_with_something(tmp_path):
    """That the new line has all it needs does not tell what the old one did with more."""
    before = changed((SCHEDULE, LOOKS_AHEAD + SCHEDULE))
    change = (LOOKS_AHEAD, "        self.extra = len(self.running)\n")
    document = patch_with(tmp_path, change, before=before, options=QUICK)
    assert (3, IN_VAIN) == (document["exit_code"], kinds_of(document))


GUARDED = "        self.is_full = len(self.running) > 0 and len(self.requests) < 99\n"


def test_a_condition_that_always_went_one_way_is_never_ok(tmp_path):
    """A part of a condition that decided nothing is named, and the verdict undetermined."""
    change = (SCHEDULE, GUARDED + SCHEDULE)
    document = patch_with(tmp_path, change, options=QUICK)
    assert (3, IN_VAIN) == (document["exit_code"], kinds_of(document))
    number = line_of(changed(change), "self.is_full")
    row = (
        f"toy/engine.py:{number}  {GUARDED.strip()}  "
        "[ran only while len(self.requests) < 99 was true]"
    )
    assert [row] == document["checks"][1]["facts"]["lines"]


def test_a_condition_that_is_gone_must_have_decided(tmp_path):
    """What base asked for in vain may be missed where the answer is another one."""
    before = changed((SCHEDULE, GUARDED + SCHEDULE))
    change = (" and len(self.requests) < 99", "")
    document = patch_with(tmp_path, change, before=before, options=QUICK)
    assert (3, IN_VAIN) == (document["exit_code"], kinds_of(document))
    (row,) = document["checks"][1]["facts"]["lines"]
    assert row.endswith("[base ran it only while len(self.requests) < 99 was true]")


def test_a_condition_that_went_both_ways_is_enough(tmp_path):
    """Parts that each decided on their own leave nothing open."""
    ask = "        if self.running and len(self.running) < 2:\n            self.is_alone = True\n"
    document = patch_with(tmp_path, (SCHEDULE, ask + SCHEDULE), options=QUICK)
    assert (0, []) == (document["exit_code"], kinds_of(document))


CAPPED = """
LIMIT = 1000


def cap(number):
    return number if number <= LIMIT else LIMIT
"""
CAP = "        self.cap = cap(len(self.requests))\n"


def test_a_constant_is_asked_for_where_it_is_used(tmp_path):
    """That an import has bound it says nothing of what it does."""
    before = changed(("class Toy", f"{CAPPED.lstrip()}\n\nclass Toy"), (SCHEDULE, CAP + SCHEDULE))
    document = patch_with(tmp_path, ("1000", "64"), before=before, options=QUICK)
    assert (3, IN_VAIN) == (document["exit_code"], kinds_of(document))
    (row,) = document["checks"][1]["facts"]["lines"]
    assert row.endswith("[uses what has changed]  [ran only while number <= LIMIT was true]")


def test_what_only_an_import_runs_is_not_known(tmp_path):
    """A class that is made another way may behave another way; no run of a changed line tells."""
    before = changed(
        ("class Toy", "@attrs.define(eq=False)\nclass Held:\n    one = 1\n\n\nclass Toy")
    )
    document = patch_with(tmp_path, ("(eq=False)", ""), before=before, options=QUICK)
    assert 3 == document["exit_code"]
    sentence = "no walk ran what has changed; that it could be imported says little"
    assert [sentence] == document["checks"][0]["findings"]


def test_an_import_is_settled_when_it_has_run(tmp_path):
    """Nothing but names comes of it, and who uses them is asked elsewhere."""
    document = patch_with(tmp_path, ("import attrs", "import attrs\nimport json"), options=QUICK)
    assert (0, []) == (document["exit_code"], kinds_of(document))


def test_what_was_replaced_must_have_been_reached(tmp_path):
    """A case that is made the same as the others is not known where it never came up."""
    rare = "        if len(self.running) > 99:\n            self.extra = 7\n"
    before = changed((SCHEDULE, f"{rare}        else:\n            self.extra = 1\n{SCHEDULE}"))
    change = (f"{rare}        else:\n            self.extra = 1\n", "        self.extra = 1\n")
    document = patch_with(tmp_path, change, before=before, options=QUICK)
    kinds = [("not reached", None), *IN_VAIN]  # Neither the case, nor that it is asked for.
    assert (3, kinds) == (document["exit_code"], kinds_of(document))
    row = (
        f"toy/engine.py:{line_of(before, '= 7')}  self.extra = 7  [gone, and base did not reach it]"
    )
    assert [row] == document["checks"][1]["facts"]["lines"]


def test_a_function_whose_head_has_changed_must_be_called(tmp_path):
    """That an import runs the head says nothing of who is called with it."""
    idle = "\n    def idle(self, num=1):\n        return num\n"
    document = patch_with(tmp_path, ("num=1", "num=2"), before=TOY + idle, options=QUICK)
    assert (3, [("not reached", None)]) == (document["exit_code"], kinds_of(document))
    (row,) = document["checks"][1]["facts"]["lines"]
    assert row.endswith("return num  [the head of its function has changed]")


def decisions_of(folder, change):
    """What the report of a change to the toy says of decisions, and the exit code."""
    write_toy(folder)
    (folder / "change.diff").write_text(diff_of(TOY, changed(change)))
    result = patch(folder, folder / "change.diff", form="text")
    rows = [line.strip() for line in result.stdout.splitlines()]
    return result.exit_code, [row for row in rows if row.startswith("decisions")]


def test_a_head_that_decides_as_base_is_said_to(tmp_path):
    """Where nothing differs, the report says so, and what that means for the author."""
    change = (SCHEDULE, f"        request_ids = list(self.running)\n{SCHEDULE}")
    exit_code, (row,) = decisions_of(tmp_path, change)
    assert 0 == exit_code
    assert row.startswith("decisions   head decided exactly as base in all of 3 walks and ")
    assert row.endswith("if the change was meant to change decisions, no setting here shows it")


def test_a_head_that_breaks_a_rule_is_not_said_to_decide_the_same(tmp_path):
    """A fault leaves no room for that sentence, whatever the walks without it did."""
    assert (1, []) == decisions_of(tmp_path, FORGETS)


def test_a_module_that_is_gone_is_found_nowhere_else(tmp_path):
    """An installation that has it does not stand in: head cannot be imported."""
    name = "impl/slots.py"
    lines = (ROOT / name).read_text().splitlines(keepends=True)
    gone = "".join(f"-{line}" for line in lines)
    (tmp_path / "change.diff").write_text(
        f"diff --git a/{name} b/{name}\ndeleted file mode 100644\n"
        f"--- a/{name}\n+++ /dev/null\n@@ -1,{len(lines)} +0,0 @@\n{gone}"
    )
    document = json.loads(
        patch(ROOT, tmp_path / "change.diff", "--out", tmp_path, engine="fast").stdout
    )
    assert (1, [("introduced", "engine_is_imported")]) == (
        document["exit_code"],
        kinds_of(document),
    )
    assert "No module named 'impl.slots'" in document["checks"][1]["findings"][0]


def test_a_fault_of_code_that_is_gone_is_put_to_it(tmp_path):
    """Where no changed line ran, the report names what is not there any more."""
    helper = "\n    def helper(self):\n        return 1\n"
    before = changed((SCHEDULE, f"        self.helper()\n{SCHEDULE}")) + helper
    document = patch_with(tmp_path, (helper, ""), before=before, options=QUICK)
    facts = document["checks"][1]["facts"]
    place = f"toy/engine.py:{line_of(before, 'return 1')}"
    assert (["engine_raises"], [f"{place}  return 1  (gone)"]) == (facts["rules"], facts["changed"])
