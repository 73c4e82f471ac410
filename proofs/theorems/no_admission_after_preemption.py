"""A step that is short of memory takes nobody in."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import SCHEDULE


@bounded(*SCHEDULE, mutants=("admission_goes_on_after_a_preemption",))
def no_admission_after_preemption(run: Run) -> Iterator[Claim]:
    """A step that preempts admits nobody, self-preemption included."""
    heard = run.after.scheduler.heard
    yield "either preempts or admits", not (heard.preemptions and heard.admissions)
