"""How many requests may run."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import SCHEDULE


@bounded(*SCHEDULE, mutants=("there_is_always_a_seat",))
def max_num_seqs_is_kept(run: Run) -> Iterator[Claim]:
    """At most `max_num_seqs` requests run after a step."""
    scheduler = run.after.scheduler
    yield "at most max_num_seqs run", len(scheduler.running) <= scheduler.config.max_num_seqs
