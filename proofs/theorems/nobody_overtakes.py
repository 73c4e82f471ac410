"""Head-of-line admission."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import SCHEDULE


@bounded(
    *SCHEDULE,
    mutants=(
        "the_tail_is_admitted",
        "nobody_waits_for_stale_output",
        "a_skipped_request_loses_its_place",
    ),
)
def nobody_overtakes(run: Run) -> Iterator[Claim]:
    """Ready requests are admitted in order; one not ready is skipped and keeps its place."""
    waited = run.before.scheduler.waiting.items
    order = [request.request_id for request in waited]
    admitted = [each.request.request_id for each in run.after.scheduler.heard.admissions]
    yield "admitted in order", admitted == [name for name in order if name in admitted]
    for place, request in enumerate(waited):
        if request.request_id in admitted:
            yield f"{request.request_id} was ready", request.num_stale_output_tokens == 0
        elif any(name in admitted for name in order[place:]):
            yield f"{request.request_id} was not ready", request.num_stale_output_tokens > 0
    left = [name for name in order if name not in admitted]
    waiting = [request.request_id for request in run.after.scheduler.waiting.items]
    yield "who is left keeps its place", left == [name for name in waiting if name in order]
