from __future__ import annotations

import random

import pytest

from gpu_conformance.renaming import PLACEMENTS, Renaming, shuffle
from spec.interface import CachedRequestData, NewRequestData, SchedulerOutput

OUTPUT = SchedulerOutput(
    num_scheduled_tokens={"a": 3, "b": 1, "c": 2},
    scheduled_new_reqs={"a": NewRequestData((1, 2, 3), 0, [1, 2])},
    scheduled_cached_reqs={
        "b": CachedRequestData(False, [3], 4),
        "c": CachedRequestData(True, [4], 0),
    },
    new_block_ids_to_zero=[1, 2, 3, 4],
)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_no_two_blocks_get_one_name(placement):
    """Blocks lie each in a place of its own, none of them in block 0."""
    names = PLACEMENTS[placement](20)
    assert 20 == len(set(names) - {0})


def test_blocks_are_renamed_wherever_they_are_named():
    """New, resumed and running requests, and what is to be zeroed, speak of the same blocks."""
    renamed = Renaming("backwards", 4).rename(OUTPUT)
    assert [4, 3] == renamed.scheduled_new_reqs["a"].block_ids
    assert [2] == renamed.scheduled_cached_reqs["b"].new_block_ids
    assert [1] == renamed.scheduled_cached_reqs["c"].new_block_ids
    assert [4, 3, 2, 1] == renamed.new_block_ids_to_zero


def test_an_engine_may_not_tell_what_to_zero():
    """None stays None."""
    untold = SchedulerOutput(new_block_ids_to_zero=None)
    assert Renaming("shuffled", 4).rename(untold).new_block_ids_to_zero is None


def test_a_shuffled_step_is_the_same_step():
    """Only the order of the requests changes, and it does."""
    orders = [tuple(shuffle(OUTPUT, random.Random(seed)).num_scheduled_tokens) for seed in range(9)]
    assert 1 < len(set(orders))
    assert shuffle(OUTPUT, random.Random(1)) == OUTPUT
