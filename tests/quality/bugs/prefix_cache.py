"""Bugs in the prefix cache: wrong text, silently."""

from __future__ import annotations

from typing import Any

from impl.block_pool import CacheHit
from tests.quality.planting import Method, bug


@bug(
    target="impl.block_pool:BlockPool.find_longest_cache_hit",
    setting="prefix",
    caught_by="scheduled_requests_run",
    source="nano-vllm #144",
)
def a_full_hit_leaves_nothing_to_compute(original: Method) -> Method:
    """A request whose tokens are all cached has none to compute, and so none to sample from."""

    def find_longest_cache_hit(self: Any, request: Any) -> Any:
        request.num_tokens += 1
        hit = original(self, request)
        request.num_tokens -= 1
        return hit

    return find_longest_cache_hit


@bug(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="prefix",
    caught_by="admitted_sequences_fit",
    source="TensorRT-LLM #11731",
)
def a_free_hit_block_counts_twice(original: Method) -> Method:
    """Hit blocks that nobody holds lower the demand, and still count as free."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        return bool(original(self, request, num_tokens, CacheHit(hit.block_ids, 0)))

    return _has_room_for


@bug(
    target="impl.block_pool:BlockPool.free",
    setting="prefix",
    caught_by="same_as_spec",
    source="inference-sim #1057",
)
def a_freed_block_cannot_be_found(original: Method) -> Method:
    """A block that nobody holds is forgotten by the prefix cache at once, not when it is reused.

    Only lockstep sees it: a cache may forget, it must not lie.
    """

    def free(self: Any, request: Any) -> None:
        block_ids = request.block_ids
        original(self, request)
        for block_id in reversed(block_ids):
            if self.ref_cnt[block_id] == 0:
                self._maybe_evict_cached_block(block_id)

    return free


@bug(
    target="impl.block_pool:BlockPool.find_longest_cache_hit",
    setting="prefix",
    caught_by="steps_read_what_was_written",
    source="vLLM #44701",
)
def salts_are_ignored(original: Method) -> Method:
    """A request finds blocks that were published under another salt."""

    def find_longest_cache_hit(self: Any, request: Any) -> Any:
        for salt in (request.cache_salt, None, "s"):
            cache_salt, request.cache_salt = request.cache_salt, salt
            hit = original(self, request)
            request.cache_salt = cache_salt
            if hit.block_ids:
                return hit
        return CacheHit()

    return find_longest_cache_hit


@bug(
    target="impl.scheduler:FastScheduler._grant_running",
    setting="publish-corrected",
    caught_by="published_blocks_were_written",
    source="vLLM #57580",
)
def a_chunk_is_published_when_granted(original: Method) -> Method:
    """A granted chunk can be found at once, and still can after it has been taken back."""

    def _grant_running(self: Any, request: Any, num_new_tokens: int, num_new_blocks: int) -> None:
        original(self, request, num_new_tokens, num_new_blocks)
        self.block_pool.cache_full_blocks(request, request.num_computed_tokens)

    return _grant_running


@bug(
    target="impl.block_pool:BlockPool.cache_full_blocks",
    setting="prefix",
    caught_by="published_blocks_were_written",
    source="inference-sim #196",
)
def a_block_is_found_by_the_tokens_of_another(original: Method) -> Method:
    """Where a chunk is published, its tokens are counted from the start of the chunk."""

    def cache_full_blocks(self: Any, request: Any, num_tokens: int) -> None:
        first = request.num_cached_blocks * self.block_size
        token_ids = request.token_ids
        request.token_ids = token_ids[:first] + token_ids[: len(token_ids) - first]
        original(self, request, num_tokens)
        request.token_ids = token_ids

    return cache_full_blocks


@bug(
    target="impl.prefix_cache:PrefixCache.find",
    setting="deep-prefix",
    caught_by="steps_read_what_was_written",
    source="nano-vllm 9fa256a",
)
def a_block_is_found_without_its_prefix(original: Method) -> Method:
    """A block is found by its own tokens, whatever stands before it."""

    def find(self: Any, parent: Any, token_ids: tuple[int, ...]) -> Any:
        for chain in self._chains.values():
            if chain.key[1] == token_ids and chain.block_ids:
                return next(iter(chain.block_ids))
        return None

    return find
