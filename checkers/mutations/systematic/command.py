"""The command `schedcheck mutate --systematic`: every small edit of a side's files, one at a time.

Entry points: `mutate_all`, and what it is to be done with, `choose_mutants` and `choose_settings`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from attrs import define, field, frozen

from checkers.commands import make_line
from checkers.configs import Setting, load_settings
from checkers.errors import HarnessError
from checkers.mixed import find_setting
from checkers.mutations.systematic.courses import Courses
from checkers.mutations.systematic.judge import Bench, Fate, find_recordings
from checkers.mutations.systematic.mutants import FILES, Mutant, find_mutants
from checkers.mutations.systematic.noted import NOT_RUN, NOTED, find_reason
from checkers.mutations.systematic.workers import LostWorkersError, judge_all
from checkers.progress import Progress
from checkers.report import Check
from checkers.run import Verdict

FOREVER_S = 1e9
OUTCOMES = ("killed", "equal", "noted", "survived", "unreached")
"""What may become of a mutant: as judged, or noted as one that nobody could notice."""


@frozen(kw_only=True)
class Choice:
    """Which mutants."""

    side: str
    """`spec`, `engine` or `both`."""
    files: tuple[str, ...] = ()
    """None is all of the side's."""
    num_sampled: int = 0
    """So many of them, drawn at random; 0 is all."""
    seed: int = 0


