"""Why nobody else was admitted in a step, read off what can be seen from outside.

Entry point: `find_refusing_gate`. It needs no help from an engine, so it serves any: an invariant
(no gate refuses the head of the queue, so it should have been admitted) and the witnesses (each
gate has refused somebody).
"""

from __future__ import annotations

from spec.interface import (
    NewRequest,
    Observation,
    RequestObservation,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.model import Transition
from spec.scheduler import cdiv


def find_refusing_gate(config: SchedulerConfig, seen: Transition) -> str | None:
    """Returns the gate that refuses the first ready request in waiting; None if none does.

    Where a prefix hit may help that request, a gate counts as refusing if it may refuse: the hit is
    not visible.
    """
    if seen.refusing_gate is None:
        seen.refusing_gate = _find_refusing_gate(config, seen) or "none"
    return None if seen.refusing_gate == "none" else seen.refusing_gate


def _find_refusing_gate(config: SchedulerConfig, seen: Transition) -> str | None:
    output, after = seen.outcome.output, seen.after
    if output is None or not after.waiting:
        return "empty_queue"
    if seen.pause_state != "unpaused":
        return "pause"
    if output.preempted_req_ids:
        return "preemption"
    num_left = tokens_left(config, output)
    if num_left <= 0:
        is_spent = output.total_num_scheduled_tokens >= config.max_num_scheduled_tokens
        return "token_budget" if is_spent else "input_budget"
    if len(after.running) >= config.max_num_seqs:
        return "max_num_seqs"
    # Another invariant objects to a name that no request has.
    named = [name for name in after.waiting if name in after.requests]
    skipped = {name: find_skipping_gate(config, seen, name, after.running) for name in named}
    head = next((name for name, gate in skipped.items() if gate is None), None)
    if head is None:
        return next(iter(skipped.values()), "not_ready")
    request = after.requests[head]
    num_new_tokens = cap_long_prefill(config, seen.before, request.num_tokens)
    if not config.enable_chunked_prefill and num_new_tokens > num_left:
        return "whole_prompt_budget"
    is_partial = min(num_new_tokens, num_left) < request.num_prompt_tokens
    num_partial = len(partial_prefills(after, after.running))
    if is_partial and 0 < config.max_num_partial_prefills <= num_partial:
        return "partial_prefills"
    return _find_refusing_memory_gate(config, after, request, min(num_new_tokens, num_left))


def _find_refusing_memory_gate(
    config: SchedulerConfig, after: Observation, request: RequestObservation, num_new_tokens: int
) -> str | None:
    num_free = after.num_free_blocks
    num_sequence_blocks = num_blocks_of_sequence(config, request)
    num_chunk_blocks = cdiv(num_new_tokens, config.block_size)
    if config.enable_prefix_caching and not config.scheduler_reserve_full_isl:
        # After a hit the chunk ends further on.
        num_chunk_blocks = num_sequence_blocks
    if num_chunk_blocks > num_free:
        return "free_blocks"
    num_blocks = num_chunk_blocks
    if config.scheduler_reserve_full_isl:
        num_blocks = num_sequence_blocks
        if num_blocks > num_free:
            return "whole_sequence"
    if after.running:
        num_blocks += config.num_watermark_blocks
        if num_blocks > num_free:
            return "watermark"
    if num_blocks + num_reserved_blocks(config, after, after.running) > num_free:
        return "reserve"
    return None


def tokens_left(config: SchedulerConfig, output: SchedulerOutput) -> int:
    """What one request more could get of a step's tighter budget, in tokens."""
    num_requests = len(output.num_scheduled_tokens) + 1
    num_inputs = config.max_num_batched_tokens - config.num_draft_slots * num_requests
    return min(config.max_num_scheduled_tokens, num_inputs) - output.total_num_scheduled_tokens


def find_skipping_gate(
    config: SchedulerConfig, seen: Transition, request_id: str, running: list[str]
) -> str | None:
    """Returns the gate that skips a request that waits, beside who runs by then; None if none does.

    Of those who run, `seen.after` shows what the step has left of their prompts.
    """
    return find_hindrance(config, seen, request_id) or find_taken_slot(
        config, seen, request_id, running
    )


def find_hindrance(config: SchedulerConfig, seen: Transition, request_id: str) -> str | None:
    """Returns why a request is not ready; None if it is."""
    live = seen.live.get(request_id)
    if live is not None and live.waits_for_grammar:
        return "grammar"
    if config.wait_for_stale_output and any(request_id in step.voided for step in seen.in_flight):
        return "stale_output"
    return None


def find_taken_slot(
    config: SchedulerConfig, seen: Transition, request_id: str, running: list[str]
) -> str | None:
    """Returns which slots, of those that a request needs, are all taken; None if none are."""
    live = seen.live.get(request_id)
    if live is None:
        return None
    if config.max_loras > 0 and live.new.lora_id != 0:
        loras = loras_in_step(seen, running)
        if live.new.lora_id not in loras and len(loras) >= config.max_loras:
            return "loras"
    long = config.long_prefill_token_threshold
    if config.max_long_partial_prefills > 0 and len(live.new.prompt_token_ids) > long:
        partial = partial_prefills(seen.after, running)
        num_long = sum(seen.after.requests[name].num_prompt_tokens > long for name in partial)
        if num_long >= config.max_long_partial_prefills:
            return "long_prefills"
    return None


def loras_in_step(seen: Transition, running: list[str]) -> set[int]:
    """The adapters with which a step computes tokens of some who run."""
    scheduled = {} if seen.outcome.output is None else seen.outcome.output.num_scheduled_tokens
    in_step = [name for name in running if name in scheduled and name in seen.live]
    return {seen.live[name].new.lora_id for name in in_step} - {0}


def partial_prefills(seen: Observation, running: list[str]) -> list[str]:
    """Those who run, and of whose prompt a part is left to compute."""
    known = [name for name in running if name in seen.requests]
    return [
        name
        for name in known
        if seen.requests[name].num_computed_tokens < seen.requests[name].num_prompt_tokens
    ]


def order_of_admission(config: SchedulerConfig, seen: Transition) -> dict[str, str | None]:
    """Who waited before a step, in order, and which gate skips each; None if it is the next.

    As if all were admitted that are not skipped, so it holds as far as anybody was.
    """
    running = [name for name in seen.after.running if name not in seen.admitted]
    gates: dict[str, str | None] = {}
    for name in seen.before.waiting:
        gates[name] = find_hindrance(config, seen, name)
        if gates[name] is None and name not in seen.admitted:
            gates[name] = find_taken_slot(config, seen, name, running)
        if gates[name] is None:
            running.append(name)
    return gates


def cap_long_prefill(config: SchedulerConfig, before: Observation, num_new_tokens: int) -> int:
    """The long-prefill threshold, which some dialects lift for a lone request."""
    threshold = config.long_prefill_token_threshold
    is_lone = len(before.running) + len(before.waiting) <= 1
    if threshold == 0 or (config.threshold_spares_lone_request and is_lone):
        return num_new_tokens
    return min(num_new_tokens, threshold)


def num_blocks_of_sequence(config: SchedulerConfig, request: RequestObservation) -> int:
    """Blocks for all known tokens of a request."""
    return cdiv(min(request.num_tokens, config.max_model_len), config.block_size)


def num_blocks_of_whole(config: SchedulerConfig, new: NewRequest) -> int:
    """The most blocks that a request may need; the last token ends it, and is never computed."""
    num_tokens = min(len(new.prompt_token_ids) + new.max_tokens, config.max_model_len)
    return cdiv(num_tokens - 1, config.block_size)


def num_blocks_ahead(config: SchedulerConfig, num_tokens: int) -> int:
    """Blocks for so many tokens of a running request, and for what its drafter writes ahead."""
    num_tokens = min(num_tokens + config.num_lookahead_tokens, config.max_model_len)
    return cdiv(num_tokens, config.block_size)


def num_reserved_blocks(config: SchedulerConfig, seen: Observation, running: list[str]) -> int:
    """Blocks that `running` still need for known tokens, where the gate leaves them alone."""
    if not config.reserve_admitted_prefills:
        return 0
    requests = [seen.requests[name] for name in running]
    return sum(
        max(num_blocks_of_sequence(config, request) - len(request.block_ids), 0)
        for request in requests
    )
