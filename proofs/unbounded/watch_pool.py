"""The books of the pool of identities on plain integers, in random runs with a prefix cache.

Entry point: `find_pool_breach`, as `proofs.unbounded.watch.find_breach` for the pool.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import attrs
import z3

from proofs.theorem import Failure, Say, be_quiet
from proofs.unbounded.state import SYNCHRONOUS
from proofs.unbounded.watch import (
    NUM_ACTIONS,
    NUM_RUNS,
    describe,
    draw_action,
    draw_config,
    draw_environment,
)
from spec.block_pool import BlockPool, make_block_pool
from spec.model import Model
from spec.scheduler import ReferenceScheduler


def find_pool_breach(say: Say = be_quiet) -> Failure | None:
    """Looks for a run after which a block is in two places, in none, or counted wrongly."""
    for seed in range(NUM_RUNS):
        say(f"run {seed + 1} of {NUM_RUNS}")
        failure = _run(seed)
        if failure is not None:
            return failure
    return None


def _run(seed: int) -> Failure | None:
    rng = random.Random(seed)
    config = attrs.evolve(draw_config(rng, SYNCHRONOUS), enable_prefix_caching=True)
    pool = make_block_pool(config)
    scheduler = ReferenceScheduler(config, pool)
    model = Model(draw_environment(rng, config), scheduler)
    done: list[str] = []
    for _ in range(NUM_ACTIONS):
        action = draw_action(rng, model)
        done.append(describe(action))
        model.do(action)
        for sentence in broken_books(pool, scheduler):
            solver = z3.Solver()
            solver.check()
            return Failure(sentence, solver.model(), (f"run {seed}", *done, sentence))
    return None


def broken_books(pool: BlockPool, scheduler: ReferenceScheduler) -> Iterator[str]:
    """Says what is wrong about who holds which block."""
    holders = Counter(
        block_id for request in scheduler.requests.values() for block_id in request.block_ids
    )
    places = Counter(pool.free_block_queue)
    for request in scheduler.requests.values():
        if len(set(request.block_ids)) < len(request.block_ids):
            yield f"{request.request_id}: a new block is in no table"
    for block_id in range(1, pool.num_blocks + 1):
        if pool.ref_cnt[block_id] != holders[block_id]:
            yield f"block {block_id}: ref_cnt counts holders"
        if places[block_id] != (0 if holders[block_id] else 1):
            yield f"block {block_id}: who is not held is free, once"
    if pool.num_free_blocks != len(pool.free_block_queue):
        yield "free as counted"
