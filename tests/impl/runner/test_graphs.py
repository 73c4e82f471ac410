from __future__ import annotations

import pytest
import torch

from impl.runner import graphs
from impl.runner.graphs import GraphedModel, record_nothing, use_graphs
from tests.impl.runner.support import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    go_on,
    join,
    make_prompt,
    make_runner,
    run_alone,
    start,
)
from tests.impl.runner.triton_support import needs_triton

PROMPT = make_prompt(13)
NUM_SAMPLED = 4
INVARIANT = [
    pytest.param("tile", torch.float32, id="tile"),
    pytest.param("triton", torch.bfloat16, id="triton", marks=needs_triton),
]


def make(backend="tile", dtype=torch.float32, sizes=()):
    """Builds a runner without a tap, in graphs of the sizes, and the list that gets its logits."""
    runner = make_runner("tiny", backend, dtype)
    runner.tap = None
    if sizes:
        use_graphs(runner, sizes)
    logits = []
    compute = runner.model.compute_logits

    def compute_and_keep(hidden):
        logits.append(compute(hidden))
        return logits[-1]

    runner.model.compute_logits = compute_and_keep
    return runner, logits


def run(backend, dtype, sizes=()):
    """Runs a prompt in chunks, with company; returns all logits, and all KV but the null block."""
    runner, logits = make(backend, dtype, sizes)
    runner.execute(start("B", PROMPT[:3], 3, [40]))
    runner.execute(join(start("A", PROMPT, 5, [9, 3, 30, 8]), go_on("B", 1, 3)))
    runner.execute(go_on("A", 5, 5))
    runner.execute(join(go_on("B", 1, 4, [41]), go_on("A", 3, 10)))
    runner.execute(go_on("A", 1, 13))
    kv = torch.stack([*runner.kv_cache.keys, *runner.kv_cache.values])
    return [*logits, kv[:, 1:]]


def are_same(expected, actual):
    """Which results have the same bits, NaN included."""
    return [
        torch.equal(a.nan_to_num(-1), b.nan_to_num(-1))
        for a, b in zip(expected, actual, strict=True)
    ]


@pytest.mark.parametrize(("backend", "dtype"), INVARIANT)
def test_padding_changes_no_bit(backend, dtype):
    """Steps filled up to fixed sizes give every bit of logits and KV of steps as they are."""
    expected = run(backend, dtype)
    assert [True] * len(expected) == are_same(expected, run(backend, dtype, (4, 6)))


def test_padding_changes_bits_of_plain_torch():
    """The test above can fail: ordinary torch multiplies a padded batch in another order."""
    expected = run("plain", torch.float32)
    assert False in are_same(expected, run("plain", torch.float32, (16,)))


def test_a_size_is_recorded_once_before_its_first_step(monkeypatch):
    """Each size that a step needs is recorded once; larger steps are computed as they are."""
    recorded = []

    def record(compute):
        recorded.append(tuple(compute().shape))
        return compute

    monkeypatch.setattr(graphs, "record_nothing", record)
    runner, _ = make(sizes=(8, 2, 4))
    run_alone(runner, "A", PROMPT, 9, NUM_SAMPLED)
    assert [(4, 64), (2, 64)] == recorded


def test_padding_writes_to_the_null_block_only():
    """After a padded step, nothing is written but the slots of its tokens and one of block 0."""
    runner, _ = make(sizes=(8,))
    runner.execute(start("A", PROMPT, 5, [7, 2, 5, 6]))
    keys = runner.kv_cache.keys[1].flatten(1).isnan().all(1).logical_not()
    assert [0, 2, 7] == keys.nonzero().flatten().tolist()
    slots = runner.kv_cache.keys[1].flatten(2).isnan().any(2).logical_not()
    assert [[1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]] == slots[[0, 2, 7]].int().tolist()


@pytest.mark.parametrize("is_recorded", [False, True])
def test_who_looks_sees_the_step_as_it_is(monkeypatch, is_recorded):
    """A tap sees as many rows as there are tokens; a recording, which shows none, is not played."""
    runner = make_runner()
    if is_recorded:
        monkeypatch.setattr(graphs, "record_nothing", lambda compute: compute)
    use_graphs(runner, (8,))
    monkeypatch.undo()
    seen = set()
    see = runner.tap.see

    def see_and_count(layer, stage, rows):
        seen.add(len(rows))
        see(layer, stage, rows)

    runner.tap.see = see_and_count
    runner.tap = runner.tap
    runner.execute(start("A", PROMPT, 5, [7, 2, 5, 6]))
    has_padding = not runner.kv_cache.keys[1][0, 0].isnan().all()
    assert ({5}, not is_recorded) == (seen, has_padding)


def test_a_table_as_long_as_the_cache_fits():
    """A request may hold all blocks of the cache; its step is recorded like any other."""
    runner, _ = make(sizes=(2,))
    assert isinstance(runner.model, GraphedModel)
    assert NUM_BLOCKS == runner.model.max_blocks
    runner.execute(start("A", PROMPT, 1, range(1, NUM_BLOCKS + 1)))
    assert [2] == list(runner.model._graphs)
    assert record_nothing(make) is make
    assert 256 == NUM_BLOCKS * BLOCK_SIZE
