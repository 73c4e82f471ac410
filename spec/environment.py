"""The bounds of what may happen to a scheduler.

Entry point: `Environment`.
"""

from __future__ import annotations

from attrs import field, frozen

from spec.interface import (
    ConfigError,
    NewRequest,
    SchedulerConfig,
    StreamingUpdate,
    at_least,
    is_bool,
)


@frozen(kw_only=True)
class Environment:
    """The bounds of what may happen. Raises `ConfigError` if they make no sense."""

    shapes: tuple[NewRequest, ...]
    """The menu of arrivals; id and arrival time are set when one arrives."""
    max_live_requests: int = field(
        validator=at_least(1, "somebody must be able to arrive, so raise it")
    )
    """The most requests alive at once; their number over time is not bounded."""
    max_in_flight: int = field(
        default=1, validator=at_least(1, "a step must be able to run, so raise it")
    )
    """Steps in flight at once: 1 is synchronous, more needs `async_scheduling`."""
    sampled_token_ids: tuple[int, ...] = (0,)
    """The tokens that a step may sample; with a stop token among them, requests may always stop."""
    draft_token_ids: tuple[int, ...] = ()
    """Speculative decoding: when a step returns, its requests are given these drafts, or none.

    With async scheduling the worker keeps its drafts to itself, so there are none here.
    """
    with_aborts: bool = field(default=True, validator=is_bool)
    """Whether clients may disconnect."""
    with_pauses: bool = field(default=False, validator=is_bool)
    """Whether the engine may be paused, in part or wholly, and go on."""
    with_resets: bool = field(default=False, validator=is_bool)
    """Whether the prefix cache may be reset, with running requests or without.

    Without a cache a reset still preempts those who run.
    """
    chunks: tuple[StreamingUpdate, ...] = ()
    """Streaming input: the menu of chunks that a resumable request may be handed; the arrival time
    is set when one arrives."""
    max_session_tokens: int = field(default=0, validator=at_least(0, "0 lets no chunk follow"))
    """The longest prompt that chunks may make, whatever is kept of the outputs before."""
    max_queued_chunks: int = field(
        default=1, validator=at_least(1, "a chunk must be able to follow, so raise it")
    )
    """How many chunks of a request may wait their turn, its end among them."""
    max_arrivals: int = field(default=0, validator=at_least(0, "0 is no limit"))
    """The most requests and chunks over all time; 0 is no limit.

    Only to test that renaming loses nothing.
    """

    def __attrs_post_init__(self) -> None:
        if not self.shapes:
            raise ConfigError("shapes is empty, so nothing ever arrives; name at least one")
        if not self.sampled_token_ids:
            raise ConfigError(
                "sampled_token_ids is empty, so no step can return; name at least one token"
            )
        for shape in self.shapes:
            if not shape.prompt_token_ids:
                raise ConfigError("a shape has an empty prompt; give it at least one token")
            if shape.max_tokens < 1:
                raise ConfigError(f"a shape has max_tokens={shape.max_tokens}, below 1; raise it")
        for chunk in self.chunks:
            if not chunk.prompt_token_ids or chunk.max_tokens < 1:
                raise ConfigError(
                    f"a chunk has {len(chunk.prompt_token_ids)} tokens and "
                    f"max_tokens={chunk.max_tokens}; give it at least one of each"
                )

    def check_fits(self, config: SchedulerConfig) -> None:
        """Raises `ConfigError` if an arrival or a depth breaks a precondition of `config`."""
        for shape in self.shapes:
            check_fits(shape, config)
        self._check_loads(config)
        self._check_chunks()
        if self.max_session_tokens >= config.max_model_len:
            raise ConfigError(
                f"max_session_tokens={self.max_session_tokens} leaves no room for an output token "
                f"below max_model_len={config.max_model_len}; lower it, or raise the latter"
            )
        if self.max_in_flight > 1 and not config.async_scheduling:
            raise ConfigError(
                f"max_in_flight={self.max_in_flight} needs async_scheduling=True; "
                "switch it on, or keep one step in flight"
            )
        if len(self.draft_token_ids) > config.num_speculative_tokens:
            raise ConfigError(
                f"draft_token_ids={list(self.draft_token_ids)} are more than "
                f"num_speculative_tokens={config.num_speculative_tokens}; name fewer, or raise that"
            )
        if self.draft_token_ids and config.async_scheduling:
            raise ConfigError(
                f"draft_token_ids={list(self.draft_token_ids)} are told to no scheduler with "
                "async_scheduling=True; leave them out, or switch it off"
            )

    def _check_chunks(self) -> None:
        """Turns end with one output token at least, and the last one is not kept."""
        prompts = [len(shape.prompt_token_ids) for shape in self.shapes if shape.resumable]
        chunks = [len(chunk.prompt_token_ids) for chunk in self.chunks]
        if chunks and not prompts:
            raise ConfigError(
                "chunks are there, and no shape is resumable, so none ever follows; "
                "make one resumable, or leave the chunks out"
            )
        if chunks and min(prompts) + min(chunks) > self.max_session_tokens:
            raise ConfigError(
                f"max_session_tokens={self.max_session_tokens} lets no chunk follow: the shortest "
                f"prompt and chunk have {min(prompts)} + {min(chunks)} tokens; raise it"
            )

    def _check_loads(self, config: SchedulerConfig) -> None:
        if self.max_in_flight > 1 and config.load_kv_async and not config.defer_block_free:
            raise ConfigError(
                f"max_in_flight={self.max_in_flight} with load_kv_async=True needs "
                "defer_block_free=True, or a step in flight overwrites what a load brings; "
                "switch it on, or keep one step in flight"
            )
        if not config.load_kv_async and any(shape.num_remote_tokens for shape in self.shapes):
            raise ConfigError(
                "a shape has num_remote_tokens, which load_kv_async=False never loads; "
                "switch it on, or leave them out"
            )


def check_fits(new: NewRequest, config: SchedulerConfig) -> None:
    """Raises `ConfigError` if a request breaks a precondition of `config`."""
    num_prompt_tokens, max_model_len = len(new.prompt_token_ids), config.max_model_len
    if num_prompt_tokens >= max_model_len:
        raise ConfigError(
            f"a shape has {num_prompt_tokens} prompt tokens, max_model_len={max_model_len} leaves "
            "no room for an output token; shorten it, or raise max_model_len"
        )
    if not 0 <= new.num_remote_tokens <= num_prompt_tokens:
        raise ConfigError(
            f"a shape has num_remote_tokens={new.num_remote_tokens}, its prompt has "
            f"{num_prompt_tokens} tokens; name no more of them, and not less than 0"
        )
    if new.resumable and not config.wait_for_stale_output:
        raise ConfigError(
            "a shape is resumable, which needs wait_for_stale_output=True: no release has one "
            "without the other; switch it on, or leave resumable out"
        )
    most = min(new.max_tokens, max_model_len - num_prompt_tokens)
    if config.stop_order == "min_stop_length" and new.min_tokens > most:
        raise ConfigError(
            f"a shape has min_tokens={new.min_tokens}, at most {most} output tokens are allowed, "
            'and with stop_order="min_stop_length" it would go on for ever; lower min_tokens'
        )
