"""What the tests of the Triton backend share: requests in a paged cache, and plain float64."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from attrs import frozen

from impl.runner.ops.interface import AttentionBatch

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed; only Linux has it"
)

DTYPES = [
    pytest.param(torch.float32, id="float32"),
    pytest.param(torch.bfloat16, id="bfloat16"),
]
MAX_ERROR = {torch.float32: 1e-6, torch.bfloat16: 2e-3}
"""Of a result as a whole, relative. Rounding to the nearest bfloat16 costs 1.7e-3, and cutting off
the rest twice as much."""


def differing_rows(expected, actual):
    """The rows that differ in any bit."""
    integers = {4: torch.int32, 2: torch.int16}[expected.element_size()]
    differs = expected.view(integers) != actual.view(integers)
    return differs.flatten(1).any(1).nonzero().flatten().tolist()


def error_of(actual, exact):
    """How far a result is from float64, relative to the whole."""
    return ((actual.double() - exact).norm() / exact.norm()).item()


@frozen(eq=False)
class Requests:
    """Queries, keys and values of requests of several lengths."""

    queries: list[torch.Tensor]
    """Per request: [length, heads, head_dim]."""
    keys: list[torch.Tensor]
    """Per request: [length, kv_heads, head_dim]."""
    values: list[torch.Tensor]

    def attend(self, ops, parts, seed=0, block_size=16):
        """Attends for parts (request, start, end) in one step; returns rows by (request, position).

        The KV up to `end` lies in blocks drawn by the seed; all other slots hold NaN.
        """
        tables, caches = self._place(parts, seed, block_size)
        query = torch.cat([self.queries[request][start:end] for request, start, end in parts])
        owners = [row for row, (_, start, end) in enumerate(parts) for _ in range(start, end)]
        positions = [position for _, start, end in parts for position in range(start, end)]
        batch = AttentionBatch(tables, int32(owners), int32(positions))
        rows = ops.paged_attention(query, *caches, batch)
        names = [(request, n) for request, start, end in parts for n in range(start, end)]
        return dict(zip(names, rows, strict=True))

    def _place(self, parts, seed, block_size):
        needed = [-(-end // block_size) for _, _, end in parts]
        order = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(seed))
        tables = torch.zeros(len(parts), max(needed), dtype=torch.int32)
        caches = [
            torch.full((len(order), block_size, *self.keys[0].shape[1:]), math.nan).to(kv[0].dtype)
            for kv in (self.keys, self.values)
        ]
        blocks = iter(order.tolist())
        for row, (request, _, end) in enumerate(parts):
            tables[row, : needed[row]] = int32([next(blocks) for _ in range(needed[row])])
            places = torch.arange(end)
            at = tables[row][places // block_size].long(), places % block_size
            caches[0][at] = self.keys[request][:end]
            caches[1][at] = self.values[request][:end]
        return tables, caches

    def attend_exactly(self):
        """The same for all requests as a whole, in plain float64."""
        rows = {}
        for request, query in enumerate(self.queries):
            length, num_heads, head_dim = query.shape
            group = num_heads // self.keys[request].shape[1]
            key = self.keys[request].double().repeat_interleave(group, 1)
            value = self.values[request].double().repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", query.double(), key) / math.sqrt(head_dim)
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            weights = scores.masked_fill(future, -math.inf).softmax(-1)
            for position, row in enumerate(torch.einsum("hqk,khd->qhd", weights, value)):
                rows[request, position] = row
        return rows


def make_requests(lengths, num_heads, num_kv_heads, head_dim, dtype):
    """Requests with random content, the same each time."""
    generator = torch.Generator().manual_seed(1)

    def draw(length, heads):
        return torch.randn(length, heads, head_dim, generator=generator).to(dtype)

    return Requests(
        [draw(length, num_heads) for length in lengths],
        [draw(length, num_kv_heads) for length in lengths],
        [draw(length, num_kv_heads) for length in lengths],
    )


def int32(numbers):
    """A tensor of int32."""
    return torch.tensor(numbers, dtype=torch.int32)


def draw(*shape, dtype, seed=0):
    """Random numbers, the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
