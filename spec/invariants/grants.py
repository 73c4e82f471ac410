"""Each grant is as large as it may be, and each admission was allowed."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import Schedule
from spec.block_pool import cdiv
from spec.gates import (
    cap_long_prefill,
    find_hindrance,
    find_padding,
    find_refusing_gate,
    num_blocks_ahead,
    num_blocks_of_sequence,
    num_parked,
    num_reserved_blocks,
    possible_padding,
    tokens_left,
)
from spec.gates_of_loads import has_room_to_load, held_at_turn, may_load, num_beside
from spec.interface import (
    Observation,
    RequestObservation,
    SchedulerConfig,
)
from spec.invariants.sources import SCHEDULE, output_of
from spec.registry import invariant
from spec.transition import Transition


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

    An admission of one token may be padded with draft slots.
    In a step that preempts, what a victim gives back may go to waste, so nothing is said of it.
    Nor is it of a pause, which another invariant is about. Whoever lacks blocks that only a step in
    flight could set free ends it for those behind.
    """
    if seen.preempted or seen.pause_state == "paused_all":
        return
    output, starts = output_of(seen), seen.starts
    is_over = False
    num_left, num_inputs_left = config.max_num_scheduled_tokens, config.max_num_batched_tokens
    for name in seen.after.running:
        request = seen.before.requests.get(name)
        if request is None:
            continue  # Another invariant objects.
        if name in seen.before.running:
            expected = compute_running_grant(config, seen, name, request)
            is_over = is_over or ends_pass_1(config, seen, name, expected)
            expected = 0 if is_over else expected
        else:
            expected = cap_long_prefill(
                config, seen.before, request.num_tokens - starts.get(name, 0)
            )
        expected = max(min(expected, num_left, num_inputs_left - config.num_draft_slots), 0)
        num_tokens = output.num_scheduled_tokens.get(name, 0)
        if name in seen.admitted and request.num_tokens - starts.get(name, 0) == 1:
            paddings = possible_padding(config, seen, starts.get(name, 0))
            expected += num_tokens - 1 if num_tokens - 1 in paddings else max(paddings)
        if num_tokens != expected:
            yield f"{name} is given {num_tokens} tokens, however {expected} are due"
        num_left -= num_tokens
        num_inputs_left -= num_tokens + (config.num_draft_slots if num_tokens else 0)


def ends_pass_1(config: SchedulerConfig, seen: Transition, name: str, num_due: int) -> bool:
    """Whether a running request finds no blocks, and nobody whose blocks would be free at once."""
    in_flight = [step.output.num_scheduled_tokens for step in seen.in_flight]
    if not config.defer_block_free or num_due <= 0 or not any(in_flight):
        return False
    if name in output_of(seen).num_scheduled_tokens:
        return False
    before, after = seen.before.requests, seen.after.requests
    running = [each for each in seen.before.running if each in after]
    num_given = sum(len(after[each].block_ids) - len(before[each].block_ids) for each in running)
    num_asked = num_blocks_ahead(config, before[name].num_computed_tokens + num_due)
    num_asked -= len(before[name].block_ids)
    return num_asked > seen.before.num_free_blocks - num_given


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
    flight, or while the engine is paused, its grammar is compiled or its KV loaded, or no chunk has
    followed, on its turn or on those that keep all seats. With priorities whoever is more urgent
    comes first, so nothing is said.
    """
    before = seen.before
    oldest = next(iter(before.running or before.waiting), "")
    if config.policy == "priority" or oldest not in before.requests or oldest not in seen.live:
        return
    num_due, num_tokens = _due_to_the_oldest(config, seen, oldest)
    num_blocks = cdiv(num_tokens + config.num_lookahead_tokens, config.block_size)
    has_room = num_blocks <= config.num_blocks
    if config.load_kv_async or config.defer_block_free or blocks_of_others(before):
        has_room = not is_kept_from_running(config, seen, oldest, num_blocks)
    if num_due > 0 and has_room and oldest not in output_of(seen).num_scheduled_tokens:
        yield f"{oldest} is the oldest, {num_due} tokens are due, however the step computes none"


def is_kept_from_running(
    config: SchedulerConfig, seen: Transition, name: str, num_blocks: int
) -> bool:
    """Whether so many blocks are not to be had by preempting all who run but one request.

    Whoever waits for KV cannot be preempted, and what steps in flight write is not free at once.
    """
    if config.defer_block_free and any(s.output.num_scheduled_tokens for s in seen.in_flight):
        return True
    own = set(seen.before.requests[name].block_ids)
    num_held = len(blocks_of_others(seen.before) - own)
    return num_blocks + cdiv(num_beside(config), config.block_size) > config.num_blocks - num_held


def blocks_of_waiting(seen: Transition, admitted: str) -> set[int]:
    """Blocks that others hold who waited when a request was admitted, and those kept back.

    Who stood before it has been looked at already in this step, who stood behind it has not.
    """
    held = {block_id for kept in seen.after.retained for block_id in kept.block_ids}
    now = seen.after
    for name in seen.before.waiting:
        if name == admitted:
            now = seen.before
        if name == admitted:
            held.update(held_at_turn(seen, name))
        elif name in now.requests:
            held.update(now.requests[name].block_ids)
    return held


def blocks_of_others(seen: Observation) -> set[int]:
    """Blocks that somebody holds who does not run."""
    tables = [seen.requests[name].block_ids for name in seen.waiting if name in seen.requests]
    tables += [gone.block_ids for gone in seen.retained]
    return {block_id for table in tables for block_id in table}


def _due_to_the_oldest(config: SchedulerConfig, seen: Transition, oldest: str) -> tuple[int, int]:
    """What it may be given if there is nobody else, and how many tokens must find room for that."""
    request = seen.before.requests[oldest]
    if seen.before.running:
        num_due = compute_running_grant(config, seen, oldest, request)
        num_inputs = config.max_num_batched_tokens - config.num_draft_slots
        num_due = min(num_due, config.max_num_scheduled_tokens, num_inputs)
        num_tokens = request.num_computed_tokens + num_due
        return 0 if seen.pause_state == "paused_all" else num_due, num_tokens
    may_rest = (
        seen.pause_state != "unpaused"
        or find_hindrance(config, seen, oldest) is not None
        or num_parked(seen) >= config.max_num_seqs
    )
    if oldest in seen.after.requests and may_load(config, seen, oldest):
        may_rest = may_rest or not has_room_to_load(config, seen, oldest, seen.after.running)
    num_tokens = request.num_tokens + find_padding(config, seen, request)
    return 0 if may_rest else request.num_tokens, num_tokens


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
        taken = held | blocks_of_waiting(seen, name)
        hit = held_at_turn(seen, name)
        hit = hit or request.block_ids[: starts.get(name, 0) // config.block_size]
        num_blocks = max(num_blocks_of_sequence(config, request) - len(hit), 0)
        num_blocks += sum(block_id not in taken for block_id in hit)
        num_blocks += config.num_watermark_blocks if running else 0
        num_blocks += num_reserved_blocks(config, seen.after, running)
        num_free = config.num_blocks - len(taken)
        if num_blocks > num_free:
            yield f"{name} is admitted, it takes {num_blocks} blocks and {num_free} are free"
        running.append(name)
