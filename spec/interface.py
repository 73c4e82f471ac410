"""The boundary: what a scheduler is told, what it answers, and what can be observed of it.

Entry point: `Scheduler`, the five calls that an engine answers. Everything else here is plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Literal, Protocol

import attrs
from attrs import define, field, frozen


class Scheduler(Protocol):
    """What is checked: the reference scheduler, our own engine, any engine through an adapter."""

    def add_request(self, new: NewRequest) -> EngineCoreOutput | None:
        """Puts a request into the waiting queue; one that is refused is answered at once."""

    def schedule(self) -> SchedulerOutput:
        """Decides which tokens one step computes, and counts them as computed at once."""

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """Settles a step that has run; returns what each client is sent, by `client_index`."""

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """Ends requests from outside, in order, whatever they are doing; unknown ids are ignored.

        Their blocks are freed in that order, which later decides what is evicted first.
        """

    def observe(self) -> Observation:
        """Shows the state between two calls; what it returns is never changed afterwards."""


class ControlledScheduler(Scheduler, Protocol):
    """What a scheduler may also be told. Only environments that use a call need an engine to it."""

    def update_draft_token_ids(self, draft_token_ids: dict[str, list[int]]) -> None:
        """Hands over what a drafter guesses to follow, by request, for the next step to verify.

        It comes after the update of the step that they follow on, and not with async scheduling.
        """

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Stops planning, or goes on with it; running requests keep all that they have."""

    def grammar_ready(self, request_id: str) -> None:
        """Lets a request whose grammar is compiled be admitted; unknown ids are ignored."""

    def finish_recving(self, request_id: str, num_valid_tokens: int) -> None:
        """Tells that the load of a request's KV has ended, with so many of its first tokens there.

        Whole blocks, and none if nothing of it may be used. Its request may have ended meanwhile;
        then its blocks are free from now on. Ids that load nothing are ignored.
        """

    def streaming_update(self, request_id: str, update: StreamingUpdate | None) -> None:
        """Hands over the next chunk of a resumable request, or closes it with None.

        It waits its turn while the request has not answered the chunk before; unknown ids are
        ignored.
        """

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forgets all published content, unless a block is held; returns whether it did.

        With `reset_running_requests` all running requests are preempted first.
        """


class RequestStatus(IntEnum):
    """The order matters: a status above PREEMPTED is final (vllm/v1/request.py: RequestStatus)."""

    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    WAITING_FOR_STREAMING_REQ = 4
    RUNNING = 5
    PREEMPTED = 6
    FINISHED_STOPPED = 7
    FINISHED_LENGTH_CAPPED = 8
    FINISHED_ABORTED = 9
    FINISHED_REPETITION = 10


FINISH_REASON: dict[int, str] = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_REPETITION: "repetition",
}
"""What a client is told, by final status."""

REFUSED = "error"
"""The finish reason of a request that never was: it is refused at its arrival."""


class ConfigError(ValueError):
    """A configuration that makes no sense; the message names field, value and the way out."""


def at_least(minimum: int, advice: str) -> Callable[[Any, attrs.Attribute[int], Any], None]:
    """Accepts whole numbers from `minimum` up; `attrs.validators.disabled()` lets proofs pass."""

    def check(owner: object, attribute: attrs.Attribute[int], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{attribute.name}={value!r} is not a whole number; give one")
        if value < minimum:
            raise ConfigError(f"{attribute.name}={value} is below {minimum}; {advice}")

    return check


def _one_of(*choices: str) -> Callable[[Any, attrs.Attribute[str], Any], None]:
    def check(owner: object, attribute: attrs.Attribute[str], value: object) -> None:
        if value not in choices:
            raise ConfigError(
                f"{attribute.name}={value!r} is unknown; choose {' or '.join(choices)}"
            )

    return check


def is_bool(owner: object, attribute: attrs.Attribute[bool], value: object) -> None:
    """Accepts true and false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{attribute.name}={value!r} is neither true nor false; say one of them")


def _flag(default: bool) -> bool:
    return field(default=default, validator=is_bool)


MAX_NUM_BLOCKS = 2**23
"""A bound against slips of the pen: each block takes memory here, too."""
Policy = Literal["fcfs", "priority"]
StopOrder = Literal["stop_length", "min_stop_length", "length_stop"]
CursorRule = Literal["always", "scheduled", "never"]
PauseState = Literal["unpaused", "paused_new", "paused_all"]
"""What a pause stops: nothing, admission (running requests go on), or all planning."""