@define
class Judged:
    """The mutants of one file, and what became of them so far."""

    file: str
    num_mutants: int
    """That were chosen."""
    fates: list[tuple[Mutant, Fate]] = field(factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all are judged."""
        return len(self.fates) == self.num_mutants


def mutate_all(
    choice: Choice,
    settings: Sequence[Setting],
    num_workers: int,
    time_budget: float,
    progress: Progress,
) -> Iterator[Check]:
    """Yields what became of the mutants of each file, once the last one is judged; then the sums.

    Raises `HarnessError` if nothing was chosen, or our engine does not do as the specification.
    """
    deadline = time.monotonic() + (time_budget or FOREVER_S)
    mutants = choose_mutants(choice)
    files = Counter(mutant.patch.file for mutant in mutants)
    judged = {file: Judged(file, count) for file, count in files.items()}
    try:
        bench = make_bench(settings, progress)
        for number, (mutant, fate) in enumerate(
            judge_all(bench, mutants, num_workers, deadline), 1
        ):
            progress.say(f"mutate: {number} of {len(mutants)}, {mutant.name}")
            of_file = judged[mutant.patch.file]
            of_file.fates.append((mutant, fate))
            if of_file.is_complete:
                yield describe_file(of_file)
        ended_by = "the time budget"
    except KeyboardInterrupt:
        ended_by = "Ctrl-C"
    except LostWorkersError as error:
        ended_by = str(error)
    for of_file in judged.values():
        if not of_file.is_complete:
            yield describe_file(of_file, ended_by)
    yield sum_up(list(judged.values()), is_all=choice == Choice(side=choice.side))


def choose_mutants(choice: Choice) -> list[Mutant]:
    """The mutants of a choice, shuffled, so that an early end has seen something of all files.

    Raises `HarnessError` if there are none.
    """
    sides = list(FILES) if choice.side == "both" else [choice.side]
    known = [file for side in sides for file in FILES[side]]
    for file in choice.files:
        if file not in known:
            raise HarnessError(f"file {file!r} has no mutants; name one of {', '.join(known)}")
    mutants = [m for file in choice.files or known for m in find_mutants(file)]
    rng = random.Random(choice.seed)
    rng.shuffle(mutants)
    return mutants[: choice.num_sampled or None]


def choose_settings(configs: Sequence[str]) -> list[Setting]:
    """The settings that are named, or all: also those in which something does not hold."""
    return [find_setting(config) for config in configs] or list(load_settings().values())


def make_bench(settings: Sequence[Setting], progress: Progress) -> Bench:
    """Makes all courses, so that processes that are forked later have them."""
    courses = Courses(list(settings))
    for setting in courses.settings:
        progress.say(f"mutate: what {setting.name} has to show")
        courses.get(setting)
    return Bench(courses, find_recordings())


# ---- what is said of it --------------------------------------------------------------------------


def describe_file(judged: Judged, ended_by: str = "") -> Check:
    """What became of the mutants of one file."""
    counts = count_outcomes(judged)
    missed = tuple(complain(mutant, fate) for mutant, fate in judged.fates)
    findings = tuple(sorted(finding for finding in missed if finding))
    verdict: Verdict = "violated" if findings else "holds"
    if ended_by and not findings:
        verdict = "undetermined"
    left = f", {judged.num_mutants - len(judged.fates)} not judged: {ended_by}"
    return Check(
        title=f"mutate  {judged.file}",
        verdict=verdict,
        lines=(
            make_line("mutants", describe_counts(counts) + (left if ended_by else "")),
            make_line("killed by", describe_killers(judged)),
        ),
        facts={
            "file": judged.file,
            "outcomes": dict(counts),
            "num_chosen": judged.num_mutants,
            "ended_by": ended_by,
            "mutants": sorted(make_facts(judged), key=lambda facts: (facts["line"], facts["name"])),
        },
        findings=findings,
    )


def complain(mutant: Mutant, fate: Fate) -> str:
    """What is wrong with the outcome of a mutant; "" if nothing is."""
    place = f"{mutant.patch.file}:{mutant.patch.line}"
    reason = find_reason(mutant.function, mutant.name)
    if reason and fate.outcome == "killed":
        return (
            f"{place} is noted ({reason}), however {fate.rule} notices it in {fate.setting}: "
            f"{mutant.name}"
        )
    if reason or fate.outcome in {"killed", "equal"}:
        return ""
    return f"{place} {fate.outcome}: {mutant.name}"


def classify(mutant: Mutant, fate: Fate) -> str:
    """The outcome; of one that nobody notices, whether that is noted."""
    is_noted = bool(find_reason(mutant.function, mutant.name))
    return "noted" if is_noted and fate.outcome != "killed" else fate.outcome


def count_outcomes(judged: Judged) -> Counter[str]:
    """How many came to what."""
    found = Counter(classify(mutant, fate) for mutant, fate in judged.fates)
    return Counter({outcome: found[outcome] for outcome in OUTCOMES if found[outcome]})


def describe_counts(counts: Counter[str]) -> str:
    """The counts, and the share that is killed of those that differ."""
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items()) or "none judged"
    num_differing = counts["killed"] + counts["survived"] + counts["unreached"]
    if not num_differing:
        return told
    return f"{told}; killed are {counts['killed'] / num_differing:.1%} of those that differ"


def describe_killers(*judged: Judged) -> str:
    """Which checkers noticed how many."""
    found = Counter(fate.checker for of_file in judged for _, fate in of_file.fates)
    return ", ".join(f"{name} {count:,}" for name, count in found.most_common() if name) or "nobody"


def make_facts(judged: Judged) -> Iterator[dict[str, Any]]:
    """Yields all that is known of each mutant."""
    for mutant, fate in judged.fates:
        facts = attrs.asdict(fate)
        yield {
            "name": mutant.name,
            "line": mutant.patch.line,
            "kind": mutant.kind,
            **facts,
            "outcome": classify(mutant, fate),
            "reason": find_reason(mutant.function, mutant.name),
        }


def sum_up(judged: Sequence[Judged], *, is_all: bool) -> Check:
    """The sums; where all mutants of a side were chosen, also which notes speak of none."""
    counts: Counter[str] = Counter()
    for of_file in judged:
        counts += count_outcomes(of_file)
    gone = tuple(find_gone(judged)) if is_all else ()
    return Check(
        title="mutate  in all",
        verdict="violated" if gone else "holds",
        lines=(
            make_line("mutants", describe_counts(counts)),
            make_line("killed by", describe_killers(*judged)),
        ),
        facts={"outcomes": dict(counts)},
        findings=tuple(f"noted, however no such mutant is there: {name}" for name in gone),
    )


def find_gone(judged: Sequence[Judged]) -> Iterator[str]:
    """Yields what is noted of these files and is not there any more."""
    mutants = [mutant for of_file in judged for mutant in find_mutants(of_file.file)]
    there = {mutant.name for mutant in mutants} | {mutant.function for mutant in mutants}
    files = {of_file.file for of_file in judged}
    for name in (*NOT_RUN, *NOTED):
        if name.partition(" ")[0] in files and name not in there:
            yield name
