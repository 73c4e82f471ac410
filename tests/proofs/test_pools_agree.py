from __future__ import annotations

import pytest

from impl.block_pool import BlockPool
from proofs import side_by_side
from proofs.mutants import MUTANTS, planted
from proofs.pools_agree import PoolWorld
from proofs.prove import THEOREMS
from proofs.side_by_side import explore
from proofs.theorem import ignore
from tests.proofs.nights import at_night

THEOREM = THEOREMS["our_pool_equals_the_spec"]
LARGER = THEOREMS["our_pool_equals_the_spec_in_larger_bounds"]
PAIRS = [(each, name) for each in (THEOREM, LARGER) for name in each.mutants]
SMALL = PoolWorld(num_blocks=2, block_size=1, salts=(None, None), max_num_tokens=2)


def test_our_pool_equals_the_spec():
    """No operation tells our pool from the spec's; how many pairs there are is pinned."""
    proof = THEOREM.prove(ignore)
    assert "proved" == proof.verdict
    assert [
        "1,311 pairs of states, 12,845 operations",
        "322 pairs of states, 3,558 operations",
        "455 pairs of states, 4,290 operations",
        "262 pairs of states, 2,380 operations",
        "681 pairs of states, 5,103 operations",
        "129 pairs of states, 2,113 operations",
        "129 pairs of states, 2,113 operations",
    ] == [label.partition(": ")[2] for label in proof.looked_at]


@pytest.mark.slow
@at_night
def test_our_pool_equals_the_spec_in_larger_bounds():
    """The same with more blocks, requests and tokens, in both orders of the free queue."""
    proof = LARGER.prove(ignore)
    assert "proved" == proof.verdict
    assert (12, 44_237) == (len(proof.looked_at), proof.num_paths)


@pytest.mark.parametrize(("theorem", "mutant"), PAIRS, ids=lambda each: getattr(each, "name", each))
def test_a_mutant_of_our_pool_is_refuted(theorem, mutant):
    """A wrong pool of ours is noticed, with a run that shows it."""
    with planted(MUTANTS[mutant]):
        proof = theorem.prove(ignore)
    assert "refuted" == proof.verdict
    assert "start" == proof.failure.lines[1]
    assert proof.failure.obligation == proof.failure.lines[-1]


def test_a_difference_comes_with_a_shortest_run():
    """Nothing can be left out of what is printed: two publications, and a look at the older one."""
    with planted(MUTANTS["our_newest_publication_is_hit"]):
        found = explore(SMALL)
    assert (
        "start",
        admit(0, 0),
        "r0 publishes tokens: 1",
        "r0 loses its blocks",
        admit(0, 0),
        "r0 publishes tokens: 1",
        "r1 looks its text up",
    ) == found.run
    assert "blocks hit by [0, 0]: expected [1], found [2]" == found.difference


def test_an_error_is_a_difference(monkeypatch):
    """An operation that raises although its precondition holds is found."""

    def free(self, request):
        raise KeyError(request.request_id)

    monkeypatch.setattr(BlockPool, "free", free)
    found = explore(SMALL)
    assert "no error: expected , found KeyError('a')" == found.difference
    assert "r0 loses its blocks" == found.run[-1]


def test_what_has_no_end_is_undetermined(monkeypatch):
    """An exploration that is cut off proves nothing."""
    monkeypatch.setattr(side_by_side, "MAX_NUM_STATES", 20)
    proof = side_by_side.prove_alike("some_theorem", iter([SMALL]))
    assert "undetermined" == proof.verdict
    assert ["2 blocks of 1"] == [reason.partition(",")[0] for reason in proof.undecided]
    assert [] == proof.looked_at


# ---- when two pairs are one ----------------------------------------------------------------------


def pair_after(*names, world=SMALL):
    """The pair of pools after some operations."""
    pair = world.start()
    for name in names:
        for each in world.operations(pair):
            if each.name == name:
                break
        else:
            raise AssertionError(name)
        assert all(expected == actual for _, expected, actual in each.do(pair))
        assert all(expected == actual for _, expected, actual in world.compare(pair))
    return pair


def admit(index, *token_ids):
    """Names the admission of a request that takes a new block."""
    return f"r{index} is admitted with {list(token_ids)}, new blocks: 1"


PUBLISHED = (admit(0, 0), "r0 publishes tokens: 1")
BOTH_PUBLISHED = (*PUBLISHED, admit(1, 0), "r1 publishes tokens: 1")
CASES = [
    # The names of requests and of blocks.
    ((admit(0, 0), admit(1, 0), "r0 loses its blocks"), (admit(0, 0),), True),
    # The numbers of chains.
    (
        (*PUBLISHED, "r0 loses its blocks", admit(0, 0), admit(1, 0), "r0 publishes tokens: 1"),
        (*PUBLISHED, admit(1, 0)),
        True,
    ),
    # What is published.
    (PUBLISHED, (admit(0, 0),), False),
    # A text.
    ((admit(0, 0), "r0 samples 0"), (admit(0, 0),), False),
    # Which of two blocks with one content is the older.
    (
        (*BOTH_PUBLISHED, "r0 loses its blocks", "r1 loses its blocks"),
        (*BOTH_PUBLISHED, "r1 loses its blocks", "r0 loses its blocks"),
        False,
    ),
]


@pytest.mark.parametrize(("one", "other", "expected"), CASES)
def test_pairs_that_differ_in_names_only_are_one(one, other, expected):
    """Whatever a pool may still do depends on what makes two pairs different, and on no name."""
    assert expected == (SMALL.key(pair_after(*one)) == SMALL.key(pair_after(*other)))
