"""Which checkers see which bugs: a row for each bug, a cell for each checker that was asked.

Entry point: `mutate_by`. Here any rule will do; which one has to notice is what `command` asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from checkers.commands import make_line
from checkers.errors import HarnessError
from checkers.mutations.command import MAX_TITLE, check_baselines, choose_mutations
from checkers.mutations.look import Look
from checkers.mutations.registry import MUTATIONS, Mutation
from checkers.mutations.ways import WAYS
from checkers.mutations.workers import Task, Work
from checkers.progress import Progress
from checkers.report import Check
from checkers.run import Verdict

ALL = "all"
CellKind = Literal["caught", "not", "not applicable", "ended"]
SIGNS: dict[CellKind, str] = {"not": "-", "not applicable": "n/a", "ended": "?"}
"""What stands in a column; the checker's name if it caught the bug."""
Cells = dict[str, Look | str]
"""What each checker saw of a bug; or how its process came to its end."""


def mutate_by(
    names: Sequence[str], by: Sequence[str], num_workers: int, progress: Progress
) -> Iterator[Check]:
    """Yields our engine as it is, then a row for each bug, then the sums of the columns.

    If our engine itself breaks a rule, no bug is planted.
    """
    chosen = choose_mutations(names)
    work = Work(num_workers, progress)
    baseline = check_baselines(chosen, work.run, by)
    yield baseline
    if baseline.verdict != "holds":
        return
    rows: dict[str, Cells] = {wrong.name: {} for wrong in chosen}
    tasks = [Task(wrong.name, by=checker) for wrong in chosen for checker in by]
    for task, answer in work.run(tasks):
        cells = rows[task.name]
        cells[task.by] = answer
        if len(cells) == len(by):
            ordered = rows[task.name] = {checker: cells[checker] for checker in by}
            yield make_row(MUTATIONS[task.name], ordered, in_full=bool(names))
    yield sum_columns(rows, by)


def choose_checkers(text: str) -> list[str]:
    """The checkers that `--by` names. Raises `HarnessError` for one that is unknown."""
    chosen = list(WAYS) if text == ALL else text.split(",")
    for name in chosen:
        if name not in WAYS:
            known = ", ".join(WAYS)
            raise HarnessError(f"--by {text}: {name!r} is unknown; known are {known}, or {ALL}")
    return list(dict.fromkeys(chosen))


# ---- a row ---------------------------------------------------------------------------------------


def make_row(wrong: Mutation, cells: Cells, *, in_full: bool = False) -> Check:
    """Who saw a bug. One that nobody saw who could look at it is a finding."""
    kinds = {checker: kind_of(answer) for checker, answer in cells.items()}
    columns = [f"{SIGNS.get(kind, checker):<{len(checker)}}" for checker, kind in kinds.items()]
    verdict = _judge(set(kinds.values()))
    asked = ", ".join(cells)
    return Check(
        title=f"mutate  {wrong.name:<{MAX_TITLE}}  {'  '.join(columns)}".rstrip(),
        verdict=verdict,
        lines=tuple(make_line(c, describe(answer)) for c, answer in cells.items() if in_full),
        facts={
            "name": wrong.name,
            "kind": wrong.kind,
            "setting": wrong.setting.name,
            "caught_by": wrong.caught_by,
            "by": {checker: _facts(answer) for checker, answer in cells.items()},
        },
        findings=() if verdict == "holds" else (f"SURVIVED: {wrong.rule} Asked: {asked}.",),
    )


def kind_of(answer: Look | str) -> CellKind:
    """What a cell says, in a word or two."""
    if isinstance(answer, str):
        return "ended"
    if answer.unfit:
        return "not applicable"
    return "caught" if answer.broken else "not"


def describe(answer: Look | str) -> str:
    """What a cell says, in a sentence."""
    if isinstance(answer, str):
        return f"its process {answer}"
    if answer.unfit:
        return f"not applicable: {answer.unfit}"
    if not answer.broken:
        return f"not: {answer.looked_at}"
    where = f"line {answer.line}" if answer.line else f"{answer.num_actions} actions"
    return f"caught by {answer.broken[0]}, {where}"


def _judge(kinds: set[CellKind]) -> Verdict:
    if "caught" in kinds:
        return "holds"
    return "undetermined" if "ended" in kinds or kinds == {"not applicable"} else "violated"


def _facts(answer: Look | str) -> dict[str, Any]:
    seen = Look() if isinstance(answer, str) else answer
    return {
        "outcome": kind_of(answer),
        "says": describe(answer),
        "broken": list(seen.broken),
        "num_actions": seen.num_actions,
        "line": seen.line or None,
        "cpu_s": round(seen.cpu_s, 2),
    }


# ---- the columns ---------------------------------------------------------------------------------


def sum_columns(rows: dict[str, Cells], by: Sequence[str]) -> Check:
    """How many bugs each checker saw, why it could not look at some, and who alone saw which."""
    kinds = {checker: Counter(kind_of(cells[checker]) for cells in rows.values()) for checker in by}
    return Check(
        title=f"mutate  in all  {len(rows)} bugs",
        verdict="holds",
        lines=(
            *(make_line(checker, _describe_sum(count)) for checker, count in kinds.items()),
            *_describe_reasons(rows, by),
            *_describe_loners(rows),
        ),
        facts={"outcomes": {checker: dict(count) for checker, count in kinds.items()}},
    )


def _describe_sum(count: Counter[CellKind]) -> str:
    return ", ".join(f"{num} {kind}" for kind, num in count.most_common())


def _describe_reasons(rows: dict[str, Cells], by: Sequence[str]) -> Iterator[str]:
    for checker in by:
        looks = [cells[checker] for cells in rows.values()]
        reasons = Counter(seen.unfit for seen in looks if isinstance(seen, Look) and seen.unfit)
        for reason, num in reasons.most_common():
            yield make_line("", f"{checker} is not applicable to {num}: {reason}")


def _describe_loners(rows: dict[str, Cells]) -> Iterator[str]:
    """Of bugs that several checkers were asked about, those that one alone saw."""
    for name, cells in rows.items():
        seen_by = [checker for checker, answer in cells.items() if kind_of(answer) == "caught"]
        if len(seen_by) == 1 < len(cells):
            yield make_line("", f"{seen_by[0]} alone sees {name}")
