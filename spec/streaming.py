"""Streaming input: a request whose prompt arrives in chunks, with an answer after each.

Entry points: `end_turn`, `begin_turn`. A resumable request that stops has ended a *turn*. It keeps
its blocks, waits for the next chunk, and goes on from there; the token that stopped it is
discarded, since nobody has computed its KV. Proofs leave requests resumable out, so nothing here
runs on symbols.

Who waits for a chunk is never preempted. So two that wait may each hold the blocks that the other
needs, for ever (setting `streaming-deadlock`), and the prefix cache cannot be reset meanwhile: both
seen of vLLM 0.33.0 itself, which raises RuntimeError at such a reset.

Source: vllm/v1/core/sched/scheduler.py: _handle_stopped_request, _update_request_as_session,
reset_prefix_cache.
"""

from __future__ import annotations

from spec.interface import RequestStatus, StreamingUpdate
from spec.request import Request


def end_turn(request: Request, num_trimmed_tokens: int) -> None:
    """Keeps the KV of all tokens but the last one, and nothing of what is in flight.

    Accepted drafts beyond the token that stopped it were computed, too. What steps in flight still
    sample follows on the discarded token, so it is dropped.
    """
    request.num_computed_tokens -= num_trimmed_tokens + request.num_output_placeholders
    request.num_output_placeholders = 0
    request.num_stale_output_tokens = request.num_in_flight_tokens
    request.drop_stale_output = request.num_in_flight_tokens > 0
    request.set_drafts([])
    request.status = RequestStatus.WAITING_FOR_STREAMING_REQ


def begin_turn(request: Request, update: StreamingUpdate) -> None:
    """Discards the last token, makes the other outputs prompt, and appends a chunk to it."""
    request.token_ids = request.token_ids[:-1] + update.prompt_token_ids
    request.num_prompt_tokens = len(request.token_ids)
    request.num_output_tokens = 0
    request.max_tokens = update.max_tokens
    request.arrival_time = update.arrival_time
    request.status = RequestStatus.WAITING
