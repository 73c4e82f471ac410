"""When a request stops."""

from __future__ import annotations

from impl.request import Request
from spec.interface import RepetitionDetection, RequestStatus, StopOrder


def check_stop(request: Request, stop_order: StopOrder) -> RequestStatus | None:
    """Returns the final status that the last token brings, or None if the request goes on.

    Stop tokens come first, then length, then, once `min_tokens` is reached, repetition; older
    dialects differ.
    """
    is_length_capped = request.num_tokens >= request.max_num_tokens
    is_too_short = request.num_output_tokens < request.min_tokens
    if is_length_capped and stop_order == "length_stop":
        return RequestStatus.FINISHED_LENGTH_CAPPED
    if is_too_short and stop_order != "stop_length":
        return None
    if request.token_ids[-1] in request.stop_token_ids:
        return RequestStatus.FINISHED_STOPPED
    if is_length_capped:
        return RequestStatus.FINISHED_LENGTH_CAPPED
    if not is_too_short and _repeats_itself(request):
        return RequestStatus.FINISHED_REPETITION
    return None


def _repeats_itself(request: Request) -> bool:
    detection = request.repetition_detection
    return detection is not None and ends_in_repetition(
        request.token_ids, request.num_output_tokens, detection
    )


def ends_in_repetition(
    token_ids: list[int], num_output_tokens: int, detection: RepetitionDetection
) -> bool:
    """Whether the output, the tail of `token_ids`, ends in `min_count` copies of a pattern."""
    if detection.min_count < 2:
        return False
    max_size = min(detection.max_pattern_size, num_output_tokens // detection.min_count)
    for size in range(max(detection.min_pattern_size, 1), max_size + 1):
        start = len(token_ids) - size * detection.min_count
        # Copies of one pattern: the span equals itself, shifted by the pattern.
        if token_ids[start:-size] == token_ids[start + size :]:
            return True
    return False
