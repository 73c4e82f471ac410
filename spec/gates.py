"""Why nobody else was admitted in a step, read off what can be seen from outside.

Entry point: `find_refusing_gate`. It needs no help from an engine, so it serves any: an invariant
(no gate refuses the head of the queue, so it should have been admitted) and the witnesses (each
gate has refused somebody).
"""

from __future__ import annotations

from spec.block_pool import cdiv
from spec.gates_of_loads import (
    has_room_to_load,
    held_at_turn,
    holds_kv,
    is_loading,
    may_load,
)
from spec.interface import (
    NewRequest,
    Observation,
    RequestObservation,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.transition import Transition


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
    if seen.pause_state == "paused_all":
        return "pause"
    if output.preempted_req_ids:
        return "preemption"
    num_left = tokens_left(config, output)
    if num_left <= 0:
        is_spent = output.total_num_scheduled_tokens >= config.max_num_scheduled_tokens
        return "token_budget" if is_spent else "input_budget"
    if len(after.running) + num_parked(seen) >= config.max_num_seqs:
        return "max_num_seqs"
    # Another invariant objects to a name that no request has.
    named = [name for name in after.waiting if name in after.requests]
    skipped = {name: find_skipping_gate(config, seen, name, after.running) for name in named}
    head = next((name for name, gate in skipped.items() if gate is None), None)
    if head is None:
        return next(iter(skipped.values()), "not_ready")
    if may_load(config, seen, head):
        if not has_room_to_load(config, seen, head, after.running):
            return "load"
        if not config.enable_prefix_caching:
            return _find_pause(config, seen, head)
    return _find_gate_of_size(config, seen, after.requests[head], num_left) or _find_pause(
        config, seen, head
    )


def _find_pause(config: SchedulerConfig, seen: Transition, request_id: str) -> str | None:
    """Returns whether a pause may refuse a ready request that held KV: its load failed.

    It stands among those who hold some, unless it has been passed over since for want of a slot.
    """
    may_be_passed_over = config.max_loras > 0 or config.max_long_partial_prefills > 0
    is_empty = not held_at_turn(seen, request_id)
    return "pause" if seen.pause_state == "paused_new" and is_empty and may_be_passed_over else None


def _find_gate_of_size(
    config: SchedulerConfig, seen: Transition, request: RequestObservation, num_left: int
) -> str | None:
    """Returns why a ready request that finds a seat and a slot does not fit."""
    after = seen.after
    num_padding = find_padding(config, seen, request)
    if num_padding >= num_left:
        return "padding"
    num_computed_tokens = request.num_computed_tokens
    num_new_tokens = cap_long_prefill(config, seen.before, request.num_tokens - num_computed_tokens)
    if not config.enable_chunked_prefill and num_new_tokens > num_left:
        return "whole_prompt_budget"
    num_tokens = num_computed_tokens + min(num_new_tokens, num_left)
    is_partial = num_tokens < request.num_prompt_tokens
    num_partial = len(partial_prefills(after, after.running))
    if is_partial and 0 < config.max_num_partial_prefills <= num_partial:
        return "partial_prefills"
    if config.enable_prefix_caching:
        num_tokens = request.num_tokens  # After a hit the chunk ends further on.
    return _find_refusing_memory_gate(config, after, request, num_tokens + num_padding)


def _find_refusing_memory_gate(
    config: SchedulerConfig, after: Observation, request: RequestObservation, num_tokens: int
) -> str | None:
    # Whoever holds KV already lacks only what it does not hold.
    num_free, num_held = after.num_free_blocks, len(request.block_ids)
    num_blocks = cdiv(min(num_tokens, config.max_model_len), config.block_size)
    if config.lookahead_at_admission or num_held > 0:
        num_blocks = num_blocks_ahead(config, num_tokens)
    num_blocks = max(num_blocks - num_held, 0)
    if num_blocks > num_free:
        return "free_blocks"
    if config.scheduler_reserve_full_isl:
        num_blocks = max(num_blocks, num_blocks_of_sequence(config, request) - num_held)
        if num_blocks > num_free:
            return "whole_sequence"
    if after.running:
        num_blocks += config.num_watermark_blocks
        if num_blocks > num_free:
            return "watermark"
    if num_blocks + num_reserved_blocks(config, after, after.running) > num_free:
        return "reserve"
    return None


def find_padding(config: SchedulerConfig, seen: Transition, request: RequestObservation) -> int:
    """Draft slots that an admission of `request` may be padded with, if a hit leaves one token."""
    start = request.num_tokens - 1
    may_start = start in {0, request.num_computed_tokens} or (
        config.enable_prefix_caching and start % config.block_size == 0
    )
    return max(possible_padding(config, seen, start)) if may_start else 0


def possible_padding(config: SchedulerConfig, seen: Transition, start: int) -> set[int]:
    """Draft slots that an admission may be padded with that computes one token, from `start` on.

    Either none or as many as a decode may have: it depends on whether all who run are past their
    prompts, which cannot be told of one that has resumed and is left with one known token.
    """
    num_drafts = config.num_speculative_tokens
    output = seen.outcome.output
    if not config.pad_admitted_decodes or output is None:
        return {0}
    requests = seen.before.requests
    granted = [name for name in seen.before.running if name in output.num_scheduled_tokens]
    known = [requests[name] for name in granted if name in requests]
    if start + 1 + num_drafts >= config.max_model_len or (start == 0 and not granted):
        return {0}
    may_prefill = [request for request in known if may_compute_prompt(request)]
    if any(request.num_output_tokens == 0 or num_due(request) > 1 for request in may_prefill):
        return {0}
    return {0, num_drafts} if may_prefill else {num_drafts}


def may_compute_prompt(request: RequestObservation) -> bool:
    """Whether the last step of a running request may have left known tokens to compute.

    Drafts and placeholders follow on a step that samples.
    """
    return num_due(request) > 1 or not (request.num_draft_tokens or request.num_output_placeholders)


def num_due(request: RequestObservation) -> int:
    """The tokens of a running request that are known or being sampled, and not computed."""
    num_placeholders = request.num_output_placeholders or 0
    return request.num_tokens + num_placeholders - request.num_computed_tokens


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
    if live is not None and live.waits_for_chunk:
        return "streaming_input"
    if is_loading(seen, request_id):
        return "remote_kv"
    if seen.pause_state == "paused_new" and not holds_kv(seen, request_id):
        return "pause"
    if config.wait_for_stale_output and any(
        request_id in step.voided and request_id not in step.dropped for step in seen.in_flight
    ):
        return "stale_output"
    return None


def num_parked(seen: Transition) -> int:
    """How many requests wait for a chunk, and keep their seats."""
    return sum(live.waits_for_chunk for live in seen.live_after.values())


def find_taken_slot(
    config: SchedulerConfig, seen: Transition, request_id: str, running: list[str]
) -> str | None:
    """Returns which slots, of those that a request needs, are all taken; None if none are."""
    live = seen.live.get(request_id)
    if live is None:
        return None
    if config.max_loras > 0 and live.new.lora_id != 0:
        loras = loras_with_a_slot(config, seen, running)
        if live.new.lora_id not in loras and len(loras) >= config.max_loras:
            return "loras"
    long = config.long_prefill_token_threshold
    if config.max_long_partial_prefills > 0 and len(live.new.prompt_token_ids) > long:
        partial = partial_prefills(seen.after, running)
        num_long = sum(seen.after.requests[name].num_prompt_tokens > long for name in partial)
        if num_long >= config.max_long_partial_prefills:
            return "long_prefills"
    return None


def loras_with_a_slot(config: SchedulerConfig, seen: Transition, running: list[str]) -> set[int]:
    """The adapters of some who run, in some dialects only of those in the step."""
    scheduled = {} if seen.outcome.output is None else seen.outcome.output.num_scheduled_tokens
    holders = [
        name
        for name in running
        if name in seen.live and (config.idle_loras_count or name in scheduled)
    ]
    return {seen.live[name].new.lora_id for name in holders} - {0}


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
    """Blocks for all known tokens of a request, and where the gate reserves for those ahead."""
    num_tokens = request.num_tokens
    if config.reserve_admitted_prefills:
        num_tokens += config.num_lookahead_tokens
    return cdiv(min(num_tokens, config.max_model_len), config.block_size)


def num_blocks_of_whole(config: SchedulerConfig, new: NewRequest) -> int:
    """The most blocks that a request may need; the last token ends it, and is never computed."""
    num_tokens = min(len(new.prompt_token_ids) + new.max_tokens, config.max_model_len)
    return cdiv(num_tokens - 1, config.block_size)


def num_blocks_ahead(config: SchedulerConfig, num_tokens: int) -> int:
    """Blocks for so many tokens of a running request, and for what its drafter writes ahead."""
    num_tokens = min(num_tokens + config.num_lookahead_tokens, config.max_model_len)
    return cdiv(num_tokens, config.block_size)


def num_reserved_blocks(config: SchedulerConfig, seen: Observation, running: list[str]) -> int:
    """Blocks that `running` still need for all of theirs, where the gate leaves them alone."""
    if not config.reserve_admitted_prefills:
        return 0
    requests = [seen.requests[name] for name in running]
    return sum(
        max(num_blocks_of_sequence(config, request) - len(request.block_ids), 0)
        for request in requests
    )
