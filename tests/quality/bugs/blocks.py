"""Bugs in the block pool: blocks lost, shared or handed out wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.quality.planting import Method, bug


@bug(
    target="impl.block_pool:BlockPool.touch",
    setting="prefix",
    caught_by="ref_cnt_counts_holders",
    source="xLLM #828, vLLM #11562",
)
def a_shared_block_has_one_holder(original: Method) -> Method:
    """A hit on a block that somebody holds does not add a holder."""

    def touch(self: Any, block_ids: Iterable[int]) -> None:
        original(self, [name for name in block_ids if self.ref_cnt[name] == 0])

    return touch


@bug(
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


@bug(
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


@bug(
    target="impl.free_block_queue:FreeBlockQueue.prepend_n",
    setting="plain",
    caught_by="blocks_are_conserved",
)
def a_freed_block_gets_lost(original: Method) -> Method:
    """Of three blocks that become free together, one does not reach the free queue."""

    def prepend_n(self: Any, block_ids: list[int]) -> None:
        original(self, block_ids[:2])

    return prepend_n


@bug(
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


@bug(
    target="impl.scheduler:FastScheduler._grant",
    setting="plain",
    caught_by="block_tables_are_exact",
    source="vLLM #10730",
)
def a_block_is_taken_ahead(original: Method) -> Method:
    """A request that needs blocks takes one more, if there is one."""

    def _grant(self: Any, request: Any, num_new_tokens: int, num_new_blocks: int, hit: Any) -> Any:
        if 0 < num_new_blocks < self.block_pool.num_free_blocks:
            num_new_blocks += 1
        return original(self, request, num_new_tokens, num_new_blocks, hit)

    return _grant


@bug(
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


@bug(
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


@bug(
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
