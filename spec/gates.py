"""Why nobody else was admitted in a step, read off what can be seen from outside.

Entry point: `find_refusing_gate`. It needs no help from an engine, so it serves any: an invariant
(no gate refuses the head of the queue, so it should have been admitted) and the witnesses (each
gate has refused somebody).
"""

from __future__ import annotations

from spec.interface import Observation, RequestObservation, SchedulerConfig, SchedulerOutput
from spec.model import StepInFlight, Transition
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
    if output.preempted_req_ids:
        return "preemption"
    num_left = tokens_left(config, output)
    if num_left <= 0:
        return "token_budget"
    if len(after.running) >= config.max_num_seqs:
        return "max_num_seqs"
    # Another invariant objects to a name that no request has.
    named = [name for name in after.waiting if name in after.requests]
    head = next((name for name in named if is_ready(config, seen.in_flight, name)), None)
    if head is None:
        return "not_ready"
    request = after.requests[head]
    num_new_tokens = cap_long_prefill(config, seen.before, request.num_tokens)
    if not config.enable_chunked_prefill and num_new_tokens > num_left:
        return "whole_prompt_budget"
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
    """What a step has left of its tighter budget, in tokens."""
    return min(config.max_num_scheduled_tokens, config.max_num_batched_tokens) - (
        output.total_num_scheduled_tokens
    )


def is_ready(config: SchedulerConfig, in_flight: tuple[StepInFlight, ...], request_id: str) -> bool:
    """Whether no voided step of a request is in flight, where the dialect waits for that."""
    return not config.wait_for_stale_output or all(
        request_id not in step.voided for step in in_flight
    )


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


def num_reserved_blocks(config: SchedulerConfig, seen: Observation, running: list[str]) -> int:
    """Blocks that `running` still need for known tokens, where the gate leaves them alone."""
    if not config.reserve_admitted_prefills:
        return 0
    requests = [seen.requests[name] for name in running]
    return sum(
        max(num_blocks_of_sequence(config, request) - len(request.block_ids), 0)
        for request in requests
    )
