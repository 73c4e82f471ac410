"""The block pool: who holds which block, in which order the free ones stand, what can be found."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.block_pool import NO_HIT, BlockPool, CountedBlockPool
from spec.interface import BlockContent
from spec.request import Request
from tests.spec.support import make_request

BLOCK_SIZE = 2

tokens = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)
"""Tokens of a request; two values only, so that prefixes are shared and repeated."""

Operation = tuple[str, int, tuple[int, ...], str | None]

operations = st.lists(
    st.tuples(
        st.sampled_from(("admit", "grow", "publish", "free")),
        st.integers(0, 9),
        tokens,
        st.sampled_from((None, "salt")),
    ),
    max_size=30,
)


def make_pool(
    num_blocks: int = 8, *, caching: bool = True, uncached_first: bool = True
) -> BlockPool:
    """Builds a pool of small blocks."""
    return BlockPool(num_blocks, BLOCK_SIZE, caching, uncached_first)


def make_holder(
    pool: CountedBlockPool, token_ids: tuple[int, ...], cache_salt: str | None = None
) -> Request:
    """A request that holds blocks for all its tokens, cached ones first; they must fit."""
    request = Request(make_request("A", token_ids, cache_salt=cache_salt))
    hit = pool.find_longest_cache_hit(request)
    pool.allocate(request, hit, -(-len(token_ids) // BLOCK_SIZE) - hit.num_blocks)
    return request


class Holders:
    """Requests that hold blocks of a pool; does one operation at a time, if it is allowed."""

    def __init__(self, pool: CountedBlockPool) -> None:
        self.pool = pool
        self.requests: list[Request] = []

    def do(self, operation: Operation) -> None:
        """Does what the scheduler might do next."""
        name, number, token_ids, cache_salt = operation
        if name == "admit":
            self.admit(token_ids, cache_salt)
        elif self.requests:
            request = self.requests[number % len(self.requests)]
            if name == "grow" and self.pool.num_free_blocks > 0:
                request.token_ids = (*request.token_ids, *token_ids[:BLOCK_SIZE])
                request.num_output_tokens = len(request.token_ids) - request.num_prompt_tokens
                self.pool.allocate(request, NO_HIT, 1)
            if name == "publish":
                limit = min(request.num_tokens, request.num_blocks * BLOCK_SIZE)
                self.pool.cache_full_blocks(request, min(number, limit))
            if name == "free":
                self.requests.remove(request)
                self.pool.free(request)

    def admit(self, token_ids: tuple[int, ...], cache_salt: str | None) -> None:
        """Gives a new request its hit and the blocks that its tokens lack, if they are there."""
        request = Request(make_request("A", token_ids, cache_salt=cache_salt))
        hit = self.pool.find_longest_cache_hit(request)
        num_new_blocks = -(-len(token_ids) // BLOCK_SIZE) - hit.num_blocks
        if num_new_blocks + hit.num_free_blocks <= self.pool.num_free_blocks:
            self.pool.allocate(request, hit, num_new_blocks)
            self.requests.append(request)


@given(operations, st.booleans(), st.booleans())
def test_every_block_is_free_or_held(
    steps: list[Operation], caching: bool, uncached_first: bool
) -> None:
    """A block is in the free queue once, or in as many tables as its ref_cnt says, never both."""
    pool = make_pool(caching=caching, uncached_first=uncached_first)
    holders = Holders(pool)
    for step in steps:
        holders.do(step)
        held = Counter(block_id for request in holders.requests for block_id in request.block_ids)
        assert {block_id: held[block_id] for block_id in range(1, 9)} == pool.ref_cnt
        assert sorted(set(range(1, 9)) - set(held)) == sorted(pool.free_block_queue)
        assert len(pool.free_block_queue) == pool.num_free_blocks
        for request in holders.requests:
            assert len(request.block_ids) == request.num_blocks


@given(operations)
def test_what_is_found_is_what_was_published(steps: list[Operation]) -> None:
    """A block's content is its salt and all tokens up to its end, and the two directions agree."""
    pool = make_pool()
    holders = Holders(pool)
    for step in steps:
        holders.do(step)
        by_content: dict[BlockContent, set[int]] = {}
        for block_id, content in pool.block_hash.items():
            by_content.setdefault(content, set()).add(block_id)
        assert by_content == {content: set(ids) for content, ids in pool.cached_blocks.items()}
        for request in holders.requests:
            for index, block_id in enumerate(request.block_ids):
                expected = (request.cache_key, request.token_ids[: (index + 1) * BLOCK_SIZE])
                assert expected == pool.block_hash.get(block_id, expected)


