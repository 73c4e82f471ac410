"""A live request: what it asks for, and how far it has come."""

from __future__ import annotations

from collections import deque

from attrs import define, field

from spec.interface import (
    NewRequest,
    RepetitionDetection,
    RequestObservation,
    RequestStatus,
    StreamingUpdate,
)

Rank = tuple[int, float, str]
"""(priority, arrival_time, request_id); under the priority policy the smallest is served first."""


@define(eq=False)
class Request:
    """A live request; compared by identity."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    num_remote_tokens: int
    """Of how many first tokens a remote store holds the KV."""
    rank: Rank
    client_index: int
    cache_key: str | None
    """What its blocks are found by, beside their tokens."""
    lora_id: int
    """The adapter that it runs with; 0 is none."""
    min_tokens: int
    stop_token_ids: frozenset[int]
    """All tokens that stop the request, end of sequence among them."""
    repetition_detection: RepetitionDetection | None
    max_num_tokens: int
    """With so many tokens, prompt and output, the request is length-capped."""
    check_stop_from: int
    """While fewer tokens are known, only a stop token can stop the request."""
    num_prompt_tokens: int
    num_tokens: int
    """Prompt and known output."""
    token_ids: list[int]
    """All known tokens; appended to in place, so it is never handed out."""
    resumable: bool
    """Whether chunks of its prompt may follow."""
    streaming_queue: deque[StreamingUpdate | None] = field(factory=deque)
    """Chunks that wait until its turn is over; None closes it."""
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    """Tokens whose KV exists, or is promised by a scheduled step."""
    num_in_flight_tokens: int = 0
    """Scheduled in steps that have not returned."""
    num_stale_output_tokens: int = 0
    """The part of those that a preemption has voided."""
    drop_stale_output: bool = False
    """Whether what they sample is dropped, so that nobody waits for it."""
    num_output_placeholders: int = 0
    """Async scheduling: tokens being sampled, not yet known."""
    draft_token_ids: list[int] = field(factory=list)
    """Speculative decoding: guesses for the next step to verify; replaced, never changed in place.
    With async scheduling the worker knows them, and -1 stands for each."""
    is_prefill_chunk: bool = False
    """Whether its last step left known tokens to compute; kept for speculative decoding only."""
    num_preemptions: int = 0
    block_ids: list[int] = field(factory=list)
    """The block table; appended to in place, so only copies are handed out."""
    num_cached_blocks: int = 0
    """How many blocks, from the first, are published; they stay so while the request holds them."""
    last_chain: int | str | None = None
    """The chain of the last published block, which the next one extends; if none is, the key."""
    decode_until: int = 0
    """While fewer tokens are computed, a step of one token meets no cap, needs no block and
    publishes none. Set by the block pool when it changes the table or publishes from it."""

    @property
    def num_output_tokens(self) -> int:
        """Known output tokens."""
        return self.num_tokens - self.num_prompt_tokens


def make_request(new: NewRequest, max_model_len: int) -> Request:
    """Builds a request as it arrives."""
    num_prompt_tokens = len(new.prompt_token_ids)
    max_num_tokens = min(num_prompt_tokens + new.max_tokens, max_model_len)
    stop_token_ids = new.stop_token_ids
    if new.eos_token_id is not None:
        stop_token_ids = (*stop_token_ids, new.eos_token_id)
    return Request(
        request_id=new.request_id,
        prompt_token_ids=new.prompt_token_ids,
        num_remote_tokens=new.num_remote_tokens,
        resumable=new.resumable,
        rank=(new.priority, new.arrival_time, new.request_id),
        client_index=new.client_index,
        cache_key=new.cache_key,
        lora_id=new.lora_id,
        min_tokens=new.min_tokens,
        stop_token_ids=frozenset(stop_token_ids),
        repetition_detection=new.repetition_detection,
        max_num_tokens=max_num_tokens,
        # Any token may complete a repetition.
        check_stop_from=0 if new.repetition_detection else max_num_tokens,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_prompt_tokens,
        token_ids=list(new.prompt_token_ids),
        last_chain=new.cache_key,
        status=(
            RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            if new.structured_output
            else RequestStatus.WAITING
        ),
    )


def observe_request(request: Request) -> RequestObservation:
    """Shows a request."""
    return RequestObservation(
        STATUS_NAMES[request.status],
        request.num_prompt_tokens,
        request.num_tokens,
        request.num_output_tokens,
        request.num_computed_tokens,
        request.num_preemptions,
        request.num_output_placeholders,
        request.num_in_flight_tokens,
        list(request.block_ids),
        request.num_stale_output_tokens,
        len(request.draft_token_ids),
    )


STATUS_NAMES = {status: status.name for status in RequestStatus}
"""An enum member works its name out anew each time."""
