"""The counters of a request, while a step is settled."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import UPDATE
from proofs.symbolic.values import all_of


@bounded(*UPDATE, mutants=("a_returned_step_stays_in_flight", "a_token_is_delivered_twice"))
def counters_settle_with_the_step(run: Run) -> Iterator[Claim]:
    """`update_from_output` adds the sampled token, and takes off flight what the step computed."""
    for name, after in run.after.scheduler.requests.items():
        before = run.before.scheduler.requests[name]
        num_tokens = run.before.steps[0][name]
        num_sampled_tokens = len(run.result.get(name, []))
        yield (
            f"{name} settles",
            all_of(
                after.num_output_tokens == before.num_output_tokens + num_sampled_tokens,
                after.num_in_flight_tokens == before.num_in_flight_tokens - num_tokens,
                after.num_computed_tokens == before.num_computed_tokens,
                after.num_preemptions == before.num_preemptions,
            ),
        )
