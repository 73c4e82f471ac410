"""Bugs in the block pool: blocks lost, shared or handed out wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method


@mutation(
    target="impl.block_pool:BlockPool.touch",
    setting="prefix",
    caught_by="ref_cnt_counts_holders",
)
def a_shared_block_has_one_holder(original: Method) -> Method:
    """A hit on a block that somebody holds does not add a holder."""

    def touch(self: Any, block_ids: Iterable[int]) -> None:
        original(self, [name for name in block_ids if self.ref_cnt[name] == 0])

    return touch


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="prefix",
    caught_by="ref_cnt_counts_holders",
    source="vLLM #11562",
)
def a_refused_request_pins_its_hit(original: Method) -> Method:
    """Hit blocks get a holder before room is looked for, and keep it if there is none."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        has_room = bool(original(self, request, num_tokens, hit))
        if not has_room:
            self.block_pool.touch(hit.block_ids)
        return has_room

    return _has_room_for


@mutation(
    target="impl.block_pool:BlockPool.touch",
    setting="prefix",
    caught_by="no_block_is_free_and_held",
)
def a_hit_block_stays_free(original: Method) -> Method:
    """A free block that is hit gets a holder, and stays in the free queue."""

    def touch(self: Any, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.ref_cnt[block_id] += 1

    return touch


@mutation(
    target="impl.free_block_queue:FreeBlockQueue.prepend_n",
    setting="plain",
    changes=("num_blocks=64",),
    caught_by="blocks_are_conserved",
)
def a_freed_block_gets_lost(original: Method) -> Method:
    """Of three blocks that become free together, one does not reach the free queue."""

    def prepend_n(self: Any, block_ids: list[int]) -> None:
        original(self, block_ids[:2])

    return prepend_n


@mutation(
    target="impl.block_pool:BlockPool.free",
    setting="plain",
    caught_by="blocks_are_conserved",
)
def free_forgets_a_block(original: Method) -> Method:
    """The last block of a request is not given back."""

    def free(self: Any, request: Any) -> None:
        request.block_ids = request.block_ids[:-1]
        original(self, request)

    return free


@mutation(
    target="impl.scheduler:FastScheduler._grant",
    setting="plain",
    caught_by="block_tables_are_exact",
)
def a_block_is_taken_ahead(original: Method) -> Method:
    """A request that needs blocks takes one more, if there is one."""

    def _grant(self: Any, request: Any, num_new_tokens: int, num_new_blocks: int, hit: Any) -> Any:
        if 0 < num_new_blocks < self.block_pool.num_free_blocks:
            num_new_blocks += 1
        return original(self, request, num_new_tokens, num_new_blocks, hit)

    return _grant


@mutation(
    target="impl.block_pool:BlockPool.take_new_block_ids",
    setting="plain",
    caught_by="new_blocks_are_zeroed",
)
def a_new_block_is_not_zeroed(original: Method) -> Method:
    """The first block taken in a step is not named for zeroing."""

    def take_new_block_ids(self: Any) -> list[int]:
        new_block_ids: list[int] = original(self)
        return new_block_ids[1:]

    return take_new_block_ids


@mutation(
    target="impl.block_pool:BlockPool.allocate",
    setting="prefix",
    caught_by="block_tables_are_exact",
    source="vLLM #10507",
)
def a_hit_block_is_handed_out_as_new(original: Method) -> Method:
    """New blocks are taken before the hit ones are touched, and may be among them."""

    def allocate(self: Any, request: Any, num_new_blocks: int, hit: Any) -> list[int]:
        new_block_ids: list[int] = self.get_new_blocks(num_new_blocks)
        for block_id in hit.block_ids:
            if self.ref_cnt[block_id] == 0:
                self.free_block_queue.remove(block_id)
            self.ref_cnt[block_id] += 1
        request.block_ids.extend((*hit.block_ids, *new_block_ids))
        return new_block_ids

    return allocate


@mutation(
    target="impl.block_pool:BlockPool.get_new_blocks",
    setting="plain",
    caught_by="no_step_overwrites_kv",
)
def two_requests_take_one_block(original: Method) -> Method:
    """A request is given the block that another one has taken in the same step."""

    def get_new_blocks(self: Any, num_blocks: int) -> list[int]:
        taken = [block_id for block_id in self.new_block_ids if self.ref_cnt[block_id] > 0][-1:]
        for block_id in taken:
            self.ref_cnt[block_id] += 1
        return [*taken, *original(self, num_blocks - len(taken))]

    return get_new_blocks


@mutation(
    target="impl.block_pool:BlockPool.touch",
    setting="prefix",
    caught_by="ref_cnt_counts_holders",
    source="mini-sglang #46",
)
def the_last_hit_block_is_not_held(original: Method) -> Method:
    """Of a hit all blocks but the last get a holder, so that one may be evicted while in use."""

    def touch(self: Any, block_ids: Iterable[int]) -> None:
        original(self, [*block_ids][:-1])

    return touch


@mutation(
    target="impl.block_pool:BlockPool.cache_full_blocks",
    setting="prefix",
    caught_by="ref_cnt_counts_holders",
    source="mini-sglang #142",
)
def a_duplicate_is_freed_while_held(original: Method) -> Method:
    """A block whose content is published already is freed, and its request goes on reading it."""

    def cache_full_blocks(self: Any, request: Any, num_tokens: int) -> None:
        first = request.num_cached_blocks
        original(self, request, num_tokens)
        for block_id in request.block_ids[first : request.num_cached_blocks]:
            content = self.prefix_cache.get_content(block_id)
            others = [name for name in self.prefix_cache.get_block_ids() if name != block_id]
            if content in map(self.prefix_cache.get_content, others):
                self.free_blocks([block_id])

    return cache_full_blocks


@mutation(
    target="impl.block_pool:BlockPool.free_blocks",
    setting="prefix",
    caught_by="ref_cnt_counts_holders",
    source="xLLM #828",
)
def the_cache_counts_as_a_holder(original: Method) -> Method:
    """A block that can be found is never free: the cache is taken for the last who holds it."""

    def free_blocks(self: Any, block_ids: Iterable[int]) -> None:
        original(self, [name for name in block_ids if name not in self.prefix_cache])

    return free_blocks


@mutation(
    target="impl.scheduler:FastScheduler._make_room_for",
    setting="deep-first-chunk",
    caught_by="blocks_are_conserved",
    source="mini-sglang #80",
)
def blocks_are_taken_for_tokens(original: Method) -> Method:
    """Room is made for as many tokens as blocks are needed, so for too few blocks."""

    def _make_room_for(self: Any, request: Any, num_new_blocks: int) -> bool:
        num_blocks = -(-num_new_blocks // self.config.block_size)
        return bool(original(self, request, num_blocks))

    return _make_room_for


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="prefix",
    changes=("num_blocks=3", "max_model_len=6"),
    caught_by="ref_cnt_counts_holders",
    source="LightLLM #1201",
)
def a_refused_request_gives_back_what_it_never_took(original: Method) -> Method:
    """A request that is refused takes a holder from each block that it would have hit."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        has_room = bool(original(self, request, num_tokens, hit))
        if not has_room:
            self.block_pool.free_blocks(hit.block_ids)
        return has_room

    return _has_room_for


@mutation(
    target="impl.free_block_queue:FreeBlockQueue.remove",
    setting="prefix",
    caught_by="blocks_are_conserved",
    source="TRT-LLM #12834",
)
def a_hit_block_still_counts_as_free(original: Method) -> Method:
    """A block that leaves the middle of the free queue is still counted as one of it."""

    def remove(self: Any, block_id: int) -> None:
        original(self, block_id)
        self.num_free_blocks += 1

    return remove


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="deep-first-chunk",
    caught_by="blocks_are_conserved",
    source="LightLLM #1057",
)
def a_resumed_request_needs_no_room(original: Method) -> Method:
    """A request that comes back from a preemption is admitted whether it fits or not."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        return request.num_preemptions > 0 or bool(original(self, request, num_tokens, hit))

    return _has_room_for
