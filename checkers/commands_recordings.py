"""The verbs that take recorded runs: validate judges them, lockstep leads an engine along them.

Entry points: `validate_recordings`, `lockstep_runs`, `find_recordings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from checkers.commands import make_line, try_to_write
from checkers.counterexample import Counterexample, make_counterexample, read
from checkers.engines import Engine
from checkers.errors import HarnessError
from checkers.progress import Progress
from checkers.recording import open_recording
from checkers.report import Check
from checkers.run import select_invariants
from checkers.shrink import names_to_break, shrink
from checkers.table import MAX_EVIDENCE
from checkers.trial import Rules, Trial, run_for, run_trial
from checkers.validate import Rejection, Validation, validate
from spec.actions import Action
from spec.interface import SchedulerConfig

SUFFIXES = (".jsonl", ".jsonl.gz")
MANY_IN_FLIGHT = 64
"""More steps in flight than any recording has: the recording says when they return."""


def find_recordings(paths: tuple[Path, ...]) -> list[Path]:
    """The recordings among files and folders, in order. Raises `HarnessError` if there are none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES))
        elif path.exists():
            found.append(path)
        else:
            raise HarnessError(f"{path} does not exist; name a recording or a folder of them")
    if not found:
        places = ", ".join(map(str, paths))
        raise HarnessError(
            f"no recordings ({' or '.join(SUFFIXES)}) in {places}; name a file or another folder"
        )
    return found


def validate_recordings(
    paths: list[Path], progress: Progress, *, dialect: str | None = None, exact_ids: bool = False
) -> Iterator[Check]:
    """Holds recorded runs against the specification; yields the rejected, then the accepted."""
    accepted = []
    for path in paths:

        def on_progress(num_events: int, name: str = path.name) -> None:
            progress.say(f"validate {name}: {num_events:,} events")

        found = validate(path, dialect=dialect, exact_ids=exact_ids, on_progress=on_progress)
        if found.is_accepted:
            accepted.append(found)
        else:
            yield _rejected(path, found)
    if accepted:
        yield _accepted(accepted, exact_ids)


def _rejected(path: Path, found: Validation) -> Check:
    assert found.rejection is not None, "an accepted run is none of ours"
    return Check(
        title=f"validate  {found.engine}  {path.name}  dialect={found.dialect}",
        verdict="violated",
        lines=(make_line("events", f"{found.num_accepted:,} of {found.num_events:,} accepted"),),
        facts={**_facts(found), "rejected_line": found.rejection.line},
        explanation="\n".join(_explain(found, found.rejection)),
    )


def _accepted(validations: list[Validation], exact_ids: bool) -> Check:
    """One check for all: a line per recording, then what they do not tell."""
    num_events = sum(found.num_events for found in validations)
    compared = (
        "block ids and the free queue's order by number"
        if exact_ids
        else "block ids up to renaming"
    )
    width = max(len(Path(found.path).name) for found in validations)
    lines = [
        f"{Path(found.path).name:<{width}}  {found.engine:<12}  {found.num_events:>3,} events  "
        f"dialect {found.dialect}"
        for found in validations
    ]
    untold: dict[str, set[str]] = {}
    for found in validations:
        untold.setdefault(found.engine, set()).update(found.absent_fields)
    lines += [
        f"{engine} does not tell {', '.join(sorted(fields))}"
        for engine, fields in untold.items()
        if fields
    ]
    unchecked = sorted({name for found in validations for name in found.unobserved})
    if unchecked:
        lines.append(f"not checked everywhere for want of that: {', '.join(unchecked)}")
    return Check(
        title=(
            f"validate  {len(validations)} recordings, {num_events:,} events accepted  {compared}"
        ),
        verdict="holds",
        lines=tuple(lines),
        facts={
            "num_recordings": len(validations),
            "num_events": num_events,
            "exact_ids": exact_ids,
            "recordings": [_facts(found) for found in validations],
        },
    )


def _facts(found: Validation) -> dict[str, object]:
    return {
        "path": found.path,
        "engine": found.engine,
        "dialect": found.dialect,
        "num_events": found.num_events,
        "num_accepted": found.num_accepted,
        "absent_fields": list(found.absent_fields),
        "unobserved": list(found.unobserved),
        "witnesses": found.witnesses,
    }


