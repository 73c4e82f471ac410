"""KV cache blocks: who holds which, which are free in which order, which are found by content.

Sources: vllm/v1/core/block_pool.py: BlockPool, vllm/v1/core/kv_cache_manager.py.
"""

from __future__ import annotations

from typing import Protocol

from spec.interface import BlockContent, SchedulerConfig
from spec.request import Request


class HoldsBlocks(Protocol):
    """A request, or a block table that one has left behind."""

    block_ids: list[int]
    num_blocks: int


class CacheHit:
    """Blocks that already hold the KV of a request's first tokens."""

    __slots__ = ("block_ids", "num_blocks", "num_free_blocks")

    def __init__(self, block_ids: list[int], num_blocks: int, num_free_blocks: int) -> None:
        self.block_ids = block_ids
        self.num_blocks = num_blocks
        # How many of them nobody holds now: adopting them uses up free blocks.
        self.num_free_blocks = num_free_blocks


NO_HIT = CacheHit([], 0, 0)


class CountedBlockPool:
    """Knows how many blocks are free, but not which: all that decisions depend on."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free_blocks = num_blocks

    def find_longest_cache_hit(self, request: Request) -> CacheHit:
        """Finds nothing."""
        return NO_HIT

    def allocate(self, request: Request, hit: CacheHit, num_new_blocks: int) -> list[int]:
        """Counts the blocks over to the request."""
        self.num_free_blocks -= hit.num_free_blocks + num_new_blocks
        request.num_blocks += hit.num_blocks + num_new_blocks
        return []

    def cache_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Publishes nothing."""

    def free(self, request: HoldsBlocks) -> None:
        """Counts a request's blocks back."""
        self.num_free_blocks += request.num_blocks
        request.num_blocks = 0

    def reset_prefix_cache(self) -> bool:
        """Forgets nothing, since nothing is published; fails all the same if a block is held."""
        return self.num_free_blocks == self.num_blocks

    def zero(self, block_ids: list[int]) -> None:
        """Notes nothing, since no block has a name."""

    def leave_unzeroed(self, block_ids: list[int]) -> None:
        """Notes nothing, since no block has a name."""

    def take_new_block_ids(self) -> list[int]:
        """Returns nothing, since no block has a name."""
        return []


