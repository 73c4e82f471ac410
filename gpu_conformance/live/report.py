"""What was compared of a live engine, as checks for the one renderer of the command line.

Entry points: `check_alone`, `check_no_answer`, `check_live_axis`, `check_live_matrix`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from checkers.commands import make_line
from checkers.errors import EngineFault
from checkers.report import Check
from checkers.run import worst
from checkers.table import align
from gpu_conformance.live.bench import LiveBench, LiveOutcome, LiveSubject
from gpu_conformance.live.interface import NUM_LOGPROBS
from gpu_conformance.registry import Axis
from gpu_conformance.report import count

WEAKER = (
    f"than bits: tokens, and log-probabilities of the {NUM_LOGPROBS} greatest; "
    "whatever stays within the tolerance is not seen"
)
GREEDY = "all requests take the greatest token; tokens that are drawn are not compared"
LEGEND = "places compared, those beyond the tolerance, tokens that differ (at ties)"


def check_alone(bench: LiveBench) -> Check:
    """What the baseline is, and whether the engine did compute each request alone and whole."""
    subject, seen = bench.subject, bench.alone.sights
    is_alone = (seen.max_num_reqs, seen.num_partial_chunks, seen.num_hit_tokens) == (1, 0, 0)
    num_tokens = sum(len(answer.token_ids) for answer in bench.alone.answers.values())
    text = f"{len(bench.requests)} requests, {num_tokens} tokens in {seen.num_steps} steps"
    return Check(
        title=f"conform  alone  {subject.name} {subject.dtype}",
        verdict="holds" if is_alone else "undetermined",
        lines=(
            make_line("baseline", text),
            make_line("tolerance", f"{subject.tolerance:.0e} of a log-probability"),
            make_line("weaker", WEAKER),
            make_line("greedy", GREEDY),
        ),
        facts={**_facts(subject), **attrs.asdict(seen), "weaker": WEAKER},
        findings=() if is_alone else (f"not seen to be computed alone and whole: {seen}",),
    )


def check_no_answer(subject: LiveSubject, fault: EngineFault, arguments: str) -> Check:
    """An engine that comes to nothing even alone; so there is nothing to compare with."""
    command = f"schedcheck conform --live {subject.name} {arguments} --dtype {subject.dtype}"
    return Check(
        title=f"conform  alone  {subject.name} {subject.dtype}",
        verdict="violated",
        facts={**_facts(subject), "fault": fault.evidence},
        findings=(f"each request alone: {fault.evidence}",),
        explanation="\n".join(
            [
                f"error[alone]: {subject.name} {subject.dtype}",
                fault.evidence,
                *fault.traceback.splitlines(),
                f"again          {command}",
            ]
        ),
    )


def check_live_axis(
    subject: LiveSubject, axis: Axis, outcomes: Sequence[LiveOutcome], arguments: str
) -> Check:
    """What one axis came to; `arguments` are those of a command line that computes the same."""
    run = [outcome for outcome in outcomes if not outcome.left_out]
    bad = [outcome for outcome in run if outcome.verdict == "violated"]
    return Check(
        title=f"conform  {axis.name}  {subject.name} {subject.dtype}",
        verdict=worst(outcome.verdict for outcome in run),
        lines=tuple(_lines(run, outcomes)),
        facts={**_facts(subject), "axis": axis.name, "values": [_fact(o) for o in outcomes]},
        findings=tuple(_findings(run)),
        explanation=_explain(subject, bad[0], arguments) if bad else "",
    )


def _lines(run: Sequence[LiveOutcome], outcomes: Sequence[LiveOutcome]) -> Iterator[str]:
    for outcome in run:
        found = outcome.comparison
        if outcome.error:
            continue  # It is a finding, and nothing was compared.
        text = f"{describe(outcome)}; off by up to {found.worst:.1e}"
        yield make_line(str(outcome.value), text)
        for tie in found.ties:
            yield make_line("", tie.describe())
        if found.num_left_out:
            yield make_line("", f"{found.num_left_out} tokens after a difference are left out")
    for outcome in outcomes:
        if outcome.left_out:
            yield make_line("left out", f"{outcome.value}: {outcome.left_out}")


def _findings(run: Iterable[LiveOutcome]) -> Iterator[str]:
    for outcome in run:
        place = f"{outcome.axis}={outcome.value}"
        if outcome.error:
            yield f"{place}: {outcome.error}"
        for fault in outcome.comparison.faults:
            yield f"{place}: {fault.describe()}"
        if outcome.verdict == "undetermined":
            yield f"{place}: the value did not show, so nothing was tested"


def _explain(subject: LiveSubject, outcome: LiveOutcome, arguments: str) -> str:
    """The first difference, and how to see it again."""
    faults = outcome.comparison.faults
    command = f"schedcheck conform --live {subject.name} {arguments} --dtype {subject.dtype} "
    command += shlex.join(["--axis", f"{outcome.axis}={outcome.value}"])
    return "\n".join(
        [
            f"error[{outcome.axis}={outcome.value}]: {subject.name} {subject.dtype}",
            outcome.error or faults[0].describe(),
            *outcome.trace.splitlines(),
            f"again          {command}",
        ]
    )


def check_live_matrix(outcomes: Sequence[tuple[LiveSubject, LiveOutcome]]) -> Check:
    """A line per axis, a column per number type; undetermined if nothing was compared at all."""
    has_run = any(not outcome.left_out for _, outcome in outcomes)
    subjects = list(dict.fromkeys(subject.dtype for subject, _ in outcomes))
    rows = [("", *subjects)]
    for axis in dict.fromkeys(outcome.axis for _, outcome in outcomes):
        cells = [
            _cell([o for s, o in outcomes if s.dtype == dtype and o.axis == axis])
            for dtype in subjects
        ]
        rows.append((axis, *cells))
    return Check(
        title=f"conform  matrix  {LEGEND}",
        verdict="holds" if has_run else "undetermined",
        lines=tuple(align(rows)) if has_run else (),
        facts={"outcomes": [_fact(outcome) for _, outcome in outcomes]},
        findings=() if has_run else ("nothing was compared",),
    )


def _cell(outcomes: Sequence[LiveOutcome]) -> str:
    found = [outcome.comparison for outcome in outcomes if not outcome.left_out]
    if not found:
        return "–"
    num_rows = sum(each.tally.num_rows for each in found)
    num_off = sum(each.tally.num_differing_rows for each in found)
    num_tokens = sum(each.tally.num_differing_tokens for each in found)
    cell = f"{num_rows:,} {num_off:,} {num_tokens:,} ({sum(len(each.ties) for each in found)})"
    return f"{cell} (no answer)" if any(outcome.error for outcome in outcomes) else cell


def describe(outcome: LiveOutcome) -> str:
    """How many places were compared, and what differs."""
    tally, ties = outcome.comparison.tally, outcome.comparison.ties
    verb = "differs" if tally.num_differing_tokens == 1 else "differ"
    return (
        f"{count(tally.num_rows, 'place')}, {tally.num_differing_rows:,} beyond the tolerance; "
        f"{count(tally.num_differing_tokens, 'token')} {verb}, {len(ties):,} at ties"
    )


def _facts(subject: LiveSubject) -> dict[str, Any]:
    return {
        "engine": subject.name,
        "dtype": subject.dtype,
        "device": subject.device,
        "tolerance": subject.tolerance,
    }


def _fact(outcome: LiveOutcome) -> dict[str, Any]:
    found = outcome.comparison
    return {
        "axis": outcome.axis,
        "value": outcome.value,
        "verdict": "left out" if outcome.left_out else outcome.verdict,
        "error": outcome.error or None,
        **attrs.asdict(found.tally),
        "worst": found.worst,
        "num_left_out": found.num_left_out,
        "partings": [attrs.asdict(parting) for parting in found.partings],
        "sights": attrs.asdict(outcome.sights),
    }
