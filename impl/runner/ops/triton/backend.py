"""The operations of a model, computed by the Triton kernels.

Entry point: `TritonOps`.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from attrs import Factory, define, field

from impl.runner.errors import RunnerError
from impl.runner.ops.interface import AttentionBatch, Tensor
from impl.runner.ops.triton.interpreter import prepare
from impl.runner.ops.triton.tiles import choose_attention, choose_matmul, round_up

ALIGNMENT = 16
"""In bytes. Triton compiles another binary for a tensor that starts elsewhere."""
SILU_BLOCK = 1024


def _load_kernels(device: torch.device) -> Any:
    prepare(device)
    return importlib.import_module("impl.runner.ops.triton.kernels")


@define(eq=False)
class TritonOps:
    """Computes each row by itself, on a GPU or, much slower, under Triton's interpreter."""

    device: torch.device
    dtype: torch.dtype
    name: str = "triton"
    _kernels: Any = field(
        init=False, default=Factory(lambda self: _load_kernels(self.device), takes_self=True)
    )
    _batch: AttentionBatch | None = field(init=False, default=None)
    """The batch that `_first_of_tile` is of."""
    _first_of_tile: Tensor | None = field(init=False, default=None)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiplies rows by a matrix, each sum in one order; the bias is added before rounding."""
        return self._multiply(x, weight, bias, self.dtype)

    def head(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Returns logits in float32, which are not rounded to the dtype of the operands."""
        return self._multiply(hidden, weight, None, torch.float32)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Scales each row to a mean square of 1, then by the weight; one program computes a row."""
        x = _rows(x)
        num_rows, width = x.shape
        out = _empty_like(x)
        block = round_up(width)
        arguments = (x, _fixed(weight), out, x.stride(0), eps, width, block)
        self._launch("rms_norm", (num_rows,), arguments, num_warps=min(8, max(1, block // 512)))
        return out

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates the two halves of each head, in float32."""
        x, cos, sin = _rows(x), _contiguous(cos), _contiguous(sin)
        num_tokens, num_heads, head_dim = x.shape
        half = head_dim // 2
        out = _empty_like(x)
        shape = (num_heads, half, round_up(num_heads), round_up(half))
        arguments = (x, cos, sin, out, x.stride(0), *shape)
        self._launch("rope", (num_tokens,), arguments, num_warps=4)
        return out

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns gate * sigmoid(gate) * up, in float32 up to the one rounding."""
        gate, up = _rows(gate), _rows(up)
        num_rows, width = gate.shape
        out = _empty_like(gate)
        arguments = (gate, up, out, gate.stride(0), up.stride(0), width, SILU_BLOCK)
        grid = (num_rows, _count(width, SILU_BLOCK))
        self._launch("silu_mul", grid, arguments, num_warps=4)
        return out

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: AttentionBatch
    ) -> Tensor:
        """Lets each token attend to its request's KV, in tiles of positions from 0 on."""
        query = _rows(query)
        num_tokens, num_heads, head_dim = query.shape
        _, block_size, num_kv_heads, _ = key_cache.shape
        group = num_heads // num_kv_heads
        tiles = choose_attention(group, head_dim, self.dtype)
        first_of_tile = self._tiles_of(batch, tiles.block_tokens)
        out = _empty_like(query)
        tables = _contiguous(batch.block_tables)
        self._launch(
            "paged_attention",
            (first_of_tile.shape[0], num_kv_heads),
            (
                query,
                _fixed(key_cache),
                _fixed(value_cache),
                out,
                tables,
                _contiguous(batch.request_of_token),
                _contiguous(batch.positions),
                first_of_tile,
                num_tokens,
                query.stride(0),
                tables.stride(0),
                head_dim**-0.5,
                num_kv_heads,
                group,
                head_dim,
                block_size,
                tiles.block_tokens,
                tiles.block_group,
                tiles.block_dim,
                tiles.block_kv,
            ),
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
        )
        return out

    def _multiply(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        x = _rows(x)
        num_rows, k = x.shape
        n = weight.shape[0]
        tiles = choose_matmul(n, k, self.dtype)
        out = torch.empty((num_rows, n), dtype=dtype, device=x.device)
        self._launch(
            "matmul",
            (_count(num_rows, tiles.block_m) * _count(n, tiles.block_n),),
            (
                x,
                _fixed(weight),
                out if bias is None else _fixed(bias),
                out,
                num_rows,
                x.stride(0),
                k,
                n,
                bias is not None,
                k % tiles.block_k != 0,
                tiles.block_m,
                tiles.block_n,
                tiles.block_k,
                tiles.group_m,
            ),
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
        )
        return out

    def _tiles_of(self, batch: AttentionBatch, block_tokens: int) -> Tensor:
        """Cuts a batch into tiles once for all layers."""
        if self._batch is not batch or self._first_of_tile is None:
            self._batch, self._first_of_tile = batch, find_tiles(batch, block_tokens)
        return self._first_of_tile

    def _launch(
        self, name: str, grid: tuple[int, ...], arguments: tuple[Any, ...], **options: int
    ) -> None:
        """Runs a kernel; a grid without programs is no launch."""
        if 0 not in grid:
            getattr(self._kernels, name)[grid](*arguments, **options)


def find_tiles(batch: AttentionBatch, block_tokens: int) -> Tensor:
    """Returns the first token of each tile: at most block_tokens of one request, in order.

    How many tiles there may be follows from the shapes, so that nothing waits for the GPU, and a
    graph may hold it. The tiles left over begin past the last token.
    """
    requests = batch.request_of_token
    num_tokens, num_reqs = requests.shape[0], batch.block_tables.shape[0]
    max_num_tiles = min(num_tokens, (num_tokens + num_reqs * (block_tokens - 1)) // block_tokens)
    tokens = torch.arange(num_tokens, device=requests.device)
    begins = torch.ones_like(tokens, dtype=torch.bool)
    begins[1:] = requests[1:] != requests[:-1]
    first_of_run = torch.where(begins, tokens, 0).cummax(0).values
    is_first = (tokens - first_of_run) % block_tokens == 0
    # Who is first in no tile is written behind the last one, which is cut off.
    tile = torch.where(is_first, is_first.cumsum(0) - 1, max_num_tiles)
    first_of_tile = torch.full((max_num_tiles + 1,), num_tokens, device=requests.device)
    return first_of_tile.scatter_(0, tile, tokens)[:max_num_tiles].to(torch.int32)


def _rows(x: Tensor) -> Tensor:
    """Returns a tensor whose rows are where kernels expect them, a copy if need be."""
    starts_right = x.data_ptr() % ALIGNMENT == 0 == x.stride(0) * x.element_size() % ALIGNMENT
    is_good = x.shape[0] == 0 or (starts_right and x[0].is_contiguous())
    return x if is_good else x.clone(memory_format=torch.contiguous_format)


def _contiguous(x: Tensor) -> Tensor:
    """Returns a tensor without gaps, a copy if need be."""
    return x if _is_contiguous(x) else x.clone(memory_format=torch.contiguous_format)


def _fixed(x: Tensor) -> Tensor:
    """Returns a weight or a cache as it is, since a copy at each call would cost too much."""
    if not _is_contiguous(x):
        raise RunnerError(
            f"a weight or KV cache of shape {tuple(x.shape)} is not contiguous from a multiple of "
            f"{ALIGNMENT} bytes on; clone() it once"
        )
    return x


def _is_contiguous(x: Tensor) -> bool:
    return x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0


def _empty_like(x: Tensor) -> Tensor:
    """Returns room for a result without gaps, whatever x is a part of."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _count(number: int, block: int) -> int:
    """Returns how many blocks hold a number of things."""
    return -(-number // block)
