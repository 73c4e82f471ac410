"""Ordinary torch at its best on one kind of step: what ours is measured beside.

Entry point: `DenseOps`. cuBLAS multiplies, and SDPA attends to a cache in which each request's
blocks follow one another, so that nothing is gathered. It promises nothing about bits.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from impl.runner.ops.interface import AttentionBatch

Tensor = torch.Tensor


class DenseOps:
    """Steps in which all requests are equally long, and compute one token or all of them."""

    name = "dense"

    def __init__(
        self, device: torch.device, dtype: torch.dtype, num_reqs: int, length: int
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.num_reqs = num_reqs
        self.length = length

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiplies by a library."""
        return functional.linear(x, weight, bias)

    def head(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Multiplies by a library, in the dtype of the model."""
        return functional.linear(hidden, weight).float()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Norms in one kernel."""
        return functional.rms_norm(x, weight.shape, weight, eps)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates in the dtype of the model."""
        first, second = x.chunk(2, dim=-1)
        cos, sin = cos[:, None].to(self.dtype), sin[:, None].to(self.dtype)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """Two kernels."""
        return functional.silu(gate) * up

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: AttentionBatch
    ) -> Tensor:
        """Attends to views of the cache: of one token to all, or of all to those before."""
        key, value = (self._view(cache) for cache in (key_cache, value_cache))
        heads = query.view(self.num_reqs, -1, *query.shape[1:]).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(
            heads,
            key,
            value,
            is_causal=heads.shape[2] > 1,
            enable_gqa=heads.shape[1] != key.shape[1],
        )
        return attended.transpose(1, 2).reshape(query.shape)

    def _view(self, cache: Tensor) -> Tensor:
        """Returns [num_reqs, kv_heads, length, head_dim] of a cache, less the null block."""
        slots = cache[1:].flatten(0, 1)
        per_request = slots.view(self.num_reqs, -1, *slots.shape[1:])
        return per_request[:, : self.length].transpose(1, 2)
