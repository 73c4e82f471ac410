"""The first half of every engine step: planning it."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.invariant import instances
from proofs.scenarios import SCHEDULE


@bounded(
    *SCHEDULE,
    mutants=(
        "a_grant_takes_no_blocks",
        "a_victim_keeps_its_computed_tokens",
        "nobody_waits_for_stale_output",
        "all_wait_with_those_who_hold_kv",
    ),
)
def schedule_preserves_the_invariant(run: Run) -> Iterator[Claim]:
    """After `schedule` the invariant holds again, the new step in flight included."""
    yield from instances(run.after.scheduler, run.after.steps)