@given(operations, tokens, st.sampled_from((None, "salt")))
def test_longest_cache_hit(
    steps: list[Operation], token_ids: tuple[int, ...], cache_salt: str | None
) -> None:
    """Fact 14: the hit is the longest run of cached blocks that leaves a token to compute."""
    pool = make_pool()
    holders = Holders(pool)
    for step in steps:
        holders.do(step)
    ends = range(BLOCK_SIZE, len(token_ids), BLOCK_SIZE)
    cached = [(cache_salt, token_ids[:end]) in pool.block_hash.values() for end in ends]
    num_blocks = (*cached, False).index(False)

    hit = pool.find_longest_cache_hit(Request(make_request("A", token_ids, cache_salt=cache_salt)))
    assert (num_blocks, num_blocks) == (hit.num_blocks, len(hit.block_ids))
    assert num_blocks <= (len(token_ids) - 1) // BLOCK_SIZE
    assert [(cache_salt, token_ids[:end]) for end in ends[:num_blocks]] == [
        pool.block_hash[block_id] for block_id in hit.block_ids
    ]
    assert (
        sum(block_id in pool.free_block_queue for block_id in hit.block_ids) == hit.num_free_blocks
    )


def test_hits_are_touched_before_new_blocks_are_taken() -> None:
    """Fact 19: a free hit block that stands at the head is adopted, and not handed out as new."""
    pool = make_pool(2)
    old = make_holder(pool, (0, 0, 1))
    pool.cache_full_blocks(old, 2)
    pool.free(old)
    assert [2, 1] == pool.free_block_queue
    pool.free_block_queue.reverse()
    new = make_holder(pool, (0, 0, 7))
    assert [1, 2] == new.block_ids
    assert {1: (None, (0, 0))} == pool.block_hash


def test_new_blocks_come_from_the_head() -> None:
    """Fact 19: new blocks are taken from the head of the free queue, in its order."""
    pool = make_pool(4)
    pool.free_block_queue = [3, 1, 4, 2]
    assert [3, 1] == make_holder(pool, (0, 1, 2)).block_ids
    assert [4, 2] == pool.free_block_queue


def test_taking_a_block_erases_its_hash() -> None:
    """Fact 19: a block that is handed out is no longer found; the others still are."""
    pool = make_pool(2)
    old = make_holder(pool, (0, 0, 1, 1))
    pool.cache_full_blocks(old, 4)
    pool.free(old)
    # Last block first, so that the tail of the prefix goes and its head stays.
    assert [2] == make_holder(pool, (5,)).block_ids
    assert {1: (None, (0, 0))} == pool.block_hash
    assert {(None, (0, 0)): [1]} == pool.cached_blocks


@given(operations, st.integers(0, 9), st.booleans())
def test_free_order(steps: list[Operation], number: int, uncached_first: bool) -> None:
    """Fact 20: last block first; without a hash to the head in that order, hashed ones to the tail.

    In older releases all go to the tail; a block that someone else holds goes nowhere.
    """
    pool = make_pool(uncached_first=uncached_first)
    holders = Holders(pool)
    for step in steps:
        holders.do(step)
    if not holders.requests:
        return
    request = holders.requests[number % len(holders.requests)]
    before = list(pool.free_block_queue)
    released = [b for b in reversed(request.block_ids) if pool.ref_cnt[b] == 1]
    to_the_head = [b for b in released if uncached_first and b not in pool.block_hash]
    to_the_tail = [b for b in released if b not in to_the_head]
    pool.free(request)
    assert to_the_head + before + to_the_tail == pool.free_block_queue
    assert ([], 0) == (request.block_ids, request.num_blocks)


def test_content_is_not_deduplicated() -> None:
    """Fact 21: several blocks may carry one hash, and the oldest publication is hit."""
    pool = make_pool()
    twins = [Request(make_request("A", (0, 0, 1, 1))) for _ in range(2)]
    for request in twins:
        pool.allocate(request, NO_HIT, 2)
    # The second publishes first.
    for request in reversed(twins):
        pool.cache_full_blocks(request, 4)
    assert {(None, (0, 0)): [3, 1], (None, (0, 0, 1, 1)): [4, 2]} == pool.cached_blocks
    assert [3] == pool.find_longest_cache_hit(twins[0]).block_ids


def test_exact_multiples_make_duplicates() -> None:
    """Fact 21: of a prompt that fills its blocks the last is never hit but published again."""
    pool = make_pool()
    for _ in range(2):
        pool.cache_full_blocks(make_holder(pool, (0, 0, 1, 1)), 4)
    assert {(None, (0, 0)): [1], (None, (0, 0, 1, 1)): [2, 3]} == pool.cached_blocks


