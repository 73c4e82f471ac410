"""Bugs in the prefix cache: wrong text, silently."""

from __future__ import annotations

from typing import Any

import attrs

from checkers.mutations.registry import mutation
from checkers.planting import Method


@mutation(
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


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="prefix",
    caught_by="admitted_sequences_fit",
    source="TRT-LLM #11731",
)
def a_free_hit_block_counts_twice(original: Method) -> Method:
    """Hit blocks that nobody holds lower the demand, and still count as free."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        hit = attrs.evolve(hit, num_free_blocks=0)
        return bool(original(self, request, num_tokens, hit))

    return _has_room_for


@mutation(
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


@mutation(
    target="impl.block_pool:BlockPool.find_longest_cache_hit",
    setting="prefix",
    caught_by="steps_read_what_was_written",
    source="vLLM #44701",
)
def salts_are_ignored(original: Method) -> Method:
    """A request finds blocks that were published under another salt."""

    def find_longest_cache_hit(self: Any, request: Any) -> Any:
        for salt in (request.cache_key, None, "s"):
            cache_key, request.cache_key = request.cache_key, salt
            hit = original(self, request)
            request.cache_key = cache_key
            if hit.block_ids:
                break
        return hit

    return find_longest_cache_hit


@mutation(
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


@mutation(
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


@mutation(
    target="impl.prefix_cache:PrefixCache.find",
    setting="deep-prefix",
    caught_by="steps_read_what_was_written",
)
def a_block_is_found_without_its_prefix(original: Method) -> Method:
    """A block is found by its own tokens, whatever stands before it."""

    def find(self: Any, parent: Any, token_ids: tuple[int, ...]) -> Any:
        for chain in self._chains.values():
            if chain.key[1] == token_ids and chain.block_ids:
                return next(iter(chain.block_ids))
        return None

    return find


@mutation(
    target="impl.block_pool:BlockPool._adopt",
    setting="deep-prefix",
    caught_by="published_blocks_were_written",
    source="nano-vllm 9fa256a",
)
def a_hit_cuts_the_chain(original: Method) -> Method:
    """The block after a hit is published as if it were the first of its request."""

    def _adopt(self: Any, request: Any, hit: Any) -> None:
        original(self, request, hit)
        request.last_chain = request.cache_key

    return _adopt


@mutation(
    target="impl.block_pool:BlockPool.find_longest_cache_hit",
    setting="async-prefix",
    caught_by="scheduled_requests_run",
    source="LightLLM #477",
)
def an_empty_key_finds_a_block(original: Method) -> Method:
    """A prompt of one token, all but the last of which is nothing, finds any block."""

    def find_longest_cache_hit(self: Any, request: Any) -> Any:
        hit = original(self, request)
        if request.num_tokens > 1:
            return hit
        block_ids = tuple(self.prefix_cache.get_block_ids()[:1])
        num_free_blocks = sum(self.ref_cnt[block_id] == 0 for block_id in block_ids)
        return attrs.evolve(hit, block_ids=block_ids, num_free_blocks=num_free_blocks)

    return find_longest_cache_hit


@mutation(
    target="impl.block_pool:BlockPool.allocate",
    setting="prefix",
    caught_by="published_blocks_were_written",
    source="TGI #2489",
)
def a_block_is_published_when_allocated(original: Method) -> Method:
    """A block can be found as soon as a request has it, for all tokens that will be in it."""

    def allocate(self: Any, request: Any, num_new_blocks: int, hit: Any) -> Any:
        new_block_ids = original(self, request, num_new_blocks, hit)
        self.cache_full_blocks(request, len(request.block_ids) * self.block_size)
        return new_block_ids

    return allocate


@mutation(
    target="impl.scheduler:FastScheduler._admit",
    setting="prefix",
    changes=("num_blocks=6",),
    caught_by="no_step_overwrites_kv",
    source="vLLM #11186",
)
def a_full_hit_steps_back_one_token(original: Method) -> Method:
    """A full hit counts for all tokens but one, and its last block stays in the table, shared."""

    def _admit(self: Any, request: Any, start: int, num_new_tokens: int, hit: Any) -> None:
        request.num_tokens += 1
        full = self.block_pool.find_longest_cache_hit(request)
        request.num_tokens -= 1
        if len(full.block_ids) * self.config.block_size == request.num_tokens:
            start, num_new_tokens, hit = request.num_tokens - 1, 1, full
        original(self, request, start, num_new_tokens, hit)

    return _admit


@mutation(
    target="impl.block_pool:BlockPool.free",
    setting="deep-prefix",
    changes=("num_blocks=5", "max_model_len=10"),
    caught_by="published_blocks_were_written",
    source="vLLM #36755",
    is_rare=True,
)
def a_victim_still_counts_as_published(original: Method) -> Method:
    """A preempted request keeps num_cached_blocks, though its blocks are gone."""

    def free(self: Any, request: Any) -> None:
        num_cached_blocks = request.num_cached_blocks
        original(self, request)
        request.num_cached_blocks = num_cached_blocks

    return free


@mutation(
    target="impl.scheduler:FastScheduler._admit",
    setting="prefix",
    changes=("same_step_prefix_hits=false",),
    caught_by="same_as_spec",
    source="vLLM #29387",
)
def blocks_of_the_same_step_are_hit(original: Method) -> Method:
    """What one request is to compute in a step is a hit for the next, though it should wait.

    Only lockstep sees it: with attention it does no harm, and engines differ.
    """

    def _admit(self: Any, *args: Any) -> None:
        original(self, *args)
        self._publish_granted()

    return _admit


@mutation(
    target="impl.scheduler:FastScheduler._free_abandoned",
    setting="abandoned-hits",
    caught_by="same_as_spec",
)
def an_abandoned_load_is_evicted_from_its_head(original: Method) -> Method:
    """What an abandoned load held is freed first to last, so that the head of a prefix goes first.

    Later prompts then find less of it, or nothing.
    """

    def _free_abandoned(self: Any, request_id: str) -> None:
        fence, block_ids = self.abandoned_loads[request_id]
        self.abandoned_loads[request_id] = (fence, block_ids[::-1])
        original(self, request_id)

    return _free_abandoned