def _explain(found: Validation, rejection: Rejection) -> Iterator[str]:
    """Says where a run leaves the specification, why, and what comes of it."""
    first = rejection.breaches[0]
    yield f"error[{first.name}]: {first.rule}"
    event = f"event {found.num_accepted + 1}, {rejection.action}"
    yield f"  --> {found.path}:{rejection.line} ({event})"
    yield f"  the engine   {rejection.answer}"
    yield f"  the spec     {rejection.expected}"
    for breach in rejection.breaches:
        if breach is not first:
            yield f"  Also {breach.name}: {breach.rule}"
        for sentence in breach.evidence[:MAX_EVIDENCE]:
            yield f"  Then {sentence}."
        if len(breach.evidence) > MAX_EVIDENCE:
            yield f"    and {len(breach.evidence) - MAX_EVIDENCE} more"
    if rejection.explanation:
        yield "  How the spec decided:"
        yield from (f"    {sentence}" for sentence in rejection.explanation)
    for consequence in rejection.consequences:
        yield f"  Later, at line {consequence.line} ({consequence.action}: {consequence.answer}):"
        yield f"    {consequence.breach.name}: {consequence.breach.rule}"
        yield from (
            f"    Then {sentence}." for sentence in consequence.breach.evidence[:MAX_EVIDENCE]
        )
    if found.unread:
        yield f"  The rest could not be read: {found.unread}"


def lockstep_runs(
    engine: Engine, paths: list[Path], progress: Progress, out: Path | None
) -> Iterator[Check]:
    """Leads an engine along recorded runs, beside the spec; yields failures, then the rest."""
    led: list[tuple[Path, int]] = []
    for path in paths:
        progress.say(f"lockstep {engine.name} along {path.name}")
        failure, num_actions = _lead(engine, path, out)
        if failure is None:
            led.append((path, num_actions))
        else:
            yield failure
    if led:
        num_actions = sum(count for _, count in led)
        yield Check(
            title=(
                f"lockstep  {engine.name}  {len(led)} runs, {num_actions:,} actions like the spec"
            ),
            verdict="holds",
            facts={"runs": [{"path": str(path), "num_actions": count} for path, count in led]},
        )


def _lead(engine: Engine, path: Path, out: Path | None) -> tuple[Check | None, int]:
    """Leads an engine along one run; returns what is wrong, and how many actions it took."""
    config, actions, dialect = _read_actions(path)
    invariants = tuple(select_invariants())
    rules = Rules(config, invariants, MANY_IN_FLIGHT, lockstep=not engine.is_spec)
    trial = run_trial(rules, engine, actions)
    num_actions = len(trial.steps)
    if not trial.breaches and num_actions < len(actions):
        left_out = len(actions) - num_actions
        raise HarnessError(f"{path}: {left_out} of its actions cannot happen; is the file damaged?")
    example = _shrink(engine, path, dialect, rules, trial)
    if example is None:
        return None, num_actions
    path_written, unwritten = try_to_write(example, out)
    failure = Check(
        title=f"lockstep  {engine.name}  {path.name}  dialect={dialect}",
        verdict="violated",
        lines=(make_line("actions", f"{num_actions:,} of {len(actions):,} led along"),),
        facts={"path": str(path), "num_actions": num_actions},
        counterexample=example,
        path=path_written,
        findings=unwritten,
    )
    return failure, num_actions


def _read_actions(path: Path) -> tuple[SchedulerConfig, list[Action], str]:
    if path.name.endswith(SUFFIXES):
        recording = open_recording(path)
        return recording.config, [event.action for event in recording.events], recording.dialect
    found = read(path)
    return found.config, [step.action for step in found.steps], found.dialect


def _shrink(
    engine: Engine, path: Path, dialect: str, rules: Rules, trial: Trial
) -> Counterexample | None:
    if not trial.breaches:
        return None
    wanted = names_to_break(trial)
    small = shrink(trial, lambda actions: run_for(rules, engine, actions, wanted))
    return make_counterexample(
        rules,
        engine,
        small,
        setting=path.name,
        dialect=dialect,
        found_by="lockstep",
        num_actions_found=len(trial.steps),
    )
