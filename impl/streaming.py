"""Streaming input: what becomes of a resumable request between its turns.

Entry points: `end_turn`, `begin_turn`.
"""

from __future__ import annotations

from impl.request import Request
from spec.interface import RequestStatus, StreamingUpdate


def end_turn(request: Request, num_trimmed_tokens: int) -> None:
    """Keeps the KV of all tokens but the last one; what steps in flight sample is dropped."""
    request.num_computed_tokens -= num_trimmed_tokens + request.num_output_placeholders
    request.num_output_placeholders = 0
    request.num_stale_output_tokens = request.num_in_flight_tokens
    request.drop_stale_output = request.num_in_flight_tokens > 0
    request.draft_token_ids = []
    request.status = RequestStatus.WAITING_FOR_STREAMING_REQ


def begin_turn(request: Request, update: StreamingUpdate, max_model_len: int) -> None:
    """Discards the last token, makes the other outputs prompt, and appends a chunk to it.

    The chunk's arrival time is the queue's business.
    """
    request.token_ids[-1:] = update.prompt_token_ids
    request.prompt_token_ids = tuple(request.token_ids)
    request.num_prompt_tokens = request.num_tokens = len(request.token_ids)
    request.max_num_tokens = min(request.num_tokens + update.max_tokens, max_model_len)
    # Any token may complete a repetition.
    request.check_stop_from = 0 if request.repetition_detection else request.max_num_tokens
    # It was worked out for the turn before; the pool does it again when the table changes.
    request.decode_until = 0
    request.status = RequestStatus.WAITING
