"""Speculative decoding: which drafts a step verifies, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import Schedule, UpdateFromOutput
from spec.interface import (
    SchedulerConfig,
)
from spec.invariants.sources import SCHEDULE, UPDATE, output_of
from spec.registry import invariant
from spec.transition import Transition


@invariant(
    source=f"{SCHEDULE}: scheduled_spec_decode_tokens",
    on=(Schedule,),
    needs=("num_output_placeholders",),
)
def scheduled_drafts_are_the_requests_own(
    config: SchedulerConfig, seen: Transition
) -> Iterator[str]:
    """A step verifies as many drafts as it computes tokens beyond the known ones, from the first.

    So it verifies none of a request in the middle of its prompt, nor of one that was taken back.
    With async scheduling the worker has them, and an admission is padded with some that nobody has.
    """
    output = output_of(seen)
    scheduled = output.scheduled_spec_decode_tokens
    for name in [name for name in scheduled if name not in output.num_scheduled_tokens]:
        yield f"drafts of {name} are verified, however the step computes none of its tokens"
    for name, num_tokens in output.num_scheduled_tokens.items():
        before, live = seen.before.requests.get(name), seen.live.get(name)
        if before is None or live is None:
            continue  # Another invariant objects.
        num_known = len(live.token_ids) + (before.num_output_placeholders or 0)
        num_drafts = max(seen.starts.get(name, 0) + num_tokens - num_known, 0)
        own = list(live.draft_token_ids[:num_drafts])
        is_told = not config.async_scheduling and name not in seen.admitted
        expected = own if is_told else [-1] * num_drafts
        if scheduled.get(name, []) != expected:
            yield f"drafts {scheduled.get(name, [])} of {name} are verified, due are {expected}"


@invariant(
    source="vllm/v1/core/sched/scheduler.py: update_draft_token_ids, _preempt_request",
    needs=("num_draft_tokens",),
)
def drafts_are_for_the_next_step(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request has the drafts that follow on its last step, until the next one or a preemption."""
    if config.num_speculative_tokens == 0:
        return
    for name, request in seen.after.requests.items():
        if name not in seen.live_after:
            continue  # Another invariant objects.
        expected = count_drafts(config, seen, name)
        if request.num_draft_tokens != expected:
            yield f"{name} has {request.num_draft_tokens} drafts, however it was given {expected}"


@invariant(source=f"{UPDATE}: num_rejected", on=(UpdateFromOutput,))
def rejected_drafts_are_rolled_back(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """What was computed for rejected drafts no longer counts, and all else does."""
    for name, num_rejected in seen.num_rejected.items():
        before, after = seen.before.requests.get(name), seen.after.requests.get(name)
        if before is None or after is None or name in seen.turned:
            continue  # It has ended, or its turn has.
        if after.num_computed_tokens != before.num_computed_tokens - num_rejected:
            yield (
                f"{name} has num_computed_tokens={after.num_computed_tokens}, however it was "
                f"{before.num_computed_tokens} with {num_rejected} drafts that are rejected"
            )


def count_drafts(config: SchedulerConfig, seen: Transition, name: str) -> int:
    """How many drafts a request has after an action."""
    if not config.async_scheduling:
        return len(seen.live_after[name].draft_token_ids)
    if seen.outcome.output is not None:
        samples = name in seen.in_flight_after[-1].samplers
        return config.num_speculative_tokens if samples else 0
    before = seen.before.requests.get(name)
    is_lost = name in seen.preempted or name in seen.turned
    return 0 if before is None or is_lost else before.num_draft_tokens or 0
