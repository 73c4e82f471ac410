"""Limits that are off by default: adapters in a step, prompts computed in part, too large requests.

Entry points: `has_slot`, `has_partial_prefill_slot`, `may_outgrow_pool`. A gate is open while its
limit is 0. Proofs leave the limits off, so what comes after that never runs on symbols.
"""

from __future__ import annotations

from spec.interface import SchedulerConfig, SchedulerOutput
from spec.request import Request


def has_slot(
    config: SchedulerConfig, request: Request, running: list[Request], output: SchedulerOutput
) -> bool:
    """Whether a slot is left for a request's adapter, and one for its prompt if that is long."""
    return has_lora_slot(config, request, running, output) and has_long_prefill_slot(
        config, request, running, output
    )


def has_lora_slot(
    config: SchedulerConfig, request: Request, running: list[Request], output: SchedulerOutput
) -> bool:
    """Whether the adapter of `request` has a slot already, or fewer than `max_loras` have one.

    Source: vllm/v1/core/sched/scheduler.py: schedule, scheduled_loras.
    """
    if config.max_loras == 0 or request.lora_id == 0:
        return True
    scheduled = output.num_scheduled_tokens
    taken = {
        other.lora_id
        for other in running
        if config.idle_loras_count or other.request_id in scheduled
    }
    return request.lora_id in taken or len(taken - {0}) < config.max_loras


def has_long_prefill_slot(
    config: SchedulerConfig, request: Request, running: list[Request], output: SchedulerOutput
) -> bool:
    """Whether the prompt of `request` is not long, or fewer long ones than allowed are in part.

    Long is a prompt of more than `long_prefill_token_threshold` tokens.
    """
    limit, threshold = config.max_long_partial_prefills, config.long_prefill_token_threshold
    if limit == 0 or request.num_prompt_tokens <= threshold:
        return True
    return sum(r.num_prompt_tokens > threshold for r in partial_prefills(running, output)) < limit


def has_partial_prefill_slot(
    config: SchedulerConfig,
    request: Request,
    num_tokens: int,
    running: list[Request],
    output: SchedulerOutput,
) -> bool:
    """Whether `num_tokens` hold the whole prompt of `request`, or one more may be in part."""
    limit = config.max_num_partial_prefills
    if limit == 0 or num_tokens >= request.num_prompt_tokens:
        return True
    return len(partial_prefills(running, output)) < limit


def partial_prefills(running: list[Request], output: SchedulerOutput) -> list[Request]:
    """The running requests of whose prompt the step leaves a part to compute."""
    scheduled = output.num_scheduled_tokens
    return [
        request
        for request in running
        if request.num_computed_tokens + scheduled.get(request.request_id, 0)
        < request.num_prompt_tokens
    ]


def may_outgrow_pool(config: SchedulerConfig, request: Request) -> bool:
    """Whether a request may need more blocks than there are, with one step in flight.

    Its last token is not computed. Drafts follow on a token that is sampled, and not the last.
    """
    num_tokens = min(request.num_prompt_tokens + request.max_tokens, config.max_model_len) - 1
    if num_tokens > request.num_prompt_tokens:
        num_tokens = min(num_tokens + config.num_speculative_tokens, config.max_model_len - 1)
    num_tokens = min(num_tokens + config.num_lookahead_tokens, config.max_model_len)
    return num_tokens > config.num_blocks * config.block_size
