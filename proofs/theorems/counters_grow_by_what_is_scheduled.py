"""The counters of a request, while a step is planned."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import SCHEDULE
from proofs.symbolic.values import all_of
from spec.request import Request


@bounded(
    *SCHEDULE,
    mutants=(
        "the_last_token_is_not_counted",
        "preemptions_are_not_counted",
        "a_victim_keeps_its_computed_tokens",
    ),
)
def counters_grow_by_what_is_scheduled(run: Run) -> Iterator[Claim]:
    """`schedule` adds what it schedules to computed and in flight; only a preemption resets."""
    preempted = [each.victim.request_id for each in run.after.scheduler.heard.preemptions]
    for name, after in run.after.scheduler.requests.items():
        before = run.before.scheduler.requests[name]
        num_preemptions = preempted.count(name)
        yield (
            f"{name} counts its preemptions and keeps its tokens",
            all_of(
                after.num_preemptions == before.num_preemptions + num_preemptions,
                after.num_output_tokens == before.num_output_tokens,
            ),
        )
        if num_preemptions:
            yield f"{name} is reset", _is_reset(before, after)
        else:
            yield f"{name} grows", _grows(run, before, after)


def _is_reset(before: Request, after: Request) -> object:
    return all_of(
        after.num_computed_tokens == 0,
        after.num_output_placeholders == 0,
        after.num_in_flight_tokens == before.num_in_flight_tokens,
        after.num_stale_output_tokens == before.num_in_flight_tokens,
    )


def _grows(run: Run, before: Request, after: Request) -> object:
    name, output = before.request_id, run.result
    num_tokens = output.num_scheduled_tokens.get(name, 0)
    start = before.num_computed_tokens
    for told in (output.scheduled_new_reqs, output.scheduled_cached_reqs):
        if name in told:
            start = told[name].num_computed_tokens
    return all_of(
        start >= before.num_computed_tokens,
        after.num_computed_tokens == start + num_tokens,
        after.num_in_flight_tokens == before.num_in_flight_tokens + num_tokens,
        after.num_stale_output_tokens == before.num_stale_output_tokens,
    )