@frozen(kw_only=True)
class SchedulerConfig:
    """Every bound of a scheduler, and every choice on which engines differ on purpose.

    Such a choice is a *dialect* field. Raises `ConfigError` if a value makes no sense.
    """

    max_num_batched_tokens: int = field(
        validator=at_least(1, "a step must be able to process a token, so raise it")
    )
    """The input budget: the most tokens of one forward pass."""
    max_num_seqs: int = field(validator=at_least(1, "one request must be able to run, so raise it"))
    """The most requests in `running` at once."""
    max_model_len: int = field(validator=at_least(2, "a prompt token and an output token need 2"))
    """The most tokens of one request, prompt and output together."""
    block_size: int = field(validator=at_least(1, "a block holds at least one token; 16 is usual"))
    """Tokens per KV cache block."""
    num_blocks: int = field(validator=at_least(1, "the pool is empty; give it a block"))
    """Usable blocks; vLLM's null block is not counted."""
    max_num_scheduled_tokens: int = field(
        default=attrs.Factory(lambda self: self.max_num_batched_tokens, takes_self=True),
        validator=at_least(1, "a step must be able to schedule a token, so raise it"),
    )
    """The token budget; below the input budget only if the model itself adds tokens."""
    long_prefill_token_threshold: int = field(
        default=0, validator=at_least(0, "0 switches the threshold off")
    )
    """The longest chunk of a prompt in one step; 0 is no limit."""
    policy: Policy = field(default="fcfs", validator=_one_of("fcfs", "priority"))
    """Who is served first: the earliest, or the smallest (priority, arrival_time)."""
    enable_prefix_caching: bool = _flag(False)
    """Whether full blocks can be found again by their content."""
    async_scheduling: bool = _flag(False)
    """Whether a step may be scheduled before the tokens of the one before it are known."""
    enable_chunked_prefill: bool = _flag(True)
    """Whether a prompt may be computed in several steps."""
    scheduler_reserve_full_isl: bool = _flag(True)
    """Whether blocks for the whole sequence must be free at admission, not just for a chunk."""
    reserve_admitted_prefills: bool = _flag(False)
    """Dialect (ours): that gate leaves alone what admitted, unfinished prompts still need.

    That includes the slots that are written ahead of them (`num_lookahead_tokens`).
    """
    num_watermark_blocks: int = field(
        default=0, validator=at_least(0, "0 switches the watermark off")
    )
    """Blocks that an admission must leave free once a request is running."""
    num_speculative_tokens: int = field(
        default=0, validator=at_least(0, "0 switches speculative decoding off")
    )
    """Speculative decoding: the most draft tokens of a request that one step verifies."""
    num_lookahead_tokens: int = field(
        default=0, validator=at_least(0, "0 is a drafter that keeps no KV here")
    )
    """Slots that a request is given beyond its tokens, for KV that a drafter writes."""
    num_draft_slots: int = field(
        default=0, validator=at_least(0, "0 is a drafter that adds nothing to the batch")
    )
    """What a scheduled request costs of the input budget beside its tokens."""
    max_num_partial_prefills: int = field(
        default=0, validator=at_least(0, "0 switches the limit off")
    )
    """The most running requests whose prompt is computed in part; 0 is no limit.

    An admission that would leave one more ends admission.
    """
    max_long_partial_prefills: int = field(
        default=0, validator=at_least(0, "0 switches the limit off")
    )
    """The most of those whose prompt is longer than the threshold; 0 is no limit.

    A long prompt that would be one more is skipped, so that shorter ones may jump the queue.
    """
    max_loras: int = field(default=0, validator=at_least(0, "0 is no limit"))
    """The most adapters that run at once; a request with one more is skipped. 0 is no limit."""
    load_kv_async: bool = _flag(False)
    """Whether KV that a remote store holds is loaded while its request waits, and not computed."""
    defer_block_free: bool = _flag(False)
    """Whether blocks that a step in flight may still write are kept back until it has returned.

    A load is not ordered against the steps, so with more than one of them in flight it needs this.
    """
    defer_async_loads: bool = _flag(False)
    """Whether a load begins only when the steps in flight have returned: they may still read what
    its blocks held before."""
    reject_too_large: bool = _flag(False)
    """Dialect: a request that may outgrow the pool is refused at its arrival; else it waits, once
    it has, for ever."""
    publish_at_grant: bool = _flag(False)
    """Dialect (vLLM 0.33.0 as released): a granted chunk is findable at once, taken back or not."""
    keep_unscheduled_drafts: bool = _flag(False)
    """Dialect (vLLM 0.33.0 as released, async): a request that sits a step out keeps its draft
    placeholders, for which its worker has no drafts any more (vLLM #46899)."""
    reserve_for_lost_loads: bool = _flag(False)
    """Dialect (vLLM 0.33.0 as released): a request whose load has brought nothing goes on being
    counted as a prompt loaded in part, so its next load must leave alone what it needs itself."""
    same_step_prefix_hits: bool = _flag(True)
    """Dialect: a request may hit blocks that the step that admits it is about to compute."""
    threshold_spares_lone_request: bool = _flag(True)
    """Dialect (vLLM 0.32+): the long-prefill threshold is off while only one request exists."""
    uncached_blocks_first: bool = _flag(True)
    """Dialect (vLLM 0.32+): freed blocks without a hash go to the head of the free queue."""
    continue_after_self_preemption: bool = _flag(True)
    """Dialect (vLLM 0.32+, priority): a request that preempted itself does not end pass 1."""
    cursor_follows_victim: CursorRule = field(
        default="always", validator=_one_of("always", "scheduled", "never")
    )
    """Dialect: whether the cursor of pass 1 moves back when a victim before it leaves: always
    (0.33), only if that victim was scheduled in this step (0.16), never (0.11)."""
    wait_for_stale_output: bool = _flag(True)
    """Dialect (vLLM 0.33): a request is not ready while output of its voided steps is in flight."""
    deliver_stale_output: bool = _flag(True)
    """Dialect: tokens of a voided step are still delivered; else dropped, and sampled again."""
    idle_loras_count: bool = _flag(True)
    """Dialect (vLLM 0.33): a running request keeps its adapter's slot in a step that computes none
    of its tokens, since it may join the next one; else only adapters of the step count."""
    lookahead_at_admission: bool = _flag(True)
    """Dialect (vLLM 0.33): an admission is given slots to be written ahead, too."""
    pad_admitted_decodes: bool = _flag(True)
    """Dialect (vLLM 0.33): with speculative decoding an admission of one token is given as many
    draft slots as one that decodes, so that all requests of a step are alike (`spec.padding`)."""
    publish_verified_drafts: bool = _flag(True)
    """Dialect (vLLM 0.33): with speculative decoding, blocks that verified drafts have completed
    are published when the step returns, not when the next one is granted."""
    stop_at_max_tokens_in_flight: bool = _flag(True)
    """Dialect (vLLM 0.16+, async): no step is scheduled past the one that samples the last token.

    The test is exact for two steps in flight; with more, a surplus step may be scheduled.
    """
    stop_order: StopOrder = field(
        default="stop_length", validator=_one_of("stop_length", "min_stop_length", "length_stop")
    )
    """Dialect: what is tested first. "stop_length" (0.33): stop tokens, then length;
    "min_stop_length" (0.16): nothing before min_tokens, then the same; "length_stop" (0.11):
    length, then min_tokens, then stop tokens."""

    def __attrs_post_init__(self) -> None:
        if attrs.validators.get_disabled():
            return
        if self.num_blocks > MAX_NUM_BLOCKS:
            raise ConfigError(
                f"num_blocks={self.num_blocks} is above {MAX_NUM_BLOCKS}, more than any pool has; "
                "lower it"
            )
        if self.max_num_scheduled_tokens > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_scheduled_tokens={self.max_num_scheduled_tokens} is above "
                f"max_num_batched_tokens={self.max_num_batched_tokens}; "
                "lower it, or raise the latter"
            )
        self._check_drafts()
        if self.reserve_admitted_prefills and not self.scheduler_reserve_full_isl:
            raise ConfigError(
                "reserve_admitted_prefills=True needs scheduler_reserve_full_isl=True; "
                "switch both on or both off"
            )
        self._check_loads()
        if self.max_long_partial_prefills > 0 and self.long_prefill_token_threshold == 0:
            raise ConfigError(
                f"max_long_partial_prefills={self.max_long_partial_prefills} needs "
                "long_prefill_token_threshold=1 or more, which says what is long; "
                "set it, or switch the limit off"
            )
        if (
            not self.enable_chunked_prefill
            and self.max_num_scheduled_tokens < self.max_model_len - 1
        ):
            raise ConfigError(
                f"max_num_scheduled_tokens={self.max_num_scheduled_tokens} is below "
                f"max_model_len - 1 = {self.max_model_len - 1} while enable_chunked_prefill=False, "
                "so a long prompt would wait for ever; "
                "raise the budget, or switch chunked prefill on"
            )

    def _check_loads(self) -> None:
        if self.defer_async_loads and not (self.load_kv_async and self.defer_block_free):
            raise ConfigError(
                "defer_async_loads=True needs load_kv_async=True and defer_block_free=True; "
                "switch them on, or it off"
            )
        if self.load_kv_async and not self.wait_for_stale_output:
            raise ConfigError(
                "load_kv_async=True needs wait_for_stale_output=True, or output of a voided step "
                "ends a request while its KV is loaded; switch both on, or the former off"
            )

    def _check_drafts(self) -> None:
        for name in ("num_lookahead_tokens", "num_draft_slots"):
            if getattr(self, name) > 0 and self.num_speculative_tokens == 0:
                raise ConfigError(
                    f"{name}={getattr(self, name)} needs num_speculative_tokens; "
                    f"set that above 0, or {name} to 0"
                )
        num_slots_of_one = self.num_draft_slots + (
            1 if self.enable_chunked_prefill else self.max_model_len - 1
        )
        if self.num_draft_slots > 0 and num_slots_of_one > self.max_num_batched_tokens:
            raise ConfigError(
                f"num_draft_slots={self.num_draft_slots} leaves too little of "
                f"max_num_batched_tokens={self.max_num_batched_tokens}, so a request would wait "
                "for ever; lower it, or raise the latter"
            )
        num_tokens_of_one = min(
            self.max_num_scheduled_tokens, self.max_num_batched_tokens - self.num_draft_slots
        )
        if self.pad_admitted_decodes and 0 < num_tokens_of_one <= self.num_speculative_tokens:
            raise ConfigError(
                f"num_speculative_tokens={self.num_speculative_tokens} with pad_admitted_decodes "
                f"leaves no step of {num_tokens_of_one} tokens for a padded admission, so a "
                "request would wait for ever; raise the budgets, or switch padding off"
            )


