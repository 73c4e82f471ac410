"""The verbs that take recorded runs: validate holds them against the spec, lockstep leads an engine along them.

Entry points: `validate_recording`, `lockstep_recording`, `find_recordings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from checkers.commands import make_line
from checkers.counterexample import Counterexample, make_steps, read, write
from checkers.engines import Engine
from checkers.errors import HarnessError
from checkers.progress import Progress
from checkers.recording import open_recording
from checkers.report import Check
from checkers.run import select_invariants
from checkers.shrink import shrink
from checkers.table import MAX_EVIDENCE
from checkers.trial import Rules, Trial, run_trial
from checkers.validate import Rejection, Validation, validate
from spec.interface import SchedulerConfig
from spec.model import Action

SUFFIXES = (".jsonl", ".jsonl.gz")
MANY_IN_FLIGHT = 64
"""More steps in flight than any recording has: the recording says when they return."""


def find_recordings(paths: tuple[Path, ...]) -> list[Path]:
    """The recordings among files and folders, in order. Raises `HarnessError` if there are none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES))
        else:
            found.append(path)
    if not found:
        places = ", ".join(map(str, paths))
        raise HarnessError(f"no recordings ({' or '.join(SUFFIXES)}) in {places}; name a file or another folder")
    return found


def validate_recording(
    path: Path, progress: Progress, *, dialect: str | None = None, exact_ids: bool = False
) -> Check:
    """Holds a recorded run against the specification and the invariants."""

    def on_progress(num_events: int) -> None:
        progress.say(f"validate {path.name}: {num_events:,} events")

    found = validate(path, dialect=dialect, exact_ids=exact_ids, on_progress=on_progress)
    lines = [
        make_line("events", f"{found.num_accepted:,} of {found.num_events:,} accepted"),
        make_line(
            "compared",
            "every field, block ids and the order of the free queue by number"
            if exact_ids
            else "every field, block ids up to renaming",
        ),
    ]
    if found.absent_fields:
        lines.append(make_line("not told", ", ".join(found.absent_fields)))
    if found.unobserved:
        lines.append(make_line("unchecked", f"for want of that: {', '.join(found.unobserved)}"))
    return Check(
        title=f"validate  {found.engine}  {path.name}  dialect={found.dialect}",
        verdict="holds" if found.is_accepted else "violated",
        lines=tuple(lines),
        facts={
            "path": str(path),
            "engine": found.engine,
            "dialect": found.dialect,
            "num_events": found.num_events,
            "num_accepted": found.num_accepted,
            "rejected_line": None if found.rejection is None else found.rejection.line,
            "absent_fields": list(found.absent_fields),
            "unobserved": list(found.unobserved),
            "witnesses": found.witnesses,
        },
        explanation="" if found.rejection is None else "\n".join(_explain(found, found.rejection)),
    )


def _explain(found: Validation, rejection: Rejection) -> Iterator[str]:
    """Says where a run leaves the specification, why, and what comes of it."""
    first = rejection.breaches[0]
    yield f"error[{first.name}]: {first.rule}"
    yield f"  --> {found.path}:{rejection.line} (event {found.num_accepted + 1}, {rejection.action})"
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
        yield from (f"    Then {sentence}." for sentence in consequence.breach.evidence[:MAX_EVIDENCE])
    if found.unread:
        yield f"  The rest could not be read: {found.unread}"


def lockstep_recording(engine: Engine, path: Path, progress: Progress, out: Path | None) -> Check:
    """Leads an engine through the actions of a recorded run or a counterexample, beside the specification."""
    progress.say(f"lockstep {engine.name} along {path.name}")
    config, actions, dialect = _read_actions(path)
    rules = Rules(
        config, tuple(select_invariants()), MANY_IN_FLIGHT, lockstep=not engine.is_spec
    )
    trial = run_trial(rules, engine, actions, explain=True)
    title = f"lockstep  {engine.name}  {path.name}  dialect={dialect}"
    if not trial.breaches and len(trial.steps) < len(actions):
        left_out = len(actions) - len(trial.steps)
        raise HarnessError(f"{path}: {left_out} of its actions cannot happen; is the file damaged?")
    example = _make_counterexample(engine, path, dialect, rules, trial)
    return Check(
        title=title,
        verdict="holds" if example is None else "violated",
        lines=(make_line("actions", f"{len(trial.steps):,} of {len(actions):,} led along, {len(rules.invariants)} invariants"),),
        facts={"path": str(path), "num_actions": len(trial.steps)},
        counterexample=example,
        path=None if example is None or out is None else write(example, out),
    )


def _read_actions(path: Path) -> tuple[SchedulerConfig, list[Action], str]:
    if path.name.endswith(SUFFIXES):
        recording = open_recording(path)
        return recording.config, [event.action for event in recording.events], recording.dialect
    found = read(path)
    return found.config, [step.action for step in found.steps], found.dialect


def _make_counterexample(
    engine: Engine, path: Path, dialect: str, rules: Rules, trial: Trial
) -> Counterexample | None:
    if not trial.breaches:
        return None
    small = shrink(trial, lambda actions: run_trial(rules, engine, actions))
    final = run_trial(rules, engine, small.actions, explain=True)
    return Counterexample(
        setting=path.name,
        dialect=dialect,
        engine=engine.name,
        found_by="lockstep",
        seed=None,
        num_actions_found=len(trial.steps),
        is_shortest=False,
        config=rules.config,
        max_in_flight=rules.max_in_flight,
        lockstep=rules.lockstep,
        claims=(),
        breaches=tuple(final.breaches),
        steps=make_steps(final),
    )
