"""What `schedcheck conform --bugs` does: plants known bugs in the runner, one after the other.

Entry point: `catch_bugs`. Bits are compared in a cache whose unused slots are NaN. What tokens
alone would have shown is looked at in an ordinary one, as it is in service.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from attrs import frozen

from checkers.commands import make_line
from checkers.planting import planted_at
from checkers.progress import Progress
from checkers.report import Check
from gpu_conformance.bench import Bench, Outcome
from gpu_conformance.bugs.registry import BUGS, Bug
from gpu_conformance.command import Order, choose_axes
from gpu_conformance.divergence import Divergence, find_divergence
from gpu_conformance.reference import find_worst_error
from gpu_conformance.registry import AXES
from gpu_conformance.report import describe
from gpu_conformance.subject import make_subject
from gpu_conformance.work import WORKS, make_requests

BACKEND, DTYPE = "tile", "float32"
"""Bugs are in the runner, which all backends share; those in sums are in this one."""


@frozen
class Caught:
    """What was seen of one bug."""

    bug: Bug
    outcome: Outcome
    """With NaN in unused slots."""
    divergence: Divergence | None
    is_accurate: bool
    """Whether the baseline, which has the bug too, is near to float64; True if nobody asked."""
    in_service: Outcome
    """With an ordinary cache."""

    @property
    def by(self) -> str:
        """What showed it: bits, tokens, accuracy, or the runner itself; "" if it was missed."""
        first = self.outcome.first
        if first is None:
            return "" if self.is_accurate else "accuracy"
        return {"no answer": "runner", "token": "tokens"}.get(first.kind, "bits")

    @property
    def is_seen_by_tokens(self) -> bool:
        """Whether somebody who looks at tokens alone would have noticed."""
        first = self.in_service.first
        is_silent = first is not None and first.kind == "no answer"
        return is_silent or self.in_service.tally.num_differing_tokens > 0


def catch_bugs(order: Order, progress: Progress) -> Iterator[Check]:
    """Yields what was seen of each bug; at the end, the sums."""
    importlib.import_module("gpu_conformance.bugs")
    choose_axes(())
    found = []
    for bug in BUGS.values():
        progress.say(f"conform --bugs: {bug.name}")
        found.append(catch(bug, order.model, order.device))
        yield check_bug(found[-1])
    yield sum_up(found)


def catch(bug: Bug, model: str = "tiny", device: str = "cpu") -> Caught:
    """Plants a bug, and runs the value that shows it; the baseline has the bug, too."""
    axis = AXES[bug.axis]
    with planted_at(bug.target, bug.plant):
        bench = make_bench(model, device, poison=True)
        outcome = bench.run(axis, bug.value)
        divergence = None
        if outcome.way is not None and outcome.first and outcome.first.kind in {"logits", "KV"}:
            divergence = find_divergence(bench, outcome.way)
        is_accurate = outcome.first is not None or find_worst_error(bench).is_small
        in_service = make_bench(model, device, poison=False).run(axis, bug.value)
    return Caught(bug, outcome, divergence, is_accurate, in_service)


def make_bench(model: str, device: str, *, poison: bool) -> Bench:
    """The runner as it is now, with whatever is planted in it."""
    subject = make_subject(model, BACKEND, DTYPE, device, poison=poison)
    return Bench(subject, make_requests(WORKS["tiny"]))


# ---- what there is to say ------------------------------------------------------------------------


def check_bug(caught: Caught) -> Check:
    """One bug: whether it was caught, and whether for what it is."""
    bug, nature = caught.bug, caught.divergence and caught.divergence.nature
    is_misnamed = nature is not None and nature != bug.nature
    findings = []
    if not caught.by:
        findings.append(f"MISSED: {bug.rule} No bit differs on {bug.axis}={bug.value}.")
    elif is_misnamed:
        findings.append(f"MISNAMED: {bug.rule} It is called {nature}, and it is {bug.nature}.")
    return Check(
        title=f"conform  {bug.kind}  {bug.name}",
        verdict="violated" if findings else "holds",
        lines=() if findings else tuple(_lines(caught)),
        facts={
            "name": bug.name,
            "rule": bug.rule,
            "kind": bug.kind,
            "sources": list(bug.sources),
            "target": bug.target,
            "axis": bug.axis,
            "value": bug.value,
            "caught_by": caught.by,
            "nature": nature,
            "is_seen_by_tokens": caught.is_seen_by_tokens,
            "num_differing_rows": caught.outcome.tally.num_differing_rows,
            "num_differing_tokens": caught.in_service.tally.num_differing_tokens,
        },
        findings=tuple(findings),
    )


def _lines(caught: Caught) -> Iterator[str]:
    bug, divergence = caught.bug, caught.divergence
    place = f"{bug.axis}={bug.value}, {describe(caught.outcome.tally)}"
    if divergence is not None:
        key = divergence.key
        place += f"; first in layer {key.layer}, {key.stage_name}: {divergence.nature}"
    yield make_line(f"by {caught.by}", place)
    tokens = "show it too" if caught.is_seen_by_tokens else "are all the same"
    yield make_line("tokens", f"{tokens} in an ordinary cache")


def sum_up(found: list[Caught]) -> Check:
    """How many were caught, and how many of them tokens alone would have caught."""
    num_caught = sum(bool(caught.by) for caught in found)
    num_by_tokens = sum(caught.is_seen_by_tokens for caught in found)
    return Check(
        title="conform  bugs in all",
        verdict="holds",
        lines=(
            make_line("caught", f"{num_caught} of {len(found)}"),
            make_line("by tokens", f"{num_by_tokens} of {len(found)}, if nobody compared bits"),
        ),
        facts={
            "num_bugs": len(found),
            "num_caught": num_caught,
            "num_seen_by_tokens": num_by_tokens,
        },
    )
