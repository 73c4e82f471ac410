"""Draft slots for a request that is admitted with one token to compute.

Entry point: `compute_num_padding`. A step of requests that all verify equally many drafts can run
as one graph, so vLLM gives such an admission as many as the others have, -1 each: nothing was
guessed, so all are rejected (vllm/v1/core/sched/scheduler.py: schedule, pad_spec_decode). Proofs
leave speculative decoding off, so what comes after that never runs on symbols.

The release also cuts a padded admission to `long_prefill_token_threshold`, and then fails an
assertion of its own; here the threshold is for prompts.
"""

from __future__ import annotations

from spec.interface import SchedulerConfig, SchedulerOutput
from spec.request import Request


def compute_num_padding(
    config: SchedulerConfig,
    request: Request,
    num_computed_tokens: int,
    running: list[Request],
    output: SchedulerOutput,
) -> int:
    """How many draft slots an admission is padded with: none, or as many as a decode may have.

    None while a running request computes its prompt, or if the step would be all that there is of a
    prompt; and none without room for the drafts and the token to be sampled.
    """
    if config.num_speculative_tokens == 0 or not config.pad_admitted_decodes:
        return 0
    granted = [other for other in running if was_granted(other, output)]
    is_decode = request.num_tokens - num_computed_tokens == 1 and (
        len(granted) > 0 or num_computed_tokens > 0
    )
    num_tokens = num_computed_tokens + 1 + config.num_speculative_tokens
    if (
        is_decode
        and not any(other.is_prefill_chunk for other in granted)
        and num_tokens < config.max_model_len
    ):
        return config.num_speculative_tokens
    return 0


def was_granted(request: Request, output: SchedulerOutput) -> bool:
    """Whether a request got its part of the step as a running one, and was not just admitted."""
    cached = output.scheduled_cached_reqs.get(request.request_id)
    return cached is not None and not cached.resumed
