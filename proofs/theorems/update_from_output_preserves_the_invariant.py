"""The second half of every engine step: settling it."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.invariant import instances
from proofs.scenarios import UPDATE


@bounded(*UPDATE, mutants=("a_returned_step_stays_in_flight", "a_token_is_delivered_twice"))
def update_from_output_preserves_the_invariant(run: Run) -> Iterator[Claim]:
    """After `update_from_output` the invariant holds again, whoever sampled and stopped."""
    yield from instances(run.after.scheduler, run.after.steps)
    alive = run.after.scheduler.requests
    gone = [name for name in run.before.scheduler.requests if name not in alive]
    yield "whoever is gone has finished, once", run.after.scheduler.finished_req_ids == gone
