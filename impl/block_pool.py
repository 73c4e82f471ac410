"""KV cache blocks: who holds which, which are free, in which order, and what is found in which."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from impl.free_block_queue import FreeBlockQueue
from impl.prefix_cache import Parent, PrefixCache
from impl.request import Request
from spec.interface import SchedulerConfig


@frozen
class CacheHit:
    """Blocks that already hold the KV of a request's first tokens."""

    block_ids: tuple[int, ...] = ()
    num_free_blocks: int = 0
    """How many of them nobody holds now: adopting them uses up free blocks."""


NO_HIT = CacheHit()


class BlockPool:
    """The blocks 1, 2, …, their reference counts and, if enabled, the prefix cache."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.num_blocks = config.num_blocks
        self.block_size = config.block_size
        self.enable_caching = config.enable_prefix_caching
        self.uncached_blocks_first = config.uncached_blocks_first
        self.free_block_queue = FreeBlockQueue(config.num_blocks)
        # By block id.
        self.ref_cnt = [0] * (config.num_blocks + 1)
        self.prefix_cache = PrefixCache()
        # Taken from the free queue since the last `take_new_block_ids`.
        self.new_block_ids: list[int] = []

    # ---- what a request holds --------------------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.free_block_queue.num_free_blocks

    def compute_num_new_blocks(
        self, request: Request, num_tokens: int, hit: CacheHit = NO_HIT
    ) -> int:
        """Blocks that `request` lacks, beside its own and the hit ones, to hold `num_tokens`."""
        num_required_blocks = self.num_blocks_for(num_tokens)
        return max(num_required_blocks - len(request.block_ids) - len(hit.block_ids), 0)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return (num_tokens + self.block_size - 1) // self.block_size

    def allocate(self, request: Request, num_new_blocks: int, hit: CacheHit) -> list[int]:
        """Lets a request adopt hit blocks and take new ones; returns the new ones.

        Adopting first matters: a hit block that nobody holds stands in the free queue, and might be
        handed out. Precondition: `hit.num_free_blocks + num_new_blocks` blocks are free.
        """
        if hit.block_ids:
            self._adopt(request, hit)
        if num_new_blocks == 0:
            return []
        new_block_ids = self.get_new_blocks(num_new_blocks)
        request.block_ids.extend(new_block_ids)
        self._set_decode_until(request)
        return new_block_ids

    def free(self, request: Request) -> None:
        """Frees a request's blocks, last first, so that a prefix is evicted from its tail."""
        self.free_blocks(reversed(self.pop_blocks(request)))

    def pop_blocks(self, request: Request) -> list[int]:
        """Takes a request's blocks without giving them back."""
        block_ids = request.block_ids
        request.block_ids = []
        request.num_cached_blocks = 0
        request.last_chain = request.cache_key
        return block_ids

    def _adopt(self, request: Request, hit: CacheHit) -> None:
        self.touch(hit.block_ids)
        request.block_ids.extend(hit.block_ids)
        request.num_cached_blocks = len(hit.block_ids)
        request.last_chain = self.prefix_cache.get_chain(hit.block_ids[-1])

    def _set_decode_until(self, request: Request) -> None:
        num_blocks = len(request.block_ids)
        decode_until = num_blocks * self.block_size
        if self.enable_caching and request.num_cached_blocks < num_blocks:
            # The token that fills the first unpublished block publishes it.
            decode_until = (request.num_cached_blocks + 1) * self.block_size - 1
        # The token that a step samples must still find a place.
        request.decode_until = min(decode_until, request.max_num_tokens - 1)

    # ---- the prefix cache ------------------------------------------------------------------------

    def find_longest_cache_hit(self, request: Request) -> CacheHit:
        """Finds the blocks of the longest published prefix that leaves a token to compute."""
        if not self.enable_caching:
            return NO_HIT
        block_ids: list[int] = []
        num_free_blocks = 0
        parent: Parent = request.cache_key
        for end in range(self.block_size, request.num_tokens, self.block_size):
            token_ids = tuple(request.token_ids[end - self.block_size : end])
            block_id = self.prefix_cache.find(parent, token_ids)
            if block_id is None:
                break
            block_ids.append(block_id)
            num_free_blocks += self.ref_cnt[block_id] == 0
            parent = self.prefix_cache.get_chain(block_id)
        return CacheHit(tuple(block_ids), num_free_blocks)

    def cache_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Publishes the full blocks of the first `num_tokens` tokens, as far as they are known."""
        if not self.enable_caching:
            return
        num_full_blocks = min(num_tokens, request.num_tokens) // self.block_size
        if num_full_blocks <= request.num_cached_blocks:
            return
        for index in range(request.num_cached_blocks, num_full_blocks):
            start = index * self.block_size
            token_ids = tuple(request.token_ids[start : start + self.block_size])
            request.last_chain = self.prefix_cache.publish(
                request.last_chain, token_ids, request.block_ids[index]
            )
        request.num_cached_blocks = num_full_blocks
        self._set_decode_until(request)

    def reset_prefix_cache(self) -> bool:
        """Makes every block unfindable, unless one is held; returns whether it did."""
        if self.num_free_blocks < self.num_blocks:
            return False
        self.prefix_cache = PrefixCache()
        return True

    # ---- blocks ----------------------------------------------------------------------------------

    def touch(self, block_ids: Iterable[int]) -> None:
        """Adds a holder to blocks; one that nobody held leaves the free queue with its content."""
        for block_id in block_ids:
            if self.ref_cnt[block_id] == 0:
                self.free_block_queue.remove(block_id)
            self.ref_cnt[block_id] += 1

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Takes blocks from the head of the free queue, since they will be overwritten."""
        block_ids = self.free_block_queue.popleft_n(num_blocks)
        for block_id in block_ids:
            self.ref_cnt[block_id] += 1
            if self.enable_caching:
                self._maybe_evict_cached_block(block_id)
        self.new_block_ids.extend(block_ids)
        return block_ids

    def zero(self, block_ids: list[int]) -> None:
        """Counts blocks as just taken, since what was to be written there was not."""
        self.new_block_ids.extend(block_ids)

    def leave_unzeroed(self, num_blocks: int) -> None:
        """Does not count the last so many blocks as taken: they are written from elsewhere."""
        del self.new_block_ids[len(self.new_block_ids) - num_blocks :]

    def take_new_block_ids(self) -> list[int]:
        """Returns the blocks taken from the free queue since the last call, in order."""
        new_block_ids = self.new_block_ids
        self.new_block_ids = []
        return new_block_ids

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        """Removes a holder from blocks; those that are left without one become free, in order.

        Blocks with content go to the tail of the free queue, to be found as long as possible, the
        others to its head.
        """
        cached: list[int] = []
        uncached: list[int] = []
        for block_id in block_ids:
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0:
                goes_to_tail = not self.uncached_blocks_first or block_id in self.prefix_cache
                (cached if goes_to_tail else uncached).append(block_id)
        self.free_block_queue.prepend_n(uncached)
        self.free_block_queue.append_n(cached)

    def _maybe_evict_cached_block(self, block_id: int) -> None:
        """Makes a block unfindable if it is published."""
        if block_id in self.prefix_cache:
            self.prefix_cache.evict(block_id)
