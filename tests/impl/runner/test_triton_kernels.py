from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from impl.runner.errors import RunnerError
from impl.runner.ops.interface import AttentionBatch
from impl.runner.ops.triton import backend
from impl.runner.ops.triton.backend import TritonOps, find_tiles
from impl.runner.ops.triton.tiles import MatmulTiles, choose_attention, choose_matmul
from tests.impl.runner.triton_support import (
    DTYPES,
    MAX_ERROR,
    differing_rows,
    draw,
    error_of,
    int32,
    make_requests,
    needs_triton,
)

pytestmark = needs_triton

# Beside tiles of 32 or 64 rows, columns and terms.
NUM_ROWS = 70
SHAPES = [(64, 64), (72, 100), (33, 16), (130, 65)]
PARTS = [(0, 1), (1, 2), (31, 33), (63, 65), (0, 64), (5, 69), (69, 70)]
LENGTHS = [1, 15, 17, 33, 70]
LAST = len(LENGTHS) - 1
HEADS = [
    pytest.param((2, 2, 16), id="a head each"),
    pytest.param((3, 1, 12), id="3 to a head, 12 wide"),
]


@pytest.fixture(scope="module", params=DTYPES)
def ops(request):
    """The backend, on a CPU."""
    return TritonOps(torch.device("cpu"), request.param)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_product_is_close_to_float64(ops, n, k):
    """A matrix product with a bias is as exact as its dtype, for sizes beside those of tiles."""
    x, weight = draw(NUM_ROWS, k, dtype=ops.dtype), draw(n, k, dtype=ops.dtype, seed=1)
    bias = draw(n, dtype=ops.dtype, seed=2)
    exact = x.double() @ weight.double().T + bias.double()
    assert error_of(ops.linear(x, weight, bias), exact) < MAX_ERROR[ops.dtype]


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_product_of_a_row_has_the_same_bits_in_every_batch(ops, n, k):
    """Parts of a batch, multiplied by themselves, give the rows of the whole, bit for bit."""
    x, weight = draw(NUM_ROWS, k, dtype=ops.dtype), draw(n, k, dtype=ops.dtype, seed=1)
    whole = ops.linear(x, weight, None)
    parts = {(start, end): ops.linear(x[start:end], weight, None) for start, end in PARTS}
    assert {part: [] for part in PARTS} == {
        (start, end): differing_rows(whole[start:end], rows) for (start, end), rows in parts.items()
    }


def test_the_order_of_rows_does_not_matter(ops):
    """A batch in another order gives the same rows in that order, bit for bit."""
    x, weight = draw(NUM_ROWS, 64, dtype=ops.dtype), draw(64, 64, dtype=ops.dtype, seed=1)
    order = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(0))
    expected = ops.linear(x, weight, None)[order]
    assert [] == differing_rows(expected, ops.linear(x[order], weight, None))


def test_tiles_chosen_by_the_batch_are_noticed(ops, monkeypatch):
    """The tests above can fail: with other tiles for a small batch, some rows have other bits."""
    x, weight = draw(NUM_ROWS, 100, dtype=torch.float32), draw(64, 100, dtype=torch.float32)
    fast = TritonOps(torch.device("cpu"), torch.float32)
    whole = fast.linear(x, weight, None)
    monkeypatch.setattr(backend, "choose_matmul", lambda *_: MatmulTiles(16, 32, 16, 4, 1))
    assert differing_rows(whole[:8], fast.linear(x[:8], weight, None)) != []


def test_logits_are_not_rounded(ops):
    """The head gives float32 from operands of any dtype, as exact as float32."""
    hidden, weight = draw(3, 64, dtype=ops.dtype), draw(100, 64, dtype=ops.dtype, seed=1)
    logits = ops.head(hidden, weight)
    assert (torch.float32, (3, 100)) == (logits.dtype, tuple(logits.shape))
    assert error_of(logits, hidden.double() @ weight.double().T) < MAX_ERROR[torch.float32]


