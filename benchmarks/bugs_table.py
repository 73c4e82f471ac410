"""Writes docs/bugs.md from what `schedcheck mutate` has found.

schedcheck mutate --format json | python benchmarks/bugs_table.py > docs/bugs.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

HEAD = """\
# Planted bugs

`schedcheck mutate` puts each of these bugs into our engine, one at a time, and asks whether the
rule that must notice does. They stand in [`checkers/mutations/bugs`](../checkers/mutations/bugs), a
file for each kind; `schedcheck mutate NAME` shows the run in full. *Actions* is the length of the
shortest run found: of a loop, the way in and the loop once. *Like* names public bugs of serving
engines of which this is one; none if we made it up.

This file is written by [`benchmarks/bugs_table.py`](../benchmarks/bugs_table.py).

| bug | what goes wrong | kind | noticed by | actions | like |
|---|---|---|---|---|---|
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
    print("\n".join(rows_of(bugs)))
    print(TAIL, end="")
    for name, reason in facts[-1]["not_planted"].items():
        print(f"| {name} | {reason} |")


def rows_of(bugs: list[dict[str, Any]]) -> Iterator[str]:
    """Yields a row for each bug."""
    for bug in bugs:
        cells = (
            f"`{bug['name']}`",
            bug["rule"],
            bug["kind"],
            f"`{bug['caught_by']}`",
            bug["num_actions"],
            ", ".join(bug["sources"]),
        )
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