class BlockPool(CountedBlockPool):
    """A pool of named blocks with reference counts and, if enabled, a prefix cache."""

    def __init__(
        self, num_blocks: int, block_size: int, enable_caching: bool, uncached_blocks_first: bool
    ) -> None:
        super().__init__(num_blocks)
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.uncached_blocks_first = uncached_blocks_first
        # The next to be handed out comes first. Block 0 is vLLM's null block, so ours begin at 1.
        self.free_block_queue: list[int] = list(range(1, num_blocks + 1))
        self.ref_cnt: dict[int, int] = dict.fromkeys(self.free_block_queue, 0)
        # What each published block is found by.
        self.block_hash: dict[int, BlockContent] = {}
        # The blocks published under a content, oldest first. Content is not de-duplicated.
        self.cached_blocks: dict[BlockContent, list[int]] = {}
        # Taken from the free queue since the last `take_new_block_ids`.
        self.new_block_ids: list[int] = []
        # While a table is freed: its blocks that went to the front of the free queue.
        self.num_put_first = 0

    def find_longest_cache_hit(self, request: Request) -> CacheHit:
        """Finds the cached blocks of the longest prefix that leaves a token to compute."""
        if not self.enable_caching:
            return NO_HIT
        block_ids: list[int] = []
        for end in range(self.block_size, request.num_tokens, self.block_size):
            candidates = self.cached_blocks.get((request.cache_key, request.token_ids[:end]))
            if candidates is None:
                break
            block_ids.append(candidates[0])
        num_free = sum(1 for block_id in block_ids if self.ref_cnt[block_id] == 0)
        return CacheHit(block_ids, len(block_ids), num_free)

    def allocate(self, request: Request, hit: CacheHit, num_new_blocks: int) -> list[int]:
        """Adopts the hit blocks, takes new ones from the head of the free queue; returns those.

        Touching first matters: a hit block that nobody holds stands in the free queue, and might be
        handed out.
        Precondition: `hit.num_free_blocks + num_new_blocks` blocks are free.
        """
        for block_id in hit.block_ids:
            self._touch(block_id)
        new_block_ids = [self._take_new_block() for _ in range(num_new_blocks)]
        request.block_ids = request.block_ids + hit.block_ids + new_block_ids
        request.num_blocks = len(request.block_ids)
        self.num_free_blocks = len(self.free_block_queue)
        return new_block_ids

    def cache_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Publishes the full blocks of the first `num_tokens` tokens, those not yet published."""
        if not self.enable_caching:
            return
        for index in range(num_tokens // self.block_size):
            block_id = request.block_ids[index]
            if block_id not in self.block_hash:
                content = (request.cache_key, request.token_ids[: (index + 1) * self.block_size])
                self.block_hash[block_id] = content
                self.cached_blocks.setdefault(content, []).append(block_id)

    def free(self, request: HoldsBlocks) -> None:
        """Frees a request's blocks, last block first, so that a prefix is evicted from its tail."""
        self.num_put_first = 0
        for block_id in reversed(request.block_ids):
            self._release(block_id)
        request.block_ids = []
        request.num_blocks = 0
        self.num_free_blocks = len(self.free_block_queue)

    def reset_prefix_cache(self) -> bool:
        """Makes every block unfindable, unless one is held, whose content goes on being needed."""
        if self.num_free_blocks < self.num_blocks:
            return False
        self.block_hash = {}
        self.cached_blocks = {}
        return True

    def zero(self, block_ids: list[int]) -> None:
        """Counts blocks as just taken: what was to be written there was not."""
        self.new_block_ids += block_ids

    def leave_unzeroed(self, block_ids: list[int]) -> None:
        """Does not count as taken what somebody else writes meanwhile: the last that were."""
        del self.new_block_ids[len(self.new_block_ids) - len(block_ids) :]

    def take_new_block_ids(self) -> list[int]:
        """Returns the blocks taken from the free queue since the last call, in order."""
        new_block_ids = self.new_block_ids
        self.new_block_ids = []
        return new_block_ids

    def _touch(self, block_id: int) -> None:
        """Adds a holder; a block that nobody held leaves the free queue and keeps its content."""
        if self.ref_cnt[block_id] == 0:
            self.free_block_queue.remove(block_id)
        self.ref_cnt[block_id] += 1

    def _release(self, block_id: int) -> None:
        """Takes a holder away; a block that nobody holds any more joins the free queue.

        In some dialects one that nobody can find goes before all that somebody might.
        """
        self.ref_cnt[block_id] -= 1
        if self.ref_cnt[block_id] == 0:
            if self.uncached_blocks_first and block_id not in self.block_hash:
                self.free_block_queue.insert(self.num_put_first, block_id)
                self.num_put_first += 1
            else:
                self.free_block_queue.append(block_id)

    def _take_new_block(self) -> int:
        block_id = self.free_block_queue.pop(0)
        self._evict(block_id)
        self.ref_cnt[block_id] += 1
        self.new_block_ids.append(block_id)
        return block_id

    def _evict(self, block_id: int) -> None:
        """Makes a block unfindable: its content is about to be overwritten."""
        content = self.block_hash.pop(block_id, None)
        if content is not None:
            self.cached_blocks[content].remove(block_id)
            if not self.cached_blocks[content]:
                del self.cached_blocks[content]


def cdiv(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    return (a + b - 1) // b


def make_block_pool(config: SchedulerConfig) -> BlockPool:
    """Builds the pool of identities."""
    return BlockPool(
        config.num_blocks,
        config.block_size,
        config.enable_prefix_caching,
        config.uncached_blocks_first,
    )
