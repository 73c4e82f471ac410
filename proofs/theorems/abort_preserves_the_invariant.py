"""A request that is ended from outside."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.invariant import instances
from proofs.scenarios import ABORT


@bounded(*ABORT, mutants=("freed_blocks_are_lost",))
def abort_preserves_the_invariant(run: Run) -> Iterator[Claim]:
    """After an abort, in any queue and with steps in flight, the invariant holds again."""
    yield from instances(run.after.scheduler, run.after.steps)
    name = run.result
    yield "it is gone", name not in run.after.scheduler.requests
    yield "it is told once", run.after.scheduler.finished_req_ids == [name]
