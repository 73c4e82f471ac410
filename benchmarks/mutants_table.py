r"""Writes docs/mutants.md from what `schedcheck mutate --systematic` has found.

schedcheck mutate --systematic both --format json | python benchmarks/mutants_table.py \
    > docs/mutants.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from checkers.mutations.systematic.noted import NOT_RUN, NOTED

HEAD = """\
# Every small edit

`schedcheck mutate --systematic both` edits the source of the specification and of our engine, one
small edit at a time: another operator or constant, a condition turned round, a part of one left
out, a statement dropped. What becomes of a mutant:

- **killed**: somebody notices. A mutant of the specification is explored in small settings under
  all invariants, with the number of states and the witnesses that are pinned, and for loops without
  progress. Then mutants of both sides are led along every action of every state of the small
  settings, and along walks through the large ones, beside the other side. At last recorded runs of
  a real engine are held against those of the specification.
- **equal**: it shows the same at every action of every state of each setting that reaches it.
- **noted**: nobody can notice, and the table below says why.
- **survived**, or **unreached**: only walks reach it and see nothing, or nothing reaches it.

The share that is killed is of all but the equal and the noted. This file is written by
[`benchmarks/mutants_table.py`](../benchmarks/mutants_table.py).

"""
COLUMNS = ("killed", "equal", "noted", "survived", "unreached")


def main() -> None:
    """Reads the report from stdin, and writes the file to stdout."""
    report = json.load(sys.stdin)
    files = [c["facts"] for c in report["checks"] if "num_chosen" in c["facts"]]
    mutants = [mutant for file in files for mutant in file["mutants"]]
    print(HEAD + describe_size(files, mutants) + "\n")
    print(f"| file | {' | '.join(COLUMNS)} | killed of those that differ |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for file in sorted(files, key=lambda file: str(file["file"])):
        print(row_of(f"`{file['file']}`", file["mutants"]))
    print(row_of("in all", mutants))
    print("\n".join(describe_killers(mutants)))
    print("\n## Noted\n\n| mutant, or function | why nobody could notice |\n|---|---|")
    for name, reason in {**NOT_RUN, **NOTED}.items():
        print(f"| `{name}` | {reason} |")


def describe_size(files: list[dict[str, Any]], mutants: list[dict[str, Any]]) -> str:
    """How many were judged, of how many; those come in a random order."""
    num_chosen = sum(file["num_chosen"] for file in files)
    if len(mutants) == num_chosen:
        return f"All {num_chosen:,} were judged:\n"
    return f"{len(mutants):,} of {num_chosen:,} were judged, drawn at random:\n"


def row_of(title: str, mutants: Iterable[dict[str, Any]]) -> str:
    """What became of some mutants."""
    counts = Counter(mutant["outcome"] for mutant in mutants)
    num_differing = counts["killed"] + counts["survived"] + counts["unreached"]
    share = f"{counts['killed'] / num_differing:.1%}" if num_differing else ""
    return f"| {title} | {' | '.join(str(counts[name]) for name in COLUMNS)} | {share} |"


def describe_killers(mutants: list[dict[str, Any]]) -> Iterator[str]:
    """Who noticed, and what survives for somebody to read."""
    killers = Counter(m["checker"] for m in mutants if m["outcome"] == "killed")
    told = ", ".join(f"{name} {count:,}" for name, count in killers.most_common())
    yield f"\nKilled by {told}."
    left = [m for m in mutants if m["outcome"] in {"survived", "unreached"}]
    if left:
        yield "\n## Not killed\n\n| mutant | |\n|---|---|"
        yield from (f"| `{m['name']}` | {m['outcome']} |" for m in left)


if __name__ == "__main__":
    main()
