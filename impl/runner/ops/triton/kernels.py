"""The Triton kernels: matrix product, RMSNorm, RoPE, SiLU, and attention over a paged KV cache.

The bits of a row depend on that row, on what it attends to, and on the shape of the model. Three
habits keep it so:

- A reduction runs in one order that depends on absolute positions alone: K is never split among
  programs, KV tiles begin at positions 0, block_kv, 2 block_kv, …, and no atomics are used.
- Tile sizes are chosen by the shape of the model (`tiles.py`), never by the batch.
- Whatever changes with the batch is in `do_not_specialize`, so that one binary serves every batch.
  Triton would otherwise compile another one for a batch of 1, or of a multiple of 16.

Rows are contiguous, and start at multiples of 16 bytes, which `backend.py` sees to; so are weights,
caches and results as a whole. Sums are in float32, and a result is rounded once.
"""

# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: PLR0917  (a kernel is launched with what it needs, in order)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def matmul(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    out_ptr: tl.tensor,
    num_rows: int,
    x_stride: int,
    k: int,
    n: tl.constexpr,
    has_bias: tl.constexpr,
    has_rest: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
) -> None:
    """Computes one tile of x [num_rows, k] times weight [n, k] transposed, plus bias [n].

    `has_rest` says that block_k does not divide k. k is no constant, lest the loop be unrolled.
    """
    # Programs that run together share rows of x and of the weight, so that these stay in the cache.
    num_tiles_n: tl.constexpr = (n + block_n - 1) // block_n
    program = tl.program_id(0)
    first_m = program // (group_m * num_tiles_n) * group_m
    height = tl.minimum(tl.cdiv(num_rows, block_m) - first_m, group_m)
    in_group = program % (group_m * num_tiles_n)
    rows = (first_m + in_group % height) * block_m + tl.arange(0, block_m)
    cols = in_group // height * block_n + tl.arange(0, block_n)
    offsets = tl.arange(0, block_k)
    # Rows and columns past the end repeat others, and are not stored: loads need no mask.
    x_rows = x_ptr + (rows % num_rows).to(tl.int64)[:, None] * x_stride
    weight_cols = weight_ptr + (cols % n).to(tl.int64)[None, :] * k
    total = tl.full((block_m, block_n), 0.0, tl.float32)
    for start in range(0, k, block_k):
        at = start + offsets
        if has_rest:
            x = tl.load(x_rows + at[None, :], mask=at[None, :] < k, other=0.0)
            weight = tl.load(weight_cols + at[:, None], mask=at[:, None] < k, other=0.0)
        else:
            x = tl.load(x_rows + at[None, :])
            weight = tl.load(weight_cols + at[:, None])
        total = tl.dot(x, weight, total, input_precision="ieee")
    if has_bias:
        total += tl.load(bias_ptr + cols % n).to(tl.float32)[None, :]
    tl.store(
        out_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :],
        total.to(out_ptr.dtype.element_ty),
        mask=(rows < num_rows)[:, None] & (cols < n)[None, :],
    )


