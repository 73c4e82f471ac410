"""The backends as such: by name, row by row, and request by request."""

from __future__ import annotations

import pytest
import torch

from impl.runner.errors import RunnerError
from impl.runner.ops.backends import make_ops
from impl.runner.ops.interface import AttentionBatch
from impl.runner.ops.rowwise import RowwiseOps
from impl.runner.ops.spans import Span, find_spans
from impl.runner.ops.tile import TileOps
from tests.impl.runner.support import attend

PARTS = [(0, 1), (7, 8), (3, 5), (1, 17), (40, 73), (199, 200)]
DTYPES = [torch.float32, torch.bfloat16]


def draw(*shape):
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("width", [36, 64, 576])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", ["rms_norm", "rope", "silu_mul"])
def test_torch_computes_rows_by_themselves(operation, dtype, width):
    """What is shared by backends gives a row the same bits in any company."""
    ops, x, weight = RowwiseOps("cpu", dtype), draw(200, width).to(dtype), draw(width).to(dtype)
    angles, up = draw(200, width // 4), draw(200, width + 1)[:, 1:].to(dtype)

    def compute(start, end):
        part = slice(start, end)
        if operation == "rms_norm":
            return ops.rms_norm(x[part], weight, 1e-5)
        if operation == "silu_mul":
            return ops.silu_mul(x[part], up[part])
        heads = x[part].view(end - start, 2, -1)
        return ops.rope(heads, angles[part].cos(), angles[part].sin())

    whole = compute(0, 200)
    differing = [part for part in PARTS if not torch.equal(compute(*part), whole[slice(*part)])]
    assert differing == []


def test_tokens_are_found_by_request():
    """A span is the tokens of one row of the block tables, from the position of the first."""
    batch = AttentionBatch(
        torch.zeros(3, 4, dtype=torch.int32),
        torch.tensor([0, 0, 1, 2, 2, 2], dtype=torch.int32),
        torch.tensor([5, 6, 9, 0, 1, 2], dtype=torch.int32),
    )
    assert [Span(0, 0, 5, 2), Span(1, 2, 9, 1), Span(2, 3, 0, 3)] == find_spans(batch)


LENGTHS = [(0, 70), (64, 65), (3, 5), (69, 70), (0, 1)]
"""(start, stop) of each request of a step."""


@pytest.mark.parametrize(
    ("backend", "tolerance"), [("tile", 1e-5), ("plain", 1e-5), ("exact", 0.1)]
)
@pytest.mark.parametrize("num_heads", [2, 6])
def test_attention_follows_the_block_tables(backend, tolerance, num_heads):
    """Each token attends to its own request's KV up to itself, wherever the blocks are."""
    num_blocks, block_size, kv_heads, head_dim = 100, 4, 2, 8
    key_cache, value_cache = (
        torch.full((num_blocks, block_size, kv_heads, head_dim), torch.nan) for _ in range(2)
    )
    order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(0)) + 1
    tables = order[: 5 * 18].view(5, 18)
    queries, expected = [], []
    for row, (start, stop) in enumerate(LENGTHS):
        query, key, value = (draw(stop, n, head_dim) for n in (num_heads, kv_heads, kv_heads))
        slots = torch.arange(stop)
        blocks = tables[row][slots // block_size]
        key_cache[blocks, slots % block_size] = key
        value_cache[blocks, slots % block_size] = value
        queries.append(query[start:])
        expected.append(attend(query.double(), key.double(), value.double())[start:])
    batch = AttentionBatch(
        tables.int(),
        torch.tensor([n for n, span in enumerate(LENGTHS) for _ in range(*span)]).int(),
        torch.tensor([position for span in LENGTHS for position in range(*span)]).int(),
    )
    ops = make_ops(backend)
    actual = ops.paged_attention(torch.cat(queries), key_cache, value_cache, batch).flatten(1)
    assert float((actual - torch.cat(expected)).abs().max()) < tolerance


@pytest.mark.parametrize("backend", ["tile", "plain", "exact"])
def test_the_head_is_float32(backend):
    """Logits are float32, in whatever dtype the rows come."""
    dtype = torch.float32 if backend == "exact" else torch.bfloat16
    hidden, weight = draw(3, 64).to(dtype), draw(50, 64).to(dtype)
    logits = make_ops(backend, "cpu", dtype).head(hidden, weight)
    assert torch.float32 == logits.dtype
    assert torch.allclose(hidden.float() @ weight.float().T, logits, atol=0.5)


def test_an_unknown_backend_is_refused():
    """A wrong name is told which there are."""
    with pytest.raises(RunnerError, match="no backend 'magic'; choose one of tile, plain, exact"):
        make_ops("magic")


def test_tiles_are_for_the_cpu():
    """Another device is refused, before anything is computed on it."""
    with pytest.raises(RunnerError, match="for the CPU, and not for cuda; take triton"):
        TileOps("cuda")
