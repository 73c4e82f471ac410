"""The same bits however a request is scheduled, and a control that has others."""

from __future__ import annotations

import pytest
import torch

from impl.runner.ops.interface import AttentionBatch
from impl.runner.ops.tile import KV_TILE, QUERY_TILE, compute_length, plan_tiles
from tests.impl.runner.support import (
    NUM_BLOCKS,
    go_on,
    join,
    make_prompt,
    make_runner,
    run_alone,
    start,
)

CHUNK_SIZES = [1, 2, 7, 15, 16, 17, 33]
INVARIANT = [("tile", torch.float32), ("tile", torch.bfloat16), ("exact", torch.float32)]
PROMPT = make_prompt(70)
NUM_SAMPLED = 4


def num_differing(expected, actual):
    """Counts the rows of logits of which not every bit is the same."""
    assert list(expected.tap.rows) == list(actual.tap.rows)
    return sum(not torch.equal(row, actual.tap.rows[key]) for key, row in expected.tap.rows.items())


@pytest.fixture(scope="module")
def whole():
    """Runners that have run the whole prompt in one step, alone, by backend and dtype."""
    runners = {}

    def get(backend, dtype):
        if (backend, dtype) not in runners:
            runners[backend, dtype] = make_runner("tiny-qwen3", backend, dtype)
            run_alone(runners[backend, dtype], "A", PROMPT, len(PROMPT), NUM_SAMPLED)
        return runners[backend, dtype]

    return get


@pytest.mark.parametrize("chunk_size", CHUNK_SIZES)
@pytest.mark.parametrize(("backend", "dtype"), INVARIANT)
def test_chunks_have_the_bits_of_the_whole(whole, backend, dtype, chunk_size):
    """A prompt in chunks gives every bit of the logits, and of the KV, of the whole prompt."""
    runner = make_runner("tiny-qwen3", backend, dtype)
    run_alone(runner, "A", PROMPT, chunk_size, NUM_SAMPLED)
    expected = whole(backend, dtype)
    assert num_differing(expected, runner) == 0
    block_ids = expected.requests["A"].block_ids
    for layer in (0, 1):
        for old, new in zip(
            expected.kv_cache.read(layer, block_ids, len(PROMPT)),
            runner.kv_cache.read(layer, block_ids, len(PROMPT)),
            strict=True,
        ):
            assert torch.equal(old, new)


@pytest.mark.parametrize(("backend", "dtype"), INVARIANT)
def test_company_changes_no_bit(whole, backend, dtype):
    """A request among others, in other blocks, some of them decoding, has the bits of it alone."""
    runner = make_runner("tiny-qwen3", backend, dtype)
    blocks = list(range(1, NUM_BLOCKS + 1))[::-1]
    others = [
        start(f"B{n}", make_prompt(5 + n, n + 1), 5 + n, blocks[4 * n :][:4]) for n in range(6)
    ]
    runner.execute(join(*others))
    computed = {f"B{n}": 5 + n for n in range(6)}
    mine = blocks[30:50]
    steps = [start("A", PROMPT, 33, mine), go_on("A", 4, 33), go_on("A", 33, 37)]
    steps += [go_on("A", 1, len(PROMPT) + n) for n in range(NUM_SAMPLED - 1)]
    for number, step in enumerate(steps):
        # Other company each time, before and after.
        present = [f"B{n}" for n in range(6) if (n + number) % 3]
        companions = [go_on(name, 1, computed[name]) for name in present]
        runner.execute(join(*companions[:2], step, *companions[2:]))
        computed.update({name: computed[name] + 1 for name in present})
    runner.tap.rows = {key: row for key, row in runner.tap.rows.items() if key[0] == "A"}
    assert num_differing(whole(backend, dtype), runner) == 0


@pytest.mark.parametrize(("backend", "dtype"), INVARIANT)
def test_threads_change_no_bit(whole, two_threads, backend, dtype):
    """Two threads give the bits of one."""
    runner = make_runner("tiny-qwen3", backend, dtype)
    run_alone(runner, "A", PROMPT, 33, NUM_SAMPLED)
    torch.set_num_threads(1)
    assert num_differing(whole(backend, dtype), runner) == 0


def test_ordinary_torch_has_other_bits(whole):
    """The tests above can fail: torch as it comes gives other bits for some size of chunks."""
    differing = []
    for chunk_size in CHUNK_SIZES:
        runner = make_runner("tiny-qwen3", "plain")
        run_alone(runner, "A", PROMPT, chunk_size, NUM_SAMPLED)
        differing.append(num_differing(whole("plain", torch.float32), runner))
    assert max(differing) > 0


def make_batch(*spans):
    """One request per (start, stop), all with block tables of 64 blocks."""
    owners = [row for row, span in enumerate(spans) for _ in range(*span)]
    positions = [position for span in spans for position in range(*span)]
    return AttentionBatch(
        torch.arange(len(spans) * 64, dtype=torch.int32).view(len(spans), 64),
        torch.tensor(owners, dtype=torch.int32),
        torch.tensor(positions, dtype=torch.int32),
    )


def find_places(batch):
    """Where each token is computed: the length that its tile looks at, and its place in it."""
    places = {}
    for group in plan_tiles(batch, 4):
        for place, token in zip(group.places.tolist(), group.tokens.tolist(), strict=True):
            key = int(batch.request_of_token[token]), int(batch.positions[token])
            assert key not in places
            places[key] = (group.length, place % QUERY_TILE)
    return places


@pytest.mark.parametrize(
    "spans", [[(0, 130)], [(63, 64), (64, 65), (0, 1)], [(5, 70), (128, 129)], [(3, 5), (3, 5)]]
)
def test_a_tile_depends_on_its_position_only(spans):
    """Each token is computed once, in the place and over the KV that its position says."""
    expected = {
        (row, position): (compute_length(position // QUERY_TILE), position % QUERY_TILE)
        for row, span in enumerate(spans)
        for position in range(*span)
    }
    assert expected == find_places(make_batch(*spans))


@pytest.mark.parametrize(
    ("position", "expected"), [(0, KV_TILE), (63, KV_TILE), (64, 2 * KV_TILE), (127, 2 * KV_TILE)]
)
def test_a_tile_sees_all_up_to_itself(position, expected):
    """The KV that a tile looks at ends with the tile of KV that holds its own."""
    assert expected == compute_length(position // QUERY_TILE)


@pytest.mark.parametrize(("backend", "dtype"), [("tile", torch.float32), ("plain", torch.float32)])
def test_nothing_reads_what_nobody_wrote(backend, dtype):
    """The slots that nobody has written are NaN, and no logits are."""
    runner = make_runner("tiny", backend, dtype)
    run_alone(runner, "A", PROMPT, 17, NUM_SAMPLED)
    assert bool(runner.kv_cache.keys[0].isnan().any())
    assert [key for key, row in runner.tap.rows.items() if bool(row.isnan().any())] == []