@triton.jit
def rms_norm(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    x_stride: int,
    eps: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Scales one row of x [num_rows, width] to a mean square of 1, then by the weight."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, block)
    is_in = cols < width
    x = tl.load(x_ptr + row * x_stride + cols, mask=is_in, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=is_in, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
    out = (x * scale * weight).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * width + cols, out, mask=is_in)


@triton.jit
def rope(
    x_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    out_ptr: tl.tensor,
    x_stride: int,
    num_heads: tl.constexpr,
    half: tl.constexpr,
    block_heads: tl.constexpr,
    block_half: tl.constexpr,
) -> None:
    """Rotates the heads of one token: x [num_tokens, num_heads, 2 half], cos and sin […, half]."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, block_heads)
    cols = tl.arange(0, block_half)
    cos = tl.load(cos_ptr + token * half + cols, mask=cols < half, other=0.0)[None, :]
    sin = tl.load(sin_ptr + token * half + cols, mask=cols < half, other=0.0)[None, :]
    is_in = (heads < num_heads)[:, None] & (cols < half)[None, :]
    at = heads[:, None] * (2 * half) + cols[None, :]
    x = x_ptr + token * x_stride + at
    first = tl.load(x, mask=is_in, other=0.0).to(tl.float32)
    second = tl.load(x + half, mask=is_in, other=0.0).to(tl.float32)
    out = out_ptr + token * num_heads * (2 * half) + at
    dtype = out_ptr.dtype.element_ty
    tl.store(out, (first * cos - second * sin).to(dtype), mask=is_in)
    tl.store(out + half, (second * cos + first * sin).to(dtype), mask=is_in)


@triton.jit
def silu_mul(
    gate_ptr: tl.tensor,
    up_ptr: tl.tensor,
    out_ptr: tl.tensor,
    gate_stride: int,
    up_stride: int,
    width: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Computes gate * sigmoid(gate) * up for one block of a row of [num_rows, width]."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    is_in = cols < width
    gate = tl.load(gate_ptr + row * gate_stride + cols, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + cols, mask=is_in, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * width + cols, out.to(out_ptr.dtype.element_ty), mask=is_in)


@triton.jit(do_not_specialize=["num_tokens", "table_stride"])
def paged_attention(
    query_ptr: tl.tensor,
    key_ptr: tl.tensor,
    value_ptr: tl.tensor,
    out_ptr: tl.tensor,
    block_tables_ptr: tl.tensor,
    request_of_token_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    first_of_tile_ptr: tl.tensor,
    num_tokens: int,
    query_stride: int,
    table_stride: int,
    scale: tl.constexpr,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    block_tokens: tl.constexpr,
    block_group: tl.constexpr,
    block_dim: tl.constexpr,
    block_kv: tl.constexpr,
) -> None:
    """Lets one tile of tokens of one request attend to the KV of that request, for one KV head.

    A tile has block_tokens tokens with the heads of the group of each, a row for each of both. What
    a row cannot see adds exactly nothing to it, so that how far its tile reaches does not matter.
    """
    first = tl.load(first_of_tile_ptr + tl.program_id(0))
    kv_head = tl.program_id(1)
    request, tokens, positions, is_in = _find_rows(
        request_of_token_ptr, positions_ptr, first, num_tokens, group, block_tokens, block_group
    )
    dims = tl.arange(0, block_dim)
    head = kv_head * group + tl.arange(0, block_tokens * block_group) % block_group
    at = (head * head_dim)[:, None] + dims[None, :]
    is_of_row = is_in[:, None] & (dims < head_dim)[None, :]
    query = tl.load(query_ptr + tokens[:, None] * query_stride + at, mask=is_of_row, other=0.0)
    largest = tl.full((block_tokens * block_group,), -1.0e30, tl.float32)
    weight = tl.full((block_tokens * block_group,), 0.0, tl.float32)
    total = tl.full((block_tokens * block_group, block_dim), 0.0, tl.float32)
    end = tl.max(positions, 0) + 1
    table = block_tables_ptr + request.to(tl.int64) * table_stride
    for start in range(0, end, block_kv):
        kv = start + tl.arange(0, block_kv)
        is_written = kv < end
        block = tl.load(table + kv // block_size, mask=is_written, other=0).to(tl.int64)
        slot = ((block * block_size + kv % block_size) * num_kv_heads + kv_head) * head_dim
        # Slots that nobody has written may hold NaN, which even a weight of 0 would let through.
        is_kv = is_written[:, None] & (dims < head_dim)[None, :]
        key = tl.load(key_ptr + slot[:, None] + dims[None, :], mask=is_kv, other=0.0)
        is_seen = kv[None, :] <= positions[:, None]
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(is_seen, score, -1.0e30)
        larger = tl.maximum(largest, tl.max(score, 1))
        # If a row sees nothing of a tile, share is 0 and shrink is exactly 1.
        share = tl.where(is_seen, tl.exp(score - larger[:, None]), 0.0)
        shrink = tl.exp(largest - larger)
        weight = weight * shrink + tl.sum(share, 1)
        value = tl.load(value_ptr + slot[:, None] + dims[None, :], mask=is_kv, other=0.0)
        total *= shrink[:, None]
        total = tl.dot(share.to(value.dtype), value, total, input_precision="ieee")
        largest = larger
    # Adding 0 turns -0 into 0, as a tile of which a row sees nothing does.
    out = total / tl.where(is_in, weight, 1.0)[:, None] + 0.0
    out_at = out_ptr + tokens[:, None] * (num_kv_heads * group * head_dim) + at
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=is_of_row)


@triton.jit
def _find_rows(
    request_of_token_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    first: tl.tensor,
    num_tokens: tl.tensor,
    group: tl.constexpr,
    block_tokens: tl.constexpr,
    block_group: tl.constexpr,
) -> tl.tensor:
    """Returns the request of a tile, and for each row its token, its position, and whether it is.

    A row that is not, since the tile ends before it or the group does, has position -1.
    """
    request = tl.load(request_of_token_ptr + first, mask=first < num_tokens, other=-1)
    rows = tl.arange(0, block_tokens * block_group)
    tokens = first + rows // block_group
    is_in = (tokens < num_tokens) & (rows % block_group < group)
    is_in &= tl.load(request_of_token_ptr + tokens, mask=is_in, other=-2) == request
    positions = tl.load(positions_ptr + tokens, mask=is_in, other=-1)
    return request, tokens.to(tl.int64), positions, is_in