@frozen
class RepetitionDetection:
    """Stops a request whose output ends in `min_count` copies of one pattern."""

    max_pattern_size: int
    """The longest pattern looked for, in tokens; 0 switches detection off."""
    min_pattern_size: int = 1
    """The shortest pattern looked for."""
    min_count: int = 2
    """How many copies in a row are a repetition; below 2 switches detection off."""


@frozen(kw_only=True)
class NewRequest:
    """A request as it arrives.

    Preconditions, which the environment keeps: at least one prompt token, fewer than
    `max_model_len`; the id is not in use, nor in a step in flight. Where min_tokens are tested
    before the length (`stop_order`, "min_stop_length"), they are no more than `max_tokens` and
    `max_model_len` allow, or the request would never end (vLLM #26317).
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    """The most output tokens."""
    min_tokens: int = 0
    """Output tokens before repetition (in older dialects: any stop) may end the request."""
    eos_token_id: int | None = None
    """The end-of-sequence token; None ignores it."""
    stop_token_ids: tuple[int, ...] = ()
    repetition_detection: RepetitionDetection | None = None
    priority: int = 0
    """Smaller is served first."""
    arrival_time: float = 0.0
    client_index: int = 0
    """The API server that owns the request; its outputs are filed under it."""
    cache_salt: str | None = None
    """Requests with different salts never share blocks. A salt holds no NUL."""
    lora_id: int = 0
    """The adapter that the model runs with; 0 is none. Different ones never share blocks."""
    structured_output: bool = False
    """Whether the output follows a grammar, which must be compiled before the first step."""
    resumable: bool = False
    """Streaming input: whether further chunks of its prompt follow, until it is closed."""
    num_remote_tokens: int = 0
    """Of how many first tokens of its prompt a remote store holds the KV; whole blocks count."""

    @property
    def cache_key(self) -> str | None:
        """What blocks are found by beside their tokens: the salt and, if there is one, the adapter.

        Two requests have one key only if they have one salt and one adapter.
        """
        if self.lora_id == 0:
            return self.cache_salt
        salt = "" if self.cache_salt is None else f"\0{self.cache_salt}"
        return f"lora {self.lora_id}\0{salt}"


@frozen(kw_only=True)
class StreamingUpdate:
    """The next chunk of a resumable request (vllm/v1/request.py: StreamingUpdate).

    Preconditions, which the environment keeps: at least one token; the prompt that it ends, with
    all outputs that are kept until then, is shorter than `max_model_len`.
    """

    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    """The most output tokens of its answer."""
    arrival_time: float = 0.0


@define
class NewRequestData:
    """What the worker is told about a request that is scheduled for the first time."""

    prompt_token_ids: tuple[int, ...]
    num_computed_tokens: int
    """Before this step; above 0 after a prefix hit."""
    block_ids: list[int]
    """The whole block table, hit blocks first."""


@define
class CachedRequestData:
    """What the worker is told about a request it knows."""

    resumed: bool
    """Whether it comes back from a preemption, so that `new_block_ids` replaces its table."""
    new_block_ids: list[int]
    """Only the new ones; the whole table if `resumed`."""
    num_computed_tokens: int
    """Before this step."""


@define
class KVLoad:
    """A load of KV from a remote store: what the connector is told."""

    start: int
    """The first token whose KV is loaded; that of those before it is there."""
    end: int
    """Up to which token."""
    block_ids: list[int]
    """Where it goes: the blocks of these tokens, all of them whole."""


@define
class RetainedBlocks:
    """Blocks that no request holds any more, and that are not free yet."""

    block_ids: list[int]
    """As a block table."""
    num_steps: int = 0
    """They are free when so many steps in flight have returned; empty steps do not count."""
    request_id: str | None = None
    """They are free when the load for this request, which has ended, is over; None if none is."""


@define
class SchedulerOutput:
    """What one step computes, as the worker is told."""

    num_scheduled_tokens: dict[str, int] = field(factory=dict)
    """Tokens per request, running requests first, in the order they were scheduled."""
    scheduled_new_reqs: dict[str, NewRequestData] = field(factory=dict)
    scheduled_cached_reqs: dict[str, CachedRequestData] = field(factory=dict)
    """Running requests in order, then resumed ones."""
    preempted_req_ids: list[str] = field(factory=list)
    """In the order of their preemption."""
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(factory=dict)
    """The drafts that the step verifies, by request, as the last of its scheduled tokens.

    -1 each with async scheduling: the worker has them, and the scheduler only counts them.
    """
    finished_req_ids: list[str] = field(factory=list)
    """Finished since the step before, so that the worker forgets them."""
    new_block_ids_to_zero: list[int] | None = field(factory=list)
    """Blocks taken from the free queue while this step was scheduled, given back or not.

    None if an engine cannot tell.
    """

    kv_loads: dict[str, KVLoad] = field(factory=dict)
    """The loads that begin with this step, by request."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        """All tokens of the step."""
        return sum(self.num_scheduled_tokens.values())


@define
class ModelRunnerOutput:
    """What the worker answers after a step."""

    sampled_token_ids: dict[str, list[int]]
    """Per scheduled request: its accepted drafts and one token more; [] if nothing is sampled."""


@define
class EngineCoreOutput:
    """What a client is sent about one of its requests."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    """None while the request goes on; else a value of `FINISH_REASON`."""


@define
class RequestObservation:
    """A live request as seen from outside. None where an engine has no such field."""

    status: str
    num_prompt_tokens: int
    num_tokens: int
    """Prompt and known output."""
    num_output_tokens: int
    num_computed_tokens: int
    """Tokens whose KV exists, or is promised by a scheduled step."""
    num_preemptions: int | None
    num_output_placeholders: int | None
    """Async scheduling: tokens being sampled, not yet known."""
    num_in_flight_tokens: int | None
    """The promised part of `num_computed_tokens` and of what a preemption has voided."""
    block_ids: list[int]
    num_stale_output_tokens: int | None = None
    """The part of the promised that a preemption has voided."""
    num_draft_tokens: int | None = None
    """Speculative decoding: drafts that no step has taken up yet."""


BlockContent = tuple[str | None, tuple[int, ...]]
"""What a published block is found by: `NewRequest.cache_key`, and all tokens up to its last one.

