"""What was compared, as checks for the one renderer of the command line.

Entry points: `check_axis`, `check_baseline`, `check_control`, `check_matrix`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from textwrap import shorten
from typing import Any

import attrs

from checkers.commands import make_line
from checkers.errors import EngineFault, HarnessError
from checkers.report import Check
from checkers.run import worst
from checkers.table import align
from gpu_conformance.alone import Alone
from gpu_conformance.bench import Bench, Outcome
from gpu_conformance.divergence import find_divergence
from gpu_conformance.faults import MAX_SHOWN, RunnerFault, format_end
from gpu_conformance.oracle import Tally
from gpu_conformance.reference import choose_requests, find_sameness, find_worst_error
from gpu_conformance.registry import AXES, Axis
from gpu_conformance.subject import Subject
from gpu_conformance.text import Tokenizer

LEGEND = "rows compared, rows that differ, tokens that differ"


def check_axis(bench: Bench, axis: Axis, outcomes: Sequence[Outcome], arguments: str) -> Check:
    """What one axis came to for one subject; the first difference is looked into.

    `arguments` are those of a command line that computes the same. Where no value has run, there is
    nothing to say of the axis, and it is undetermined.
    """
    run = [outcome for outcome in outcomes if not outcome.left_out]
    tally = sum_up(run)
    verdict = worst(outcome.verdict for outcome in run)
    bad = [outcome for outcome in run if outcome.verdict == "violated"]
    return Check(
        title=f"conform  {axis.name}  {bench.subject.backend} {bench.subject.dtype}",
        verdict=verdict,
        lines=tuple(_lines(run, outcomes, tally)),
        facts={"axis": axis.name, **_facts(bench, tally), "values": [_fact(o) for o in outcomes]},
        findings=tuple(_findings(run)),
        explanation=_explain(bench, bad[0], arguments) if bad else "",
    )


def _lines(run: Sequence[Outcome], outcomes: Sequence[Outcome], tally: Tally) -> Iterator[str]:
    values = " ".join(str(outcome.value) for outcome in run)
    yield make_line("compared", f"{describe(tally)}; {values or 'nothing'}")
    if tally.is_weaker:
        yield make_line("weaker", "this runner shows no bits, so tokens alone were compared")
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.left_out:
            reasons.setdefault(outcome.left_out, []).append(str(outcome.value))
    for reason, values_left in reasons.items():
        yield make_line("left out", f"{' '.join(values_left)}: {reason}")


def _findings(run: Iterable[Outcome]) -> Iterator[str]:
    for outcome in run:
        if outcome.first is not None and outcome.way is not None:
            place = outcome.first.describe(outcome.way.config.block_size)
            compared = "" if outcome.first.kind == "no answer" else f"{describe(outcome.tally)}; "
            yield f"{outcome.axis}={outcome.value}: {compared}{place}"
        elif outcome.verdict == "undetermined":
            yield f"{outcome.axis}={outcome.value}: the value did not show, so nothing was tested"


def _explain(bench: Bench, outcome: Outcome, arguments: str) -> str:
    """The first difference, looked into; and how to see it again."""
    subject = outcome.subject
    lines = [f"error[{outcome.axis}={outcome.value}]: {subject.backend} {subject.dtype}"]
    stands_for = AXES[outcome.axis].stands_for(outcome.value)
    if stands_for != str(outcome.value):
        lines.append(f"which is       {stands_for}")
    assert outcome.way is not None, "what differs has run"
    assert outcome.first is not None, "what differs does so somewhere"
    if outcome.schedule_faults:
        lines.append(f"schedule       at fault itself: {outcome.schedule_faults[0]}")
    place = outcome.first.describe(outcome.way.config.block_size)
    if outcome.first.kind == "no answer" or bench.subject.weights is None:
        lines += [place, *outcome.first.trace.splitlines()]
    elif not outcome.tally.num_differing_rows:
        lines.append(f"no row differs, so what is sampled from equal rows does: {place}")
    else:
        lines += _look_into(bench, outcome, place)
    axis = shlex.join(["--axis", f"{outcome.axis}={outcome.value}"])
    return "\n".join([*lines, f"again          {_make_command(subject, arguments)} {axis}"])


def _look_into(bench: Bench, outcome: Outcome, place: str) -> Iterator[str]:
    """The first row that differs; whatever goes wrong meanwhile leaves the verdict as it is."""
    assert outcome.way is not None, "what differs has run"
    try:
        found = find_divergence(bench, outcome.way)
        yield _describe_unseen(bench, outcome, place) if found is None else found.describe()
    except (HarnessError, RunnerFault, EngineFault) as fault:
        yield from (place, f"could not be explained: {fault}")
    except Exception as error:  # noqa: BLE001  (it differs, whatever an explanation comes to)
        message = shorten(f"{type(error).__name__}: {error}", MAX_SHOWN)
        yield from (place, f"could not be explained: {message}")
        yield from format_end(error).splitlines()
        yield "which is a bug of schedcheck; please report it"


def _describe_unseen(bench: Bench, outcome: Outcome, place: str) -> str:
    """What there is to say of a row that is as alone while somebody looks."""
    assert outcome.way is not None, "what differs has run"
    again = bench.follow(AXES[outcome.axis], outcome.value, outcome.way)
    if again.first is None:
        return (
            "no row differs while somebody looks, nor when it is run again: "
            f"the runner does not compute the same twice; at first {place}"
        )
    reason = "it shows without looking only"
    if outcome.way.graph_bucket and bench.subject.device != "cpu":
        reason += ", and recorded graphs are off while somebody looks"
    return f"no row differs while somebody looks: {reason}; {place}"


def _make_command(subject: Subject, arguments: str) -> str:
    command = f"schedcheck conform {arguments} --backend {subject.backend}"
    return command if subject.weights is None else f"{command} --dtype {subject.dtype}"


# ---- what is not about an axis -------------------------------------------------------------------


def check_baseline(bench: Bench, arguments: str) -> Check:
    """What each request computes alone; if that is nothing, there is nothing to compare with.

    `arguments` are those of a command line that computes the same.
    """
    subject = bench.subject
    try:
        computed = [bench.compute_alone(request) for request in choose_requests(bench)]
    except RunnerFault as fault:
        told = f"no answer: {fault.evidence}"
        again = f"again          {_make_command(subject, arguments)}"
        place = f"error[alone]: {subject.backend} {subject.dtype}"
        return Check(
            title=f"conform  alone  {subject.backend} {subject.dtype}",
            verdict="violated",
            facts={**_facts(bench, Tally()), "fault": fault.evidence},
            findings=(told,),
            explanation="\n".join([place, told, *fault.trace.splitlines(), again]),
        )
    return _check_foreign(bench, computed) if subject.weights is None else _check_accuracy(bench)


def _check_foreign(bench: Bench, computed: Sequence[Alone]) -> Check:
    """What a runner with a model of its own computes alone; always the same tells nothing.

    NaN is a finding: no other runner says what should be there.
    """
    subject = bench.subject
    token_ids = [t for alone in computed for t in alone.token_ids[alone.num_prompt_tokens :]]
    text = f"{count(len(computed), 'request')}, {count(len(token_ids), 'token')}"
    pairs = zip(bench.requests, computed, strict=True)
    odd = [
        f"{request.request_id} alone: {nan}" for request, each in pairs if (nan := each.find_nan())
    ]
    if computed[0].logits is not None:
        sameness = find_sameness(bench)
    elif len(set(token_ids)) == 1:
        sameness = f"all tokens are {token_ids[0]}, whatever was computed, so they tell nothing"
    else:
        sameness = ""
    return Check(
        title=f"conform  alone  {subject.backend} {subject.dtype}",
        verdict="violated" if odd else "undetermined" if sameness else "holds",
        lines=(make_line("baseline", text),),
        facts={**_facts(bench, Tally()), "fault": None},
        findings=(*odd, sameness) if sameness else tuple(odd),
    )


def _check_accuracy(bench: Bench) -> Check:
    """How far each request alone is from the same in float64: equal bits may be equally wrong.

    Rows that are all the same are right, and undetermined: they would be so with wrong data, too.
    """
    subject, error, sameness = bench.subject, find_worst_error(bench), find_sameness(bench)
    findings = [] if error.is_small else ["the baseline itself is wrong: its bits say nothing"]
    findings += [sameness] if sameness else []
    text = (
        f"logits {error.logits:.1e}, KV {error.kv:.1e} off from float64; {error.limit:.0e} may be"
    )
    return Check(
        title=f"conform  alone  {subject.backend} {subject.dtype}",
        verdict="violated" if not error.is_small else "undetermined" if sameness else "holds",
        lines=(make_line("accuracy", text),),
        facts={**_facts(bench, Tally()), "fault": None, **attrs.asdict(error)},
        findings=tuple(findings),
    )


def check_text(bench: Bench, tokenizer: Tokenizer) -> Check:
    """What the text that was given goes on with, alone; whoever has its tokens has its text."""
    alone = bench.compute_alone(bench.requests[0])
    text = tokenizer.decode(alone.token_ids[alone.num_prompt_tokens :])
    return Check(
        title=f"conform  text  {bench.subject.backend} {bench.subject.dtype}",
        verdict="holds",
        lines=(make_line("goes on", repr(text)),),
        facts={**_facts(bench, Tally()), "text": text},
    )


def check_control(bench: Bench, outcomes: Sequence[Outcome]) -> Check:
    """Whether ordinary torch fails, as it must: else the suite would find nothing anywhere."""
    run = [outcome for outcome in outcomes if not outcome.left_out]
    failed = [outcome.axis for outcome in run if outcome.verdict == "violated"]
    tally = sum_up(run)
    text = f"{describe(tally)}; on {len(failed)} of {len(run)} axes"
    return Check(
        title=f"conform  control  {bench.subject.backend} {bench.subject.dtype}",
        verdict="holds" if failed else "violated",
        lines=(make_line("fails", f"as expected: {text}"),) if failed else (),
        facts={**_facts(bench, tally), "values": [_fact(outcome) for outcome in run]},
        findings=()
        if failed
        else (f"expected to fail, and did not: {text}; this suite may be blind here",),
    )


def check_matrix(outcomes: Sequence[Outcome], left_out: Sequence[str]) -> Check:
    """All in one table: a line per axis, a column per backend and number type.

    It is undetermined if nothing was compared at all, whatever the reasons in `left_out`.
    """
    has_run = any(not outcome.left_out for outcome in outcomes)
    subjects = list(dict.fromkeys(outcome.subject for outcome in outcomes))
    axes = list(dict.fromkeys(outcome.axis for outcome in outcomes))
    rows = [("", *(f"{s.name}{' (control)' if s.is_control else ''}" for s in subjects))]
    for axis in axes:
        cells = [
            _cell([o for o in outcomes if o.axis == axis and o.subject is s and not o.left_out])
            for s in subjects
        ]
        rows.append((axis, *cells))
    table = (*align(rows), *left_out) if has_run else ()
    return Check(
        title=f"conform  matrix  {LEGEND}",
        verdict="holds" if has_run else "undetermined",
        lines=table,
        facts={"left_out": list(left_out), "outcomes": [_fact(outcome) for outcome in outcomes]},
        findings=() if has_run else ("nothing was compared", *left_out),
    )


def _cell(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "–"
    tally = sum_up(outcomes)
    cell = f"{tally.num_rows:,} {tally.num_differing_rows:,} {tally.num_differing_tokens:,}"
    if tally.is_weaker:
        cell = f"{count(tally.num_tokens, 'token')}, {tally.num_differing_tokens:,} differ"
    is_silent = any(o.first is not None and o.first.kind == "no answer" for o in outcomes)
    return f"{cell} (no answer)" if is_silent else cell


# ---- sums ----------------------------------------------------------------------------------------


def sum_up(outcomes: Iterable[Outcome]) -> Tally:
    """What all of them compared."""
    total = Tally()
    for outcome in outcomes:
        total.add(outcome.tally)
    return total


def describe(tally: Tally) -> str:
    """Rows and tokens, and how many differ."""
    return (
        f"{count(tally.num_rows, 'row')}, {tally.num_differing_rows:,} differ; "
        f"{count(tally.num_tokens, 'token')}, {tally.num_differing_tokens:,} differ"
    )


def count(number: int, name: str) -> str:
    """A number and what it counts: "1 row", "1,200 rows"."""
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def _facts(bench: Bench, tally: Tally) -> dict[str, Any]:
    subject = bench.subject
    return {
        "backend": subject.backend,
        "dtype": subject.dtype,
        "device": subject.device,
        **attrs.asdict(tally),
    }


def _fact(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "axis": outcome.axis,
        "value": outcome.value,
        "subject": outcome.subject.name,
        "verdict": "left out" if outcome.left_out else outcome.verdict,
        **attrs.asdict(outcome.tally),
        "first": _describe_first(outcome),
    }


def _describe_first(outcome: Outcome) -> str | None:
    if outcome.first is None or outcome.way is None:
        return None
    return outcome.first.describe(outcome.way.config.block_size)
