"""Our engine in the state that a state of the spec describes, symbolic or plain.

Entry points: `make_engine`, `lent`, which lends our engine's modules what takes symbols, and
`show`, everything that an engine remembers. The engine's code is the real one except for the pool,
whose blocks are counted: `CountedEnginePool` is our pool's interface over the very pool that the
spec has in a proof.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from attrs import define, frozen

import impl.block_pool
import impl.deferred_frees
import impl.lifecycle
import impl.remote_kv
import impl.request
import impl.scheduler
import spec.block_pool
from impl.block_pool import BlockPool, CacheHit
from impl.request import Request
from impl.scheduler import FastScheduler
from proofs.symbolic.lending import lend, lend_all
from proofs.symbolic.pools import PublicationPool
from proofs.symbolic.state import BUILTINS, PromptOfLength, State
from proofs.symbolic.values import any_of, choose, symbolic_len, symbolic_max, symbolic_min
from spec.block_pool import CountedBlockPool
from spec.interface import NewRequest, SchedulerConfig


@define
class Blocks:
    """A block table of which only the length is known."""

    owner: str
    """Whose it is."""
    num_blocks: Any

    def symbolic_len(self) -> Any:
        """Answers `len`."""
        return self.num_blocks

    def __bool__(self) -> bool:
        return bool(self.num_blocks > 0)

    def __iter__(self) -> Iterator[int]:
        # What an output is told is compared by count.
        return iter(())

    def __reversed__(self) -> Blocks:
        return self

    def extend(self, more: Blocks) -> None:
        """Adds blocks."""
        self.num_blocks = self.num_blocks + more.num_blocks


@frozen
class StopTokens:
    """A set of tokens, each of them a symbol."""

    token_ids: tuple[Any, ...]

    def __contains__(self, token_id: Any) -> bool:
        return bool(any_of(*[token_id == each for each in self.token_ids]))


@define
class _Holder:
    """A request of our engine as a counted pool of the spec sees it."""

    request_id: str
    num_tokens: Any
    num_blocks: Any


class CountedEnginePool(BlockPool):
    """Our pool, its blocks counted; tables, reservations and `decode_until` are its own code."""

    def __init__(self, config: SchedulerConfig, counted: CountedBlockPool) -> None:
        self.block_size = config.block_size
        self.enable_caching = config.enable_prefix_caching
        self.counted = counted
        self.new_block_ids = []

    @property
    def num_free_blocks(self) -> Any:
        """Blocks that nobody holds."""
        return self.counted.num_free_blocks

    def find_longest_cache_hit(self, request: Request) -> CacheHit:
        """Finds what the spec's pool finds."""
        holder: Any = _see(request)
        hit = self.counted.find_longest_cache_hit(holder)
        blocks: Any = Blocks(request.request_id, hit.num_blocks)
        return CacheHit(blocks, hit.num_free_blocks)

    def free(self, request: Request) -> None:
        """Frees a request's blocks, and gives it an empty table that can be counted."""
        super().free(request)
        request.block_ids = _table(request.request_id, 0)

    def free_blocks(self, block_ids: Any) -> None:
        """Counts blocks back."""
        holder: Any = _Holder(block_ids.owner, 0, block_ids.num_blocks)
        self.counted.free(holder)

    def get_new_blocks(self, num_blocks: int) -> Any:
        """Counts new blocks over."""
        self.counted.num_free_blocks -= num_blocks
        return Blocks("", num_blocks)

    def cache_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Publishes as the parent does, without a fork; the counted pool is told how far."""
        if not self.enable_caching:
            return
        num_full_blocks = symbolic_min(num_tokens, request.num_tokens) // self.block_size
        is_more = num_full_blocks > request.num_cached_blocks
        request.num_cached_blocks = choose(is_more, num_full_blocks, request.num_cached_blocks)
        request.decode_until = choose(is_more, self._decode_until(request), request.decode_until)
        holder: Any = _see(request)
        self.counted.cache_full_blocks(holder, request.num_cached_blocks * self.block_size)

    def publish_as_parent(self, request: Request, num_tokens: int) -> None:
        """Does with our pool's own code what the two methods around this one do."""
        super().cache_full_blocks(request, num_tokens)
        super()._set_decode_until(request)

    def set_decode_until(self, request: Request) -> None:
        """Sets what the parent sets, without a fork."""
        request.decode_until = self._decode_until(request)

    _set_decode_until = set_decode_until

    def _decode_until(self, request: Request) -> Any:
        num_blocks: Any = symbolic_len(request.block_ids)
        decode_until = num_blocks * self.block_size
        if self.enable_caching:
            until_published = (request.num_cached_blocks + 1) * self.block_size - 1
            is_open = request.num_cached_blocks < num_blocks
            decode_until = choose(is_open, until_published, decode_until)
        return symbolic_min(decode_until, request.max_num_tokens - 1)

    def _adopt(self, request: Request, hit: CacheHit) -> None:
        blocks: Any = hit.block_ids
        request.block_ids.extend(blocks)
        request.num_cached_blocks = blocks.num_blocks
        holder: Any = _see(request)
        counted = spec.block_pool.CacheHit([], blocks.num_blocks, hit.num_free_blocks)
        self.counted.allocate(holder, counted, 0)


def _see(request: Request) -> _Holder:
    return _Holder(request.request_id, request.num_tokens, symbolic_len(request.block_ids))