def test_nothing_is_asked_of_nobody(ops):
    """A batch without rows gives a result without rows."""
    assert (0, 7) == tuple(
        ops.head(draw(0, 16, dtype=ops.dtype), draw(7, 16, dtype=ops.dtype)).shape
    )


@pytest.mark.parametrize("width", [16, 100, 576])
def test_rms_norm(ops, width):
    """RMSNorm is as exact as its dtype, and a row has the same bits alone."""
    x, weight = draw(5, width, dtype=ops.dtype), draw(width, dtype=ops.dtype, seed=1)
    exact = x.double() * (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    rows = ops.rms_norm(x, weight, 1e-5)
    assert error_of(rows, exact * weight.double()) < MAX_ERROR[ops.dtype]
    alone = torch.cat([ops.rms_norm(x[n : n + 1], weight, 1e-5) for n in range(5)])
    assert [] == differing_rows(rows, alone)


def test_rope(ops):
    """RoPE rotates some of the heads of a larger tensor, as exactly as its dtype."""
    qkv = draw(5, 8, 12, dtype=ops.dtype)
    angles = draw(5, 6, dtype=torch.float32)
    x, cos, sin = qkv[:, :6], angles.cos(), angles.sin()
    (a, b), c, s = x.double().chunk(2, -1), cos.double()[:, None], sin.double()[:, None]
    exact = torch.cat([a * c - b * s, b * c + a * s], -1)
    rows = ops.rope(x, cos, sin)
    assert error_of(rows, exact) < MAX_ERROR[ops.dtype]
    alone = [ops.rope(x[n : n + 1], cos[n : n + 1], sin[n : n + 1]) for n in range(5)]
    assert [] == differing_rows(rows, torch.cat(alone))


@pytest.mark.parametrize("width", [96, 1025])
def test_silu_mul(ops, width):
    """SiLU of one half of a tensor times the other is as exact as its dtype."""
    gate, up = draw(3, 2 * width, dtype=ops.dtype).chunk(2, -1)
    rows = ops.silu_mul(gate, up)
    exact = gate.double() * gate.double().sigmoid() * up.double()
    assert error_of(rows, exact) < MAX_ERROR[ops.dtype]
    alone = torch.cat([ops.silu_mul(gate[n : n + 1], up[n : n + 1]) for n in range(3)])
    assert [] == differing_rows(rows, alone)


@pytest.fixture(scope="module", params=HEADS)
def requests(request, ops):
    """Requests of several lengths."""
    return make_requests(LENGTHS, *request.param, ops.dtype)


@pytest.fixture(scope="module")
def whole(requests, ops):
    """The rows of all requests in one step, unchunked."""
    return attend_whole(requests, ops)


def attend_whole(requests, ops):
    """Computes all requests in one step, unchunked."""
    return requests.attend(ops, [(n, 0, length) for n, length in enumerate(LENGTHS)])


def rows_that_differ(expected, actual):
    """Which rows differ in any bit, by request and position."""
    return [name for name, row in actual.items() if differing_rows(expected[name][None], row[None])]


def test_attention_is_close_to_float64(ops, requests, whole):
    """Attention to a paged cache is as exact as its dtype; NaN in unused slots does not show."""
    exact = requests.attend_exactly()
    names = list(exact)
    expected, actual = (torch.stack([of[name] for name in names]) for of in (exact, whole))
    # Weights are rounded to the dtype of values before they are multiplied.
    assert error_of(actual, expected) < 2 * MAX_ERROR[ops.dtype]


@pytest.mark.parametrize("size", [1, 7, 16, 33, 64])
def test_attention_has_the_same_bits_chunk_by_chunk(ops, requests, whole, size):
    """A request computed in chunks, each alone in its step, has the rows of the whole batch."""
    # Of single tokens, those around the bounds of blocks and tiles.
    starts = range(0, LENGTHS[LAST], size) if size > 1 else (0, 15, 16, 31, 32, 63, 64, 69)
    rows = {}
    for start in starts:
        chunk = (LAST, start, min(start + size, LENGTHS[LAST]))
        rows |= requests.attend(ops, [chunk], seed=start)
    assert [] == rows_that_differ(whole, rows)


@pytest.mark.parametrize("block_size", [16, 8, 1])
def test_attention_has_the_same_bits_in_every_company(ops, requests, whole, block_size):
    """Decodes, chunks and prompts in one step, in any order and any blocks, change no bit."""
    parts = [(4, 69, 70), (2, 0, 17), (3, 20, 33), (0, 0, 1), (1, 14, 15), (4, 30, 66)]
    ordered = parts[block_size % 5 :] + parts[: block_size % 5]
    rows = requests.attend(ops, ordered, seed=block_size, block_size=block_size)
    assert [] == rows_that_differ(whole, rows)


def test_kv_tiles_that_move_with_the_chunk_are_noticed(ops, monkeypatch):
    """The tests above can fail: with other KV tiles for a chunk, some rows have other bits."""
    requests = make_requests(LENGTHS, 2, 2, 16, ops.dtype)
    expected = attend_whole(requests, ops)
    monkeypatch.setattr(
        backend,
        "choose_attention",
        lambda *shape: evolve(choose_attention(*shape), block_kv=16),
    )
    assert [] != rows_that_differ(expected, requests.attend(ops, [(LAST, 40, 70)]))


def test_a_row_that_starts_elsewhere_is_copied(ops):
    """Rows at odd addresses give the same bits, since a copy is where kernels expect it."""
    x, weight = draw(4, 64, dtype=ops.dtype), draw(32, 64, dtype=ops.dtype, seed=1)
    moved = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(4, 64)
    assert moved.data_ptr() % 16 != 0
    assert [] == differing_rows(ops.linear(x, weight, None), ops.linear(moved, weight, None))


def test_a_weight_with_gaps_is_refused(ops):
    """A transposed weight would be copied at each call; the message says what to do."""
    weight = draw(64, 32, dtype=ops.dtype).T
    with pytest.raises(RunnerError, match=r"of shape \(32, 64\) is not contiguous .*clone\(\) it"):
        ops.linear(draw(4, 64, dtype=ops.dtype), weight, None)


def batch_of(num_tokens):
    """A step in which each request computes a number of tokens."""
    owners = [row for row, number in enumerate(num_tokens) for _ in range(number)]
    positions = [position for number in num_tokens for position in range(number)]
    tables = torch.zeros(len(num_tokens), 1, dtype=torch.int32)
    return AttentionBatch(tables, int32(owners), int32(positions))


def test_tiles_begin_with_each_request():
    """A tile has tokens of one request; those left over begin past the last token."""
    tiles = find_tiles(batch_of([5, 1, 1, 4]), 4)
    assert [0, 4, 5, 6, 7] == tiles.tolist()
    assert [0, 4, 8] == find_tiles(batch_of([4, 4]), 4).tolist()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from([1, 2, 4]))
def test_each_token_is_in_one_tile(num_tokens, block_tokens):
    """Tiles of at most block_tokens tokens cover each request from its first token on."""
    batch = batch_of(num_tokens)
    tiles = find_tiles(batch, block_tokens).tolist()
    owners = batch.request_of_token.tolist()
    covered = [
        token
        for first in tiles
        for token in range(first, min(first + block_tokens, len(owners)))
        if owners[token] == owners[first]
    ]
    assert list(range(len(owners))) == covered


def test_tiles_are_chosen_by_the_model():
    """Attention has as many rows to a tile whatever the group, so that decodes fit the same way."""
    tiles = [choose_attention(group, 64, torch.bfloat16) for group in (1, 2, 3, 4, 8)]
    assert {64} == {tile.block_tokens * tile.block_group for tile in tiles}
    assert all(
        math.log2(size).is_integer()
        for n, k in SHAPES
        for tile in [choose_matmul(n, k, torch.bfloat16)]
        for size in (tile.block_m, tile.block_n, tile.block_k)
    )