It is what a chain of block hashes stands for, without collisions.
"""


@define
class Observation:
    """A scheduler between two calls, as seen from outside: the hinge of every check."""

    running: list[str]
    """In order."""
    waiting: list[str]
    """In the order they would be admitted."""
    requests: dict[str, RequestObservation]
    """Every live request."""
    num_free_blocks: int
    free_block_ids: list[int]
    """In the order they would be handed out."""
    ref_cnt: dict[int, int]
    """Block tables that hold a block; blocks that nobody holds are left out."""
    cached_block_ids: list[int]
    """Published blocks, sorted."""
    finished_req_ids: list[str]
    """Finished since the last `schedule`."""
    block_contents: dict[int, BlockContent] | None = None
    """What each published block is found by; None if an engine cannot tell."""
    retained: list[RetainedBlocks] = field(factory=list)
    """Blocks of those who are gone, steps before loads, each in the order they were given up."""
    deferred_loads: dict[str, int] = field(factory=dict)
    """Loads that begin when so many steps in flight have returned, by request."""

    @property
    def block_tables(self) -> list[list[int]]:
        """Every table that holds blocks: those of requests, then those of who is gone."""
        tables = [request.block_ids for request in self.requests.values()]
        return tables + [gone.block_ids for gone in self.retained]
