"""When a request stops (vllm/v1/core/sched/utils.py: check_stop)."""

from __future__ import annotations

from spec.interface import RepetitionDetection, RequestStatus, SchedulerConfig
from spec.request import Request


def check_stop(request: Request, token_id: int, config: SchedulerConfig) -> int:
    """Returns the final status that the last token brings, or the status unchanged.

    End of sequence and stop tokens come first, then length, then, once `min_tokens` is reached,
    repetition.
    """
    if config.stop_order == "length_stop" and _is_length_capped(request, config):
        return RequestStatus.FINISHED_LENGTH_CAPPED
    if config.stop_order != "stop_length" and request.num_output_tokens < request.min_tokens:
        return request.status
    if token_id == request.eos_token_id or token_id in request.stop_token_ids:
        return RequestStatus.FINISHED_STOPPED
    if _is_length_capped(request, config):
        return RequestStatus.FINISHED_LENGTH_CAPPED
    if request.num_output_tokens >= request.min_tokens and _repeats_itself(request):
        return RequestStatus.FINISHED_REPETITION
    return request.status


def _is_length_capped(request: Request, config: SchedulerConfig) -> bool:
    return (
        request.num_tokens >= config.max_model_len
        or request.num_output_tokens >= request.max_tokens
    )


def _repeats_itself(request: Request) -> bool:
    detection = request.repetition_detection
    return detection is not None and ends_in_repetition(request.output_token_ids, detection)


def ends_in_repetition(token_ids: tuple[int, ...], detection: RepetitionDetection) -> bool:
    """Whether `token_ids` end in `min_count` copies of a pattern of an allowed size."""
    if detection.min_count < 2:
        return False
    for size in range(max(detection.min_pattern_size, 1), detection.max_pattern_size + 1):
        span = size * detection.min_count
        if span > len(token_ids):
            return False
        if token_ids[-span:] == token_ids[-size:] * detection.min_count:
            return True
    return False
