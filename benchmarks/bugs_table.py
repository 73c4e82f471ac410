"""Writes docs/bugs.md from what `schedcheck mutate` has found.

schedcheck mutate --by all --format json > benchmarks/results/bugs_by_checker.json
schedcheck mutate --format json | python benchmarks/bugs_table.py > docs/bugs.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BY_CHECKER = Path(__file__).parent / "results" / "bugs_by_checker.json"
NOT_ASKED = "not asked"
HEAD = """\
# Planted bugs

`schedcheck mutate` puts each of these bugs into our engine, one at a time, and asks whether the
rule that must notice does. They stand in [`checkers/mutations/bugs`](../checkers/mutations/bugs), a
file for each kind; `schedcheck mutate NAME` shows the run in full. *Actions* is the length of the
shortest run found: of a loop, the way in and the loop once. *Also caught by* names the checkers
that see it by themselves, each by whatever rule (`schedcheck mutate --by all`: search, lockstep,
validate, machine, explore, liveness; those in brackets could not be asked, and the report says
why). *Like* names public bugs of serving engines of which this is one; none if we made it up.

This file is written by [`benchmarks/bugs_table.py`](../benchmarks/bugs_table.py).

| bug | what goes wrong | kind | noticed by | actions | also caught by | like |
|---|---|---|---|---|---|---|
"""
TAIL = """
## Public bugs that are not planted

| bug | why not |
|---|---|
"""


def main() -> None:
    """Reads the report from stdin, and writes the file to stdout."""
    report = json.load(sys.stdin)
    if report["exit_code"] != 0:
        sys.exit("the report is not of a run in which every bug was caught")
    facts = [check["facts"] for check in report["checks"]]
    bugs = sorted((f for f in facts if "name" in f), key=lambda bug: (bug["kind"], bug["name"]))
    print(HEAD, end="")
    print("\n".join(rows_of(bugs, read_checkers())))
    print(TAIL, end="")
    for name, reason in facts[-1]["not_planted"].items():
        print(f"| {name} | {reason} |")


def read_checkers() -> dict[str, str]:
    """By bug, who saw it when each checker was asked."""
    checks = json.loads(BY_CHECKER.read_text())["checks"]
    rows = [check["facts"] for check in checks if "by" in check["facts"]]
    return {row["name"]: describe_checkers(row["by"]) for row in rows}


def describe_checkers(cells: dict[str, Any]) -> str:
    """The checkers that saw a bug; in brackets, those to which it is not applicable."""
    signs = {"caught": "{}", "not applicable": "({})"}
    seen = [signs.get(cell["outcome"], "").format(name) for name, cell in cells.items()]
    return ", ".join(filter(None, seen))


def rows_of(bugs: list[dict[str, Any]], checkers: dict[str, str]) -> Iterator[str]:
    """Yields a row for each bug."""
    for bug in bugs:
        cells = (
            f"`{bug['name']}`",
            bug["rule"],
            bug["kind"],
            f"`{bug['caught_by']}`",
            bug["num_actions"],
            checkers.get(bug["name"], NOT_ASKED),
            ", ".join(bug["sources"]),
        )
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
