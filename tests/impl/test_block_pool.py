"""Who holds which block, which come next, and what is found."""

from __future__ import annotations

from typing import Any

import pytest

from impl.block_pool import NO_HIT, BlockPool
from impl.request import Request
from spec.interface import SchedulerConfig
from tests.impl.support import MAX_MODEL_LEN, append, build


def make_pool(num_blocks: int = 6, **given: Any) -> BlockPool:
    """Builds a pool of blocks of two tokens with a prefix cache."""
    config = SchedulerConfig(
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_num_seqs=8,
        max_model_len=MAX_MODEL_LEN,
        block_size=2,
        num_blocks=num_blocks,
        **{"enable_prefix_caching": True, **given},
    )
    return BlockPool(config)


def compute(pool: BlockPool, request: Request) -> None:
    """Admits a request: it adopts its hit, takes what it lacks, and publishes all it can."""
    hit = pool.find_longest_cache_hit(request)
    num_new_blocks = pool.compute_num_new_blocks(request, request.num_tokens, hit)
    pool.allocate(request, num_new_blocks, hit)
    pool.cache_full_blocks(request, request.num_tokens)


def test_freed_blocks_with_content_are_handed_out_last() -> None:
    """Blocks without content go to the head of the queue, the others to its tail, last first."""
    pool, request = make_pool(), build(prompt=(1, 2, 3, 4, 5))
    compute(pool, request)
    pool.free(request)
    assert [3, 4, 5, 6, 2, 1] == list(pool.free_block_queue)


def test_older_dialects_free_everything_to_the_tail() -> None:
    """Without `uncached_blocks_first`, blocks are handed out in the order they were freed."""
    pool, request = make_pool(uncached_blocks_first=False), build(prompt=(1, 2, 3, 4, 5))
    compute(pool, request)
    pool.free(request)
    assert [4, 5, 6, 3, 2, 1] == list(pool.free_block_queue)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "expected"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)]
)
def test_hit_leaves_a_token_to_compute(num_prompt_tokens: int, expected: int) -> None:
    """A prompt that is wholly published is hit up to its last token but one, in whole blocks."""
    pool = make_pool()
    compute(pool, build(prompt=(1, 2, 3, 4, 5, 6)))
    hit = pool.find_longest_cache_hit(build(prompt=(1, 2, 3, 4, 5)[:num_prompt_tokens]))
    assert expected == len(hit.block_ids)


def test_hit_counts_the_blocks_that_nobody_holds() -> None:
    """Adopting a free block uses up a free block, adopting a held one does not."""
    pool = make_pool()
    short, long = build(prompt=(1, 2, 3)), build(prompt=(1, 2, 3, 4, 5))
    compute(pool, long)
    compute(pool, short)
    pool.free(long)
    hit = pool.find_longest_cache_hit(build(prompt=(1, 2, 3, 4, 9)))
    assert ((1, 2), 1) == (hit.block_ids, hit.num_free_blocks)


def test_hit_blocks_are_adopted_before_new_ones_are_taken() -> None:
    """A hit block at the head of the free queue is not handed out as a new one."""
    pool, first = make_pool(num_blocks=3), build(prompt=(1, 2, 3, 4))
    compute(pool, first)
    pool.free(first)
    pool.get_new_blocks(1)
    second = build(prompt=(1, 2, 9))
    compute(pool, second)
    assert [1, 2] == second.block_ids
    assert [0, 1, 1, 1] == pool.ref_cnt


def test_block_is_unfindable_once_handed_out() -> None:
    """A block that is taken anew loses its content, and the blocks after it cannot be reached."""
    pool, request = make_pool(num_blocks=2), build(prompt=(1, 2, 3, 4))
    compute(pool, request)
    pool.free(request)
    pool.get_new_blocks(2)
    assert NO_HIT == pool.find_longest_cache_hit(build(prompt=(1, 2, 3, 4)))
    assert [] == pool.prefix_cache.get_block_ids()


def test_salts_share_nothing() -> None:
    """A request finds blocks of its own salt only."""
    pool = make_pool()
    compute(pool, build(prompt=(1, 2, 3), cache_salt="a"))
    for salt, expected in (("a", 1), ("b", 0), (None, 0)):
        hit = pool.find_longest_cache_hit(build(prompt=(1, 2, 3), cache_salt=salt))
        assert expected == len(hit.block_ids)


def test_only_known_tokens_are_published() -> None:
    """A block whose last token is still being sampled waits for it."""
    pool, request = make_pool(), build(prompt=(1, 2, 3))
    pool.allocate(request, 2, NO_HIT)
    pool.cache_full_blocks(request, 4)
    assert [1] == pool.prefix_cache.get_block_ids()
    append(request, 4)
    pool.cache_full_blocks(request, 4)
    assert [1, 2] == pool.prefix_cache.get_block_ids()


def test_taken_blocks_are_told_once() -> None:
    """The worker zeroes a block when it is taken from the free queue, not when it is adopted."""
    pool, request = make_pool(), build(prompt=(1, 2, 3))
    compute(pool, request)
    assert [1, 2] == pool.take_new_block_ids()
    compute(pool, build(prompt=(1, 2, 3)))
    assert [3] == pool.take_new_block_ids()
    assert [] == pool.take_new_block_ids()
