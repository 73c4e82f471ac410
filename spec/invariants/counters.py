"""The counters of a request, and what moves them."""

from __future__ import annotations

from collections.abc import Iterator

from spec.interface import (
    SchedulerConfig,
)
from spec.registry import invariant
from spec.transition import Transition

WAITING_FOR_KV = "WAITING_FOR_REMOTE_KVS"


@invariant(source="vllm/v1/core/sched/scheduler.py: _update_after_schedule")
def counters_are_monotone(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """What is computed grows by what is scheduled, and is forgotten by a preemption only."""
    starts = seen.starts
    admitted = seen.admitted
    # What becomes of drafts, and of a turn that ends, are other invariants'.
    others = {*seen.preempted, *seen.num_rejected, *seen.turned}
    for name, after in seen.after.requests.items():
        before = seen.before.requests.get(name)
        if before is None or name in others:
            continue
        if WAITING_FOR_KV in {before.status, after.status} and name not in admitted:
            continue  # And so is what a load brings.
        start = starts.get(name, 0) if name in admitted else before.num_computed_tokens
        num_tokens = 0
        if seen.outcome.output is not None:
            num_tokens = seen.outcome.output.num_scheduled_tokens.get(name, 0)
        if after.num_computed_tokens != start + num_tokens:
            yield (
                f"{name} has num_computed_tokens={after.num_computed_tokens}, "
                f"however it was given {num_tokens} tokens from {start} on"
            )
        # The last token is computed, even if its KV was loaded.
        if name in admitted and start < min(before.num_computed_tokens, before.num_tokens - 1):
            yield (
                f"{name} is admitted at token {start}, "
                f"however it had computed {before.num_computed_tokens}"
            )


@invariant(source="vllm/v1/request.py: num_tokens, num_preemptions", of_state=True)
def token_counts_follow_the_client(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request's tokens are its prompt and what was delivered of it."""
    for name, after in seen.after.requests.items():
        live = seen.live_after.get(name)
        if live is None:
            continue  # Another invariant objects.
        num_prompt_tokens, num_tokens = len(live.new.prompt_token_ids), len(live.token_ids)
        expected = (num_prompt_tokens, num_tokens - num_prompt_tokens, num_tokens)
        counts = (after.num_prompt_tokens, after.num_output_tokens, after.num_tokens)
        if counts != expected:
            yield f"{name} counts (prompt, output, all) = {counts}, its client knows {expected}"


@invariant(source="vllm/v1/request.py: num_preemptions", needs=("num_preemptions",))
def preemptions_are_counted(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request counts its preemptions one by one, from none at its arrival."""
    for name, after in seen.after.requests.items():
        before = seen.before.requests.get(name)
        num_before = 0 if before is None else before.num_preemptions or 0
        if after.num_preemptions != num_before + seen.preempted.count(name):
            yield f"{name} has num_preemptions={after.num_preemptions}, {num_before} before"


@invariant(
    source="vllm/v1/request.py: num_computed_tokens",
    needs=("num_output_placeholders",),
    of_state=True,
)
def computed_is_within_tokens(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Only tokens that are known, guessed or being sampled are computed, below max_model_len."""
    for name, request in seen.after.requests.items():
        num_placeholders = request.num_output_placeholders or 0
        num_known = request.num_tokens + num_placeholders + num_unverified(config, seen, name)
        limit = min(num_known, config.max_model_len - 1)
        if not 0 <= request.num_computed_tokens <= limit:
            yield (
                f"{name} has num_computed_tokens={request.num_computed_tokens}, "
                f"however at most {limit} make sense"
            )
        if num_placeholders < 0:
            yield f"{name} has num_output_placeholders={num_placeholders}"


@invariant(
    source="vllm/v1/core/sched/async_scheduler.py",
    needs=("num_output_placeholders",),
    of_state=True,
)
def placeholders_count_pending_samples(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request has one placeholder for each step in flight that samples for it.

    And one for each draft that such a step verifies. Without async scheduling there are none.
    """
    if not config.wait_for_stale_output:
        return  # A request that resumes beside its stale output samples tokens that arrive anyway.
    for name, request in seen.after.requests.items():
        expected = 0
        if config.async_scheduling:
            for step in seen.in_flight_after:
                if name in step.samplers and name not in step.voided:
                    expected += 1 + len(step.drafts_of(name))
        if request.num_output_placeholders != expected:
            yield (
                f"{name} has num_output_placeholders={request.num_output_placeholders}, "
                f"{expected} of its tokens are being sampled"
            )


@invariant(
    source="vllm/v1/request.py: num_in_flight_tokens",
    needs=("num_in_flight_tokens",),
    of_state=True,
)
def in_flight_tokens_are_counted(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """num_in_flight_tokens is what steps in flight compute for a request, voided parts included."""
    for name, request in seen.after.requests.items():
        num_tokens = num_stale = 0
        for step in seen.in_flight_after:
            num_scheduled_tokens = step.output.num_scheduled_tokens.get(name, 0)
            num_tokens += num_scheduled_tokens
            num_stale += num_scheduled_tokens if name in step.voided else 0
        if request.num_in_flight_tokens != num_tokens:
            yield (
                f"{name} has num_in_flight_tokens={request.num_in_flight_tokens}, "
                f"however {num_tokens} are in flight"
            )
        if request.num_stale_output_tokens not in {None, num_stale}:
            yield (
                f"{name} has num_stale_output_tokens={request.num_stale_output_tokens}, "
                f"however {num_stale} are voided"
            )


def num_unverified(config: SchedulerConfig, seen: Transition, name: str) -> int:
    """Drafts of a request that steps in flight verify; with async scheduling placeholders do."""
    if config.async_scheduling:
        return 0
    return sum(len(step.drafts_of(name)) for step in seen.in_flight_after)
