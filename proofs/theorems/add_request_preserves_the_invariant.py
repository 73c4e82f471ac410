"""An arrival."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.actions import NEW_REQUEST_ID
from proofs.bounded import Claim, Run, bounded
from proofs.invariant import instances
from proofs.scenarios import ARRIVAL


@bounded(
    *ARRIVAL,
    mutants=("an_arrival_jumps_the_queue",),
    assumptions=("the arrival has a prompt below max_model_len, and max_tokens of 1 or more",),
)
def add_request_preserves_the_invariant(run: Run) -> Iterator[Claim]:
    """After `add_request` the invariant holds again, and the arrival waits."""
    yield from instances(run.after.scheduler, run.after.steps)
    waiting = [request.request_id for request in run.after.scheduler.waiting.items]
    yield "the arrival waits", waiting.count(NEW_REQUEST_ID) == 1
