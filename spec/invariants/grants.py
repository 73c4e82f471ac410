"""Each grant is as large as it may be, and each admission was allowed."""

from __future__ import annotations

from collections.abc import Iterator

from spec.gates import (
    cap_long_prefill,
    find_hindrance,
    find_refusing_gate,
    num_blocks_of_sequence,
    num_reserved_blocks,
    tokens_left,
)
from spec.interface import (
    RequestObservation,
    SchedulerConfig,
)
from spec.invariants.sources import SCHEDULE, output_of
from spec.model import (
    Schedule,
    Transition,
)
from spec.registry import invariant
from spec.scheduler import cdiv


@invariant(source=SCHEDULE, on=(Schedule,))
def scheduled_requests_run(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step names running requests only, and computes at least one token of each."""
    running = set(seen.after.running)
    for name, num_tokens in output_of(seen).num_scheduled_tokens.items():
        if name not in running:
            yield f"{name} is given {num_tokens} tokens, however running are {seen.after.running}"
        if num_tokens < 1:
            yield f"{name} is given {num_tokens} tokens"


@invariant(source=SCHEDULE, on=(Schedule,), needs=("num_output_placeholders", "num_draft_tokens"))
def grants_are_maximal(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Each request gets its gap, cut only by budget, threshold and max_model_len.

    In a step that preempts, what a victim gives back may go to waste, so nothing is said of it.
    Nor is it of a pause, which another invariant is about.
    """
    if seen.preempted or seen.pause_state == "paused_all":
        return
    output, starts = output_of(seen), seen.starts
    num_left, num_inputs_left = config.max_num_scheduled_tokens, config.max_num_batched_tokens
    for name in seen.after.running:
        request = seen.before.requests.get(name)
        if request is None:
            continue  # Another invariant objects.
        if name in seen.before.running:
            expected = compute_running_grant(config, seen, name, request)
        else:
            expected = cap_long_prefill(
                config, seen.before, request.num_tokens - starts.get(name, 0)
            )
        expected = max(min(expected, num_left, num_inputs_left - config.num_draft_slots), 0)
        num_tokens = output.num_scheduled_tokens.get(name, 0)
        if num_tokens != expected:
            yield f"{name} is given {num_tokens} tokens, however {expected} are due"
        num_left -= num_tokens
        num_inputs_left -= num_tokens + (config.num_draft_slots if num_tokens else 0)


def compute_running_grant(
    config: SchedulerConfig, seen: Transition, name: str, request: RequestObservation
) -> int:
    """The gap of a running request under its own caps, budgets aside."""
    num_placeholders = request.num_output_placeholders or 0
    num_computed = request.num_computed_tokens
    max_tokens = seen.live[name].new.max_tokens if name in seen.live else 0
    if (
        config.stop_at_max_tokens_in_flight
        and num_placeholders > 0
        and num_computed + 2 - num_placeholders >= request.num_prompt_tokens + max_tokens
    ):
        return 0
    num_known = request.num_tokens + (request.num_draft_tokens or 0) + num_placeholders
    gap = num_known - num_computed
    return min(cap_long_prefill(config, seen.before, gap), config.max_model_len - 1 - num_computed)


@invariant(source=SCHEDULE, on=(Schedule,))
def work_is_conserved(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A ready request waits only if a gate refuses it: budget, seats, or blocks."""
    if find_refusing_gate(config, seen) is None:
        output = output_of(seen)
        yield (
            f"{seen.after.waiting} wait, however {tokens_left(config, output)} tokens of budget, "
            f"{config.max_num_seqs - len(seen.after.running)} seats and "
            f"{seen.after.num_free_blocks} free blocks are left"
        )


@invariant(source=SCHEDULE, on=(Schedule,), needs=("num_output_placeholders", "num_draft_tokens"))
def the_oldest_gains_a_token(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """The oldest request gains a token in every step, as long as the pool can hold its tokens.

    The oldest is the first to run, or to wait while nobody runs. It may rest while the tokens that
    max_tokens and max_model_len allow are all being sampled, while a voided step of it is in
    flight, or while the engine is paused or its grammar is compiled. With priorities whoever is
    more urgent comes first, so nothing is said.
    """
    before = seen.before
    oldest = next(iter(before.running or before.waiting), "")
    if config.policy == "priority" or oldest not in before.requests or oldest not in seen.live:
        return
    num_due, num_tokens = _due_to_the_oldest(config, seen, oldest)
    has_room = (
        cdiv(num_tokens + config.num_lookahead_tokens, config.block_size) <= config.num_blocks
    )
    if num_due > 0 and has_room and oldest not in output_of(seen).num_scheduled_tokens:
        yield f"{oldest} is the oldest, {num_due} tokens are due, however the step computes none"


def _due_to_the_oldest(config: SchedulerConfig, seen: Transition, oldest: str) -> tuple[int, int]:
    """What it may be given if there is nobody else, and how many tokens must find room for that."""
    request = seen.before.requests[oldest]
    if seen.before.running:
        num_due = compute_running_grant(config, seen, oldest, request)
        num_inputs = config.max_num_batched_tokens - config.num_draft_slots
        num_due = min(num_due, config.max_num_scheduled_tokens, num_inputs)
        num_tokens = request.num_computed_tokens + num_due
        return 0 if seen.pause_state == "paused_all" else num_due, num_tokens
    may_rest = seen.pause_state != "unpaused" or find_hindrance(config, seen, oldest)
    return 0 if may_rest else request.num_tokens, request.num_tokens


@invariant(source="vllm/config/scheduler.py: scheduler_reserve_full_isl", on=(Schedule,))
def admitted_sequences_fit(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Whoever is admitted finds free blocks for its whole sequence.

    Beside it stay free the watermark and, with the reserve-aware gate, what admitted prompts
    still need.
    """
    # Another invariant objects to a name that no request has.
    admitted = [name for name in seen.admitted if name in seen.after.requests]
    if not admitted or not config.scheduler_reserve_full_isl or seen.preempted:
        return
    starts = seen.starts
    known = [name for name in seen.after.running if name in seen.after.requests]
    running = [name for name in known if name not in admitted]
    held = {block_id for name in running for block_id in seen.after.requests[name].block_ids}
    for name in admitted:
        request = seen.after.requests[name]
        hit = request.block_ids[: starts.get(name, 0) // config.block_size]
        num_blocks = num_blocks_of_sequence(config, request) - len(hit)
        num_blocks += sum(block_id not in held for block_id in hit)
        num_blocks += config.num_watermark_blocks if running else 0
        num_blocks += num_reserved_blocks(config, seen.after, running)
        num_free = config.num_blocks - len(held)
        if num_blocks > num_free:
            yield f"{name} is admitted, it takes {num_blocks} blocks and {num_free} are free"
        held.update(request.block_ids)
        running.append(name)
