"""The command `schedcheck mutate`: our engine as it is, then with one planted bug after the other.

Entry points: `mutate`, `list_mutations`, and `check_options` for what is asked of it.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checkers.commands import make_line
from checkers.errors import HarnessError
from checkers.mutations.look import Look
from checkers.mutations.registry import MUTATIONS, Mutation
from checkers.mutations.unplanted import UNPLANTED
from checkers.mutations.workers import Answer, Task, Work
from checkers.progress import Progress
from checkers.report import Check
from checkers.run import Verdict

MAX_TITLE = 48
"""Characters of a name, so that what follows stands in columns."""


def mutate(names: Sequence[str], num_workers: int, progress: Progress) -> Iterator[Check]:
    """Yields what was seen of our engine as it is, then of each bug; at the end, the sums.

    Where bugs are named, the run that shows each is told in full. If our engine itself breaks a
    rule, no bug is planted.
    """
    chosen = choose_mutations(names)
    work = Work(num_workers, progress)
    baseline = check_baselines(chosen, work.run)
    yield baseline
    if baseline.verdict != "holds":
        return
    tally: Counter[str] = Counter()
    for task, answer in work.run([Task(wrong.name) for wrong in chosen]):
        check = judge(MUTATIONS[task.name], answer, in_full=bool(names))
        tally[check.facts["outcome"]] += 1
        yield check
    if not names:
        yield sum_up(chosen, tally)


def check_options(
    names: tuple[str, ...], by: str, systematic: str | None, is_narrowed: Any
) -> None:
    """Raises `HarnessError` for names and options that would be left unheard."""
    if names and systematic:
        raise HarnessError(
            f"{' '.join(names)}: --systematic makes edits, and no known bugs; leave out the names, "
            "or --systematic"
        )
    if by and systematic:
        raise HarnessError("--by is for known bugs, and --systematic for edits; leave out one")
    if is_narrowed and not systematic:
        raise HarnessError(
            "--file, --sample, --config, --seed and --time-budget are of --systematic; a known bug "
            "has a setting of its own"
        )


def choose_mutations(names: Sequence[str]) -> list[Mutation]:
    """Those that are named, or all. Raises `HarnessError` for one that is unknown."""
    importlib.import_module("checkers.mutations.bugs")
    for name in names:
        if name not in MUTATIONS:
            raise HarnessError(
                f"bug {name!r} is unknown; `schedcheck mutate --list` names those that are planted"
            )
    return [wrong for wrong in MUTATIONS.values() if not names or wrong.name in names]


def list_mutations(names: Sequence[str]) -> Iterator[str]:
    """Yields a line for each bug, then for each that is not planted."""
    for wrong in choose_mutations(names):
        sources = ", ".join(wrong.sources) or "ours"
        yield f"{wrong.kind:<13} {wrong.name:<{MAX_TITLE}} {wrong.caught_by:<38} {sources}"
        yield f"{'':<13} {wrong.rule}"
    if not names:
        for source, reason in UNPLANTED.items():
            yield f"{'not planted':<13} {source}: {reason}"


# ---- our engine as it is -------------------------------------------------------------------------


def check_baselines(
    chosen: Sequence[Mutation],
    run: Callable[[Sequence[Task]], Iterator[Answer]],
    by: Sequence[str] = (),
) -> Check:
    """Looks at our engine as it is, once for each way in which a bug is looked for.

    `by` names the checkers that look; without any, each bug's own does.
    """
    tasks = list(_choose_baselines(chosen, by))
    num_settings = len({MUTATIONS[task.name].setting.name for task in tasks})
    failures: list[str] = []
    lines: list[str] = []
    verdict: Verdict = "holds"
    cpu_s = 0.0
    for task, seen in run(tasks):
        setting = MUTATIONS[task.name].setting.name
        if isinstance(seen, str):
            failures.append(f"in setting {setting}, the process {seen}")
            verdict = "undetermined" if verdict == "holds" else verdict
            continue
        cpu_s += seen.cpu_s
        if seen.broken:
            verdict = "violated"
            asked = f", asked {task.by}" if task.by else ""
            failures.append(
                f"in setting {setting}, our engine breaks {seen.broken[0]} as it is{asked}"
            )
            lines += seen.lines
    return Check(
        title="mutate  our engine as it is",
        verdict=verdict,
        lines=(
            make_line(
                "looked at", f"{num_settings} settings, {len(tasks)} times, {cpu_s:.1f} CPU seconds"
            ),
        ),
        facts={"num_settings": num_settings, "num_looks": len(tasks), "cpu_s": round(cpu_s, 2)},
        findings=tuple(failures),
        explanation="\n".join(lines),
    )


def _choose_baselines(chosen: Sequence[Mutation], by: Sequence[str]) -> Iterator[Task]:
    """Yields a task for each setting, and each way in which bugs are looked for in it."""
    ways: set[tuple[object, ...]] = set()
    for wrong in chosen:
        for checker in by or [""]:
            own = () if checker else (wrong.checker, wrong.is_rare)
            way = (wrong.setting.name, checker, *own)
            if way not in ways:
                ways.add(way)
                yield Task(wrong.name, is_baseline=True, by=checker)


# ---- one bug -------------------------------------------------------------------------------------


def judge(wrong: Mutation, answer: Look | str, *, in_full: bool = False) -> Check:
    """Whether the rule of a bug has noticed it; a process that ended early says nothing."""
    seen = Look() if isinstance(answer, str) else answer
    outcome, verdict, text = _compare(wrong, answer)
    is_told = verdict != "holds" or in_full
    return Check(
        title=f"mutate  {wrong.kind}  {wrong.name}",
        verdict=verdict,
        lines=(make_line(outcome, text),) if verdict == "holds" else (),
        facts={
            "name": wrong.name,
            "rule": wrong.rule,
            "kind": wrong.kind,
            "sources": list(wrong.sources),
            "target": wrong.target,
            "setting": wrong.setting.name,
            "checker": wrong.checker,
            "caught_by": wrong.caught_by,
            "outcome": outcome,
            "broken": list(seen.broken),
            "num_actions": seen.num_actions,
            "cpu_s": round(seen.cpu_s, 2),
        },
        findings=() if verdict == "holds" else (f"{outcome.upper()}: {wrong.rule} {text}",),
        explanation="\n".join([f"{wrong.name}: {wrong.rule}", *seen.lines]) if is_told else "",
    )


def _compare(wrong: Mutation, answer: Look | str) -> tuple[str, Verdict, str]:
    """The outcome in a word, what that means, and in a sentence."""
    if isinstance(answer, str):
        return "ended", "undetermined", f"The process {answer}."
    if not answer.broken:
        return "missed", "violated", f"Nothing was found, however {wrong.caught_by} must notice."
    if wrong.caught_by not in answer.broken:
        broken = ", ".join(answer.broken)
        return "misnamed", "violated", f"{broken} noticed, however {wrong.caught_by} must."
    text = f"by {wrong.caught_by}, {wrong.checker}, {answer.num_actions} actions"
    return "caught", "holds", f"{text}, {answer.cpu_s:.1f} CPU seconds"


# ---- in all --------------------------------------------------------------------------------------


def sum_up(chosen: Sequence[Mutation], tally: Counter[str]) -> Check:
    """How many were caught, and which public bugs are not planted, with the reason."""
    sources = {source for wrong in chosen for source in wrong.sources}
    counts = ", ".join(f"{count} {outcome}" for outcome, count in tally.items())
    return Check(
        title="mutate  in all",
        verdict="holds",
        lines=(
            make_line("planted", f"{len(chosen)} bugs, {len(sources)} of them public: {counts}"),
            *(make_line("not planted", f"{name}: {why}") for name, why in UNPLANTED.items()),
        ),
        facts={"outcomes": dict(tally), "not_planted": UNPLANTED},
    )
