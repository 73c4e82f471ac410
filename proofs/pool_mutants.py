"""Wrong versions of our engine's block pool, for the theorems that compare it with the spec's."""

from __future__ import annotations

from typing import Any

from checkers.planting import Method
from impl.block_pool import NO_HIT
from proofs.mutants import mutant

QUEUE = "impl.free_block_queue:FreeBlockQueue"
POOL = "impl.block_pool:BlockPool"
CACHE = "impl.prefix_cache:PrefixCache"

# ---- the ring ------------------------------------------------------------------------------------


@mutant(f"{QUEUE}._link")
def links_go_one_way(original: Method) -> Method:
    """The block behind does not learn which one is before it now."""

    def _link(self: Any, left: Any, right: Any) -> None:
        self._next[left] = right

    return _link


@mutant(f"{QUEUE}.remove")
def who_leaves_is_remembered_behind(original: Method) -> Method:
    """The block behind one that leaves still points back to it."""

    def remove(self: Any, block_id: Any) -> None:
        self._next[self._prev[block_id]] = self._next[block_id]
        self.num_free_blocks -= 1

    return remove


@mutant(f"{QUEUE}.popleft_n")
def the_new_head_points_back(original: Method) -> Method:
    """When blocks are taken, the new head still points back to the last of them."""

    def popleft_n(self: Any, num_blocks: Any) -> Any:
        self._link = self._next.__setitem__
        try:
            return original(self, num_blocks)
        finally:
            del self._link

    return popleft_n


@mutant(f"{QUEUE}._insert")
def blocks_that_join_are_not_counted(original: Method) -> Method:
    """The count stays what it was when blocks join."""

    def _insert(self: Any, left: Any, block_ids: Any) -> None:
        num_free_blocks = self.num_free_blocks
        original(self, left, block_ids)
        self.num_free_blocks = num_free_blocks

    return _insert


@mutant(f"{QUEUE}.append_n")
def the_tail_is_overtaken(original: Method) -> Method:
    """Blocks that should join behind the tail join before the head."""

    def append_n(self: Any, block_ids: Any) -> None:
        self.prepend_n(block_ids)

    return append_n


# ---- the pool ------------------------------------------------------------------------------------


@mutant(f"{POOL}.touch")
def our_hit_block_stays_free(original: Method) -> Method:
    """A hit block that nobody held stands in the free queue still."""

    def touch(self: Any, block_ids: Any) -> None:
        for block_id in block_ids:
            self.ref_cnt[block_id] += 1

    return touch


@mutant(f"{POOL}.allocate")
def our_new_blocks_are_taken_before_hits(original: Method) -> Method:
    """New blocks are taken first, and one of them may be a hit block."""

    def allocate(self: Any, request: Any, num_new_blocks: Any, hit: Any) -> Any:
        new_block_ids = original(self, request, num_new_blocks, NO_HIT)
        original(self, request, 0, hit)
        return new_block_ids

    return allocate


@mutant(f"{POOL}.free")
def our_blocks_are_freed_first_block_first(original: Method) -> Method:
    """A prefix is evicted from its head."""

    def free(self: Any, request: Any) -> None:
        request.block_ids.reverse()
        original(self, request)

    return free


@mutant(f"{POOL}.free")
def a_freed_request_of_ours_seems_published(original: Method) -> Method:
    """A request that lost its blocks still counts those that were published."""

    def free(self: Any, request: Any) -> None:
        num_cached_blocks = request.num_cached_blocks
        original(self, request)
        request.num_cached_blocks = num_cached_blocks

    return free


@mutant(f"{POOL}.free_blocks")
def our_cached_blocks_go_first(original: Method) -> Method:
    """Freed blocks with content go to the head of the free queue, too."""

    def free_blocks(self: Any, block_ids: Any) -> None:
        queue = self.free_block_queue
        queue.append_n = queue.prepend_n
        original(self, block_ids)
        del queue.append_n

    return free_blocks


@mutant(f"{POOL}._maybe_evict_cached_block")
def our_block_is_found_after_it_is_taken(original: Method) -> Method:
    """A block that is handed out as new can still be found by what it held."""

    def _maybe_evict_cached_block(self: Any, block_id: Any) -> None:
        pass

    return _maybe_evict_cached_block


@mutant(f"{POOL}.find_longest_cache_hit")
def our_salts_are_ignored(original: Method) -> Method:
    """What was published under one salt is found under another."""

    def find_longest_cache_hit(self: Any, request: Any) -> Any:
        cache_key, request.cache_key = request.cache_key, None
        hit = original(self, request)
        request.cache_key = cache_key
        return hit

    return find_longest_cache_hit


@mutant(f"{POOL}.take_new_block_ids")
def our_taken_blocks_are_told_twice(original: Method) -> Method:
    """What was taken from the free queue is told again at every step."""

    def take_new_block_ids(self: Any) -> Any:
        return self.new_block_ids

    return take_new_block_ids


@mutant(f"{POOL}._set_decode_until")
def our_decode_runs_past_a_publication(original: Method) -> Method:
    """A request may decode up to the end of its blocks, published or not."""

    def _set_decode_until(self: Any, request: Any) -> None:
        enable_caching, self.enable_caching = self.enable_caching, False
        original(self, request)
        self.enable_caching = enable_caching

    return _set_decode_until


@mutant(f"{POOL}._set_decode_until")
def our_decode_leaves_no_place_to_sample(original: Method) -> Method:
    """A request may decode up to its very last token."""

    def _set_decode_until(self: Any, request: Any) -> None:
        request.max_num_tokens += 1
        original(self, request)
        request.max_num_tokens -= 1

    return _set_decode_until


# ---- the prefix cache ----------------------------------------------------------------------------


@mutant(f"{CACHE}.find")
def our_newest_publication_is_hit(original: Method) -> Method:
    """Of several blocks with one content, the one published last is found."""

    def find(self: Any, parent: Any, token_ids: Any) -> Any:
        number = self._numbers.get((parent, token_ids))
        return None if number is None else next(reversed(self._chains[number].block_ids), None)

    return find


@mutant(f"{CACHE}.evict")
def our_duplicates_are_forgotten_together(original: Method) -> Method:
    """When one of several blocks with one content is evicted, the others cannot be found either."""

    def evict(self: Any, block_id: Any) -> None:
        chain = self._chains[self._chain_of_block[block_id]]
        original(self, block_id)
        chain.block_ids.clear()

    return evict
