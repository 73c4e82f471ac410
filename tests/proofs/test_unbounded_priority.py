from __future__ import annotations

import pytest

from proofs.mutants import MUTANTS, planted
from proofs.symbolic.prover import Prover
from proofs.symbolic.values import UnsupportedError
from proofs.unbounded.priority import prove_rank
from proofs.unbounded.state import CACHING, PRIORITY, HitBlocks
from proofs.unbounded.watch import NUM_RUNS, WatchedScheduler, run_once
from spec.block_pool import BlockPool


def test_who_joins_the_sorted_queue_finds_its_place():
    """The search for a rank is proved for a queue of any length; it ends, and joins once."""
    prover = prove_rank()
    assert prover.unproved is None
    places = {each.place for each in prover.discharged}
    assert {"finding a rank before", "finding a rank again", "joining"} <= places


def test_joining_at_the_head_is_not_proved():
    """A queue that is not sorted by rank does not have the place that is assumed of it."""
    with planted(MUTANTS["an_arrival_jumps_the_queue"]):
        unproved = prove_rank().unproved
    assert unproved is not None
    assert "nobody behind is served earlier" == unproved.clause


def test_runs_with_a_cache_hit_it(monkeypatch):
    """Where a proof lets the cache find anything, random runs have a real one, and it is hit."""
    hits = []
    find = BlockPool.find_longest_cache_hit

    def find_and_note(self, request):
        hits.append(find(self, request))
        return hits[-1]

    monkeypatch.setattr(BlockPool, "find_longest_cache_hit", find_and_note)
    for seed in range(10):
        assert run_once(CACHING, (), seed)[1] is None
    assert sum(hit.num_blocks > 0 for hit in hits) > 10
    assert sum(hit.num_free_blocks > 0 for hit in hits) > 10


def test_the_tokens_of_a_hit_are_asked_for_by_the_block_size():
    """Blocks of a hit hold tokens; multiplied by anything else they are refused."""
    prover = Prover()
    num_blocks, num_tokens, size, other = map(prover.any_integer, ("hit", "tokens", "size", "x"))
    hit = HitBlocks(num_blocks, num_tokens, size)
    assert hit * size is num_tokens
    with pytest.raises(UnsupportedError):
        hit * other


def test_a_cursor_that_does_not_keep_up_may_leave_running(monkeypatch):
    """The oldest dialect moves the cursor past the end of `running`; a proof may not deny it."""
    seen = set()
    schedule_next = WatchedScheduler._schedule_next_running

    def note(self):
        rule = self.config.cursor_follows_victim
        seen.add((rule, self.req_index > len(self.running)))
        return schedule_next(self)

    monkeypatch.setattr(WatchedScheduler, "_schedule_next_running", note)
    for seed in range(NUM_RUNS):
        if ("never", True) not in seen:
            assert run_once(PRIORITY, (), seed)[1] is None
    assert ("never", True) in seen
    assert ("always", True) not in seen
