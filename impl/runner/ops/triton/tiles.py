"""Which tiles a kernel works in: chosen by the model's shapes and dtype, never by the batch.

The order of every sum follows from these, and so do the bits. A prefill of 8000 rows and a decode
step of one run the same binary.
"""

from __future__ import annotations

import torch
from attrs import frozen


@frozen
class MatmulTiles:
    """How a matrix product is cut."""

    block_m: int
    """Rows of x that a program multiplies."""
    block_n: int
    """Columns of the result that a program computes."""
    block_k: int
    """Terms of a sum per turn of the loop."""
    num_warps: int
    num_stages: int
    """Turns of the loop whose loads are under way."""
    group_m: int = 8
    """Tiles of rows that take turns on the same columns, while these are in the cache."""


@frozen
class AttentionTiles:
    """How attention is cut."""

    block_tokens: int
    """Tokens of one request in a tile."""
    block_group: int
    """Query heads that share a KV head, rounded up to a power of 2."""
    block_dim: int
    """Elements of a head, rounded up to a power of 2."""
    block_kv: int
    """Positions in a KV tile."""
    num_warps: int
    num_stages: int


def choose_matmul(n: int, k: int, dtype: torch.dtype) -> MatmulTiles:
    """Chooses tiles for rows of k elements times a weight [n, k]."""
    if dtype == torch.float32:
        return MatmulTiles(32, 32, 32, num_warps=4, num_stages=3)
    # 64 rows are what a group of 4 warps multiplies at once. A narrow result is cut finer, so that
    # a decode step, which has a single tile of rows, still reaches many processors.
    return MatmulTiles(64, 64 if n < 8192 else 128, 64, num_warps=4, num_stages=4)


def choose_attention(group: int, head_dim: int, dtype: torch.dtype) -> AttentionTiles:
    """Chooses tiles for heads of `head_dim` elements, `group` of which share a KV head."""
    block_group, block_dim = round_up(group), max(16, round_up(head_dim))
    num_rows = 16 if dtype == torch.float32 else 64
    # Wide heads get shorter tiles or more warps, lest a program run out of registers.
    is_wide = block_dim > 128
    return AttentionTiles(
        max(1, num_rows // block_group),
        block_group,
        block_dim,
        block_kv=32 if is_wide or dtype == torch.float32 else 64,
        num_warps=8 if is_wide and dtype == torch.float32 else 4,
        num_stages=2,
    )


def round_up(number: int) -> int:
    """Returns the smallest power of 2 that is not below a positive number."""
    return 1 << (number - 1).bit_length()
