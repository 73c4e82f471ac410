"""A request and its counters: plain integers only, so that a proof may make them symbols."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from spec.interface import NewRequest, RepetitionDetection, RequestStatus, StreamingUpdate

CHANGING = (
    "status",
    "arrival_time",
    "max_tokens",
    "num_prompt_tokens",
    "streaming_queue",
    "token_ids",
    "num_output_tokens",
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_stale_output_tokens",
    "drop_stale_output",
    "num_output_placeholders",
    "num_preemptions",
    "num_draft_tokens",
    "draft_token_ids",
    "is_prefill_chunk",
    "is_kv_received",
    "num_blocks",
    "block_ids",
)
"""All that may change in a request's life."""
COUNTERS = (
    "status",
    "num_output_tokens",
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_stale_output_tokens",
    "num_output_placeholders",
    "num_draft_tokens",
    "is_prefill_chunk",
    "num_blocks",
)
"""Those of them that decide something: the others are content, or follow from these."""
get_changing = attrgetter(*CHANGING)
get_counters = attrgetter(*COUNTERS)


class Request:
    """A live request; compared by identity."""

    __slots__ = (
        "arrival_time",
        "block_ids",
        "cache_key",
        "client_index",
        "draft_token_ids",
        "drop_stale_output",
        "eos_token_id",
        "is_kv_received",
        "is_prefill_chunk",
        "lora_id",
        "max_tokens",
        "min_tokens",
        "num_blocks",
        "num_computed_tokens",
        "num_draft_tokens",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_remote_tokens",
        "num_stale_output_tokens",
        "priority",
        "repetition_detection",
        "request_id",
        "resumable",
        "status",
        "stop_token_ids",
        "streaming_queue",
        "token_ids",
    )

    def __init__(self, new: NewRequest) -> None:
        self.request_id: str = new.request_id
        self.client_index: int = new.client_index
        self.max_tokens: int = new.max_tokens
        self.min_tokens: int = new.min_tokens
        self.eos_token_id: int | None = new.eos_token_id
        self.stop_token_ids: tuple[int, ...] = new.stop_token_ids
        self.repetition_detection: RepetitionDetection | None = new.repetition_detection
        self.priority: int = new.priority
        self.arrival_time: float = new.arrival_time
        self.cache_key: str | None = new.cache_key
        self.lora_id: int = new.lora_id
        # Streaming input: chunks that have arrived and wait their turn; None closes it. Replaced,
        # never changed in place.
        self.resumable: bool = new.resumable
        self.streaming_queue: tuple[StreamingUpdate | None, ...] = ()
        # First tokens of the prompt whose KV a remote store holds.
        self.num_remote_tokens: int = new.num_remote_tokens
        self.status: int = RequestStatus.WAITING
        if new.structured_output:
            self.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        # Prompt and output, known tokens only. Read by the prefix cache and by the stop rules,
        # never by `schedule`. Replaced, never changed in place, so that a snapshot may hold it.
        self.token_ids: tuple[int, ...] = new.prompt_token_ids
        self.num_prompt_tokens: int = len(new.prompt_token_ids)
        self.num_output_tokens: int = 0
        self._begin_counting()

    def _begin_counting(self) -> None:
        """Nothing is computed of it, and it holds nothing."""
        # KV exists, or is promised by a scheduled step.
        self.num_computed_tokens: int = 0
        # Scheduled in steps that have not returned.
        self.num_in_flight_tokens: int = 0
        # The part of those that a preemption has voided.
        self.num_stale_output_tokens: int = 0
        # Whether what it samples is dropped instead of delivered, so that nobody waits for it.
        self.drop_stale_output: bool = False
        # Async scheduling: tokens being sampled, not yet known.
        self.num_output_placeholders: int = 0
        # Speculative decoding: guesses that the next step verifies. Decisions read the count only.
        # Replaced, never changed in place, so that outputs and snapshots may hold them.
        self.num_draft_tokens: int = 0
        self.draft_token_ids: list[int] = []
        # Whether its last step, or a load, left known tokens to compute. Kept for speculative
        # decoding and for loads only.
        self.is_prefill_chunk: bool = False
        # Whether the load that it waits for has ended, which is noticed at its turn.
        self.is_kv_received: bool = False
        self.num_preemptions: int = 0
        # The block table; replaced, never changed in place, since outputs alias it. Decisions read
        # the count only: that is the refinement between the pool of identities and the counted one.
        self.num_blocks: int = 0
        self.block_ids: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Prompt and known output."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_tokens_with_spec(self) -> int:
        """Known tokens and drafts."""
        return self.num_tokens + self.num_draft_tokens

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """The known output."""
        return self.token_ids[self.num_prompt_tokens :]

    def append_output_token(self, token_id: int) -> None:
        """Makes a sampled token known."""
        self.num_output_tokens += 1
        self.token_ids = (*self.token_ids, token_id)

    def set_drafts(self, draft_token_ids: list[int]) -> None:
        """Replaces the drafts."""
        self.draft_token_ids = draft_token_ids
        self.num_draft_tokens = len(draft_token_ids)

    def save(self) -> tuple[Any, ...]:
        """Returns all that may change in a request's life, as `CHANGING` names it."""
        return get_changing(self)

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Undoes whatever happened since `save`."""
        (
            self.status,
            self.arrival_time,
            self.max_tokens,
            self.num_prompt_tokens,
            self.streaming_queue,
            self.token_ids,
            self.num_output_tokens,
            self.num_computed_tokens,
            self.num_in_flight_tokens,
            self.num_stale_output_tokens,
            self.drop_stale_output,
            self.num_output_placeholders,
            self.num_preemptions,
            self.num_draft_tokens,
            self.draft_token_ids,
            self.is_prefill_chunk,
            self.is_kv_received,
            self.num_blocks,
            self.block_ids,
        ) = saved


def is_served_after(a: Request, b: Request) -> bool:
    """Whether the priority policy serves `a` after `b`: the greater (priority, arrival_time)."""
    if a.priority != b.priority:
        return a.priority > b.priority
    return a.arrival_time > b.arrival_time