def _table(owner: str, num_blocks: Any) -> Any:
    return Blocks(owner, num_blocks)


def make_engine(state: State) -> FastScheduler:
    """Builds our engine in the state that a state of the spec describes."""
    scheduler = state.scheduler
    pool = CountedEnginePool(scheduler.config, _copy(scheduler.block_pool))
    with lend(impl.deferred_frees, BlockPool=lambda _: pool):
        engine = FastScheduler(scheduler.config)
    engine.finished_req_ids = list(scheduler.finished_req_ids)
    for each in scheduler.requests.values():
        engine.requests[each.request_id] = _make_request(each, scheduler.config, pool)
    engine.running = [engine.requests[each.request_id] for each in scheduler.running]
    for request in engine.running:
        pool.set_decode_until(request)
    for each in scheduler.waiting.items:
        engine.waiting.add_request(engine.requests[each.request_id])
    for each in scheduler.kv_holding_waiting.items:
        engine.kv_holding_waiting.add_request(engine.requests[each.request_id])
    return engine


def _make_request(seen: Any, config: SchedulerConfig, pool: CountedEnginePool) -> Request:
    """A request as our engine has it, when the spec has it as `seen`."""
    new = NewRequest(
        request_id=seen.request_id,
        prompt_token_ids=PromptOfLength(seen.num_prompt_tokens),  # type: ignore[arg-type]
        max_tokens=seen.max_tokens,
        min_tokens=seen.min_tokens,
        eos_token_id=seen.eos_token_id,
        stop_token_ids=seen.stop_token_ids,
        repetition_detection=seen.repetition_detection,
        priority=seen.priority,
        arrival_time=seen.arrival_time,
    )
    request = impl.request.make_request(new, config.max_model_len)
    request.num_tokens = seen.num_tokens
    for name in SAME_FIELDS:
        setattr(request, name, getattr(seen, name))
    request.block_ids = _table(seen.request_id, seen.num_blocks)
    if isinstance(pool.counted, PublicationPool):
        num_published_tokens = pool.counted.num_published_tokens[seen.request_id]
        request.num_cached_blocks = num_published_tokens // config.block_size
    return request


SAME_FIELDS = (
    "status",
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_stale_output_tokens",
    "num_output_placeholders",
    "num_preemptions",
)
"""What a request of the spec and one of our engine both have."""


def _copy(pool: CountedBlockPool) -> CountedBlockPool:
    copied = copy.copy(pool)
    if isinstance(copied, PublicationPool):
        copied.num_published_tokens = dict(copied.num_published_tokens)
        copied.num_left_tokens = dict(copied.num_left_tokens)
    return copied


def show(engine: FastScheduler) -> dict[str, Any]:
    """Everything that an engine remembers between two calls, by name; of blocks their number."""
    pool = engine.block_pool
    seen: dict[str, Any] = {
        "running": [request.request_id for request in engine.running],
        "waiting": [request.request_id for request in engine.waiting],
        "kv_holding_waiting": [request.request_id for request in engine.kv_holding_waiting],
        "finished_req_ids": list(engine.finished_req_ids),
        "num_free_blocks": pool.num_free_blocks,
    }
    if isinstance(pool, CountedEnginePool) and isinstance(pool.counted, PublicationPool):
        seen["published"] = dict(pool.counted.num_published_tokens)
        seen["left"] = dict(pool.counted.num_left_tokens)
    for request in engine.requests.values():
        for name, value in _show_request(request).items():
            seen[f"{request.request_id}.{name}"] = value
    # Set anew when a request is admitted, and not read before.
    for request in engine.running:
        seen[f"{request.request_id}.decode_until"] = request.decode_until
    return seen


def _show_request(request: Request) -> dict[str, Any]:
    names = (*SAME_FIELDS, "num_tokens", "num_prompt_tokens", "max_num_tokens", "check_stop_from")
    seen = {name: getattr(request, name) for name in (*names, "num_cached_blocks")}
    return seen | {"num_blocks": symbolic_len(request.block_ids)}


# ---- what takes symbols --------------------------------------------------------------------------


def _max(*values: Any, key: Callable[[Any], Any] | None = None) -> Any:
    """`max` without a fork; with a key it compares as the builtin does, and forks."""
    if key is None:
        return symbolic_max(*values)
    return max(*values, key=key)


def _range(start: int, stop: Any) -> Iterator[int]:
    """`range` up to a symbol: each number forks on whether it is reached."""
    while start < stop:
        yield start
        start += 1


def _no_range(*bounds: Any) -> Iterator[int]:
    """Of the blocks to be published one by one, none has a name here."""
    return iter(())


def _no_tokens(tokens: Any) -> list[int]:
    """The tokens of a prompt, which no decision looks at."""
    return []


LENT: dict[ModuleType, dict[str, Any]] = {
    impl.scheduler: {**BUILTINS, "max": _max, "range": _range},
    impl.lifecycle: BUILTINS,
    impl.remote_kv: BUILTINS,
    impl.block_pool: {**BUILTINS, "range": _no_range},
    impl.request: {**BUILTINS, "list": _no_tokens, "frozenset": StopTokens},
}


def lent() -> contextlib.AbstractContextManager[None]:
    """Lends our engine's modules what takes symbols, and plain numbers too."""
    return lend_all(LENT)