def test_next_oldest_is_hit_after_an_eviction() -> None:
    """Fact 21: when the oldest copy is handed out, the next one is hit."""
    pool = make_pool(4)
    holders = [Request(make_request("A", (0, 0, 1))) for _ in range(2)]
    for request in holders:
        pool.allocate(request, NO_HIT, 1)
        pool.cache_full_blocks(request, 2)
    pool.free(holders[0])
    assert [1] == pool.find_longest_cache_hit(holders[0]).block_ids
    make_holder(pool, (5, 5, 5, 5, 5, 5))
    assert [2] == pool.find_longest_cache_hit(holders[0]).block_ids


def test_publishing_again_changes_nothing() -> None:
    """A block is published once, under the content it had then; only full blocks are."""
    pool = make_pool()
    request = make_holder(pool, (0, 0, 1, 1, 2))
    pool.cache_full_blocks(request, 3)
    once = dict(pool.block_hash)
    assert {1: (None, (0, 0))} == once
    pool.cache_full_blocks(request, 3)
    assert once == pool.block_hash
    pool.cache_full_blocks(request, 5)
    assert {**once, 2: (None, (0, 0, 1, 1))} == pool.block_hash


def test_salts_never_share() -> None:
    """Requests with different salts never hit each other's blocks; those with the same do."""
    pool = make_pool()
    pool.cache_full_blocks(make_holder(pool, (0, 0, 1), "salt"), 3)
    for cache_salt, block_ids in ((None, []), ("other", []), ("salt", [1])):
        request = Request(make_request("A", (0, 0, 1), cache_salt=cache_salt))
        assert block_ids == pool.find_longest_cache_hit(request).block_ids


def test_a_prefix_means_all_tokens_before() -> None:
    """Equal tokens behind different ones are not the same content."""
    pool = make_pool()
    pool.cache_full_blocks(make_holder(pool, (0, 0, 1, 1, 2)), 5)
    request = Request(make_request("A", (9, 9, 1, 1, 2)))
    assert [] == pool.find_longest_cache_hit(request).block_ids


def test_nothing_is_published_or_found_without_caching() -> None:
    """With the prefix cache off the pool publishes nothing and finds nothing."""
    pool = make_pool(caching=False)
    pool.cache_full_blocks(make_holder(pool, (0, 0, 1)), 3)
    assert ({}, {}) == (pool.block_hash, pool.cached_blocks)
    assert NO_HIT is pool.find_longest_cache_hit(Request(make_request("A", (0, 0, 1))))


def test_new_block_ids_are_taken_once() -> None:
    """`take_new_block_ids` names the blocks taken since the last call, freed or not."""
    pool = make_pool()
    request = make_holder(pool, (0, 1, 2))
    pool.free(request)
    make_holder(pool, (3,))
    assert [1, 2, 2] == pool.take_new_block_ids()
    assert [] == pool.take_new_block_ids()


def test_adopted_blocks_are_not_new() -> None:
    """A hit block keeps its content, so it is not among the new ones."""
    pool = make_pool()
    pool.cache_full_blocks(make_holder(pool, (0, 0, 1)), 2)
    pool.take_new_block_ids()
    assert [1, 3] == make_holder(pool, (0, 0, 2)).block_ids
    assert [3] == pool.take_new_block_ids()


def test_block_tables_are_replaced_not_changed() -> None:
    """A table that was handed out stays as it was when the request grows or is freed."""
    pool = make_pool()
    request = make_holder(pool, (0, 1, 2))
    table = request.block_ids
    pool.allocate(request, NO_HIT, 1)
    pool.free(request)
    assert [1, 2] == table


@given(operations)
def test_counted_pool_counts_as_the_pool_of_identities(steps: list[Operation]) -> None:
    """Without a prefix cache, the counted pool has the counts of the pool of identities."""
    pairs = [Holders(make_pool(caching=False)), Holders(CountedBlockPool(8))]
    for step in steps:
        counts = []
        for holders in pairs:
            holders.do(step)
            counts.append((holders.pool.num_free_blocks, [r.num_blocks for r in holders.requests]))
        assert counts[0] == counts[1]


@pytest.mark.parametrize("num_blocks", [1, 5])
def test_a_new_pool_is_all_free(num_blocks: int) -> None:
    """A new pool hands its blocks out from 1 upwards; 0 is vLLM's null block."""
    assert list(range(1, num_blocks + 1)) == make_pool(num_blocks).free_block_queue
