"""What the worker is told."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import SCHEDULE


@bounded(*SCHEDULE, mutants=("a_victim_keeps_its_part_of_the_step",))
def the_output_names_who_runs(run: Run) -> Iterator[Claim]:
    """A step names running requests only, at least a token each, and tells each one once."""
    output = run.result
    running = [request.request_id for request in run.after.scheduler.running]
    for name, num_tokens in output.num_scheduled_tokens.items():
        yield f"{name} runs", name in running
        yield f"{name} has a part", num_tokens >= 1
    told = [*output.scheduled_cached_reqs, *output.scheduled_new_reqs]
    yield "each is told once", sorted(told) == sorted(output.num_scheduled_tokens)
