from __future__ import annotations

import itertools

import pytest
import z3

from proofs.symbolic.executor import Executor
from proofs.symbolic.values import choose, conjunction, integer
from proofs.unbounded.pool import prove_allocate
from proofs.unbounded.watch import NUM_RUNS
from proofs.unbounded.watch_pool import find_pool_breach
from spec.block_pool import BlockPool
from spec.interface import NewRequest
from spec.request import Request

TABLES = [
    (num_held, num_free, cached, uncached_first)
    for num_held in (1, 2, 3)
    for num_free in (0, 2)
    for cached in itertools.chain.from_iterable(
        itertools.combinations(range(1, num_held + 1), size) for size in range(num_held + 1)
    )
    for uncached_first in (True, False)
]


def holding(num_held, num_free, cached, uncached_first):
    """A pool whose first blocks one request holds, each shared by any number of others."""
    pool = BlockPool(num_held + num_free, 1, True, uncached_first)
    pool.free_block_queue = list(range(num_held + 1, num_held + num_free + 1))
    pool.num_free_blocks = num_free
    pool.block_hash = dict.fromkeys(cached, (None, ()))
    held = range(1, num_held + 1)
    for block_id in held:
        pool.ref_cnt[block_id] = integer(f"ref_cnt {block_id}")
    request = Request(NewRequest(request_id="a", prompt_token_ids=(), max_tokens=1))
    request.block_ids, request.num_blocks = list(held), num_held
    return (pool, request), [pool.ref_cnt[block_id] >= 1 for block_id in held]


def free(state):
    """Frees the table."""
    pool, request = state
    pool.free(request)


def claims_of(pool, request, num_held, num_free):
    """What freeing must leave: counts one lower, who is held by nobody in the queue, once."""
    num_free_after = num_free
    for block_id in range(1, num_held + 1):
        before = integer(f"ref_cnt {block_id}")
        num_places = pool.free_block_queue.count(block_id)
        yield pool.ref_cnt[block_id] == before - 1
        yield choose(before == 1, 1, 0) == num_places
        num_free_after = num_free_after + choose(before == 1, 1, 0)
    yield num_free_after == pool.num_free_blocks
    yield len(pool.free_block_queue) == pool.num_free_blocks
    yield request.num_blocks == 0


@pytest.mark.parametrize("num_held", [1, 2, 3])
def test_free_gives_back_what_nobody_else_holds(num_held):
    """Freeing a table of up to 3 blocks, each shared by any number, frees the right ones, once."""
    for case in [each for each in TABLES if each[0] == num_held]:
        executor = Executor()
        num_paths = 0
        for path in executor.paths(
            lambda case=case: holding(*case), lambda state: state[0].free(state[1])
        ):
            num_paths += 1
            goal = conjunction(*claims_of(*path.state, *case[:2]))
            assert z3.unsat == executor.check(z3.Not(goal))
        assert 2**num_held == num_paths


def test_allocate_is_proved_with_any_sharing():
    """Handing out blocks is proved for any number of blocks, tables and hits."""
    prover = prove_allocate()
    assert prover.unproved is None
    assert len(prover.discharged) >= 50


def test_the_real_pool_keeps_its_books():
    """Random runs with a prefix cache find nothing wrong with the real pool."""
    assert NUM_RUNS >= 100
    assert find_pool_breach() is None
