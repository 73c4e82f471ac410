"""The few operations that a model is made of, which each backend computes in its own way.

Entry point: `Ops`. A backend that promises the same bits however a request is scheduled computes
each row by itself: nothing about a row of a result depends on how many rows come with it, on where
among them it stands, or on which blocks hold its KV.
"""

from __future__ import annotations

from typing import Protocol

import torch
from attrs import frozen

Tensor = torch.Tensor


@frozen(eq=False)
class AttentionBatch:
    """Who attends to what in one step; the same for all layers."""

    block_tables: Tensor
    """[num_reqs, max_blocks], int32: the blocks of each request in the step, in order; entries
    past the end of a request's table are 0, and no token attends to them."""
    request_of_token: Tensor
    """[num_tokens], int32: the row of `block_tables` that a token belongs to. The tokens of one
    request stand together, in the order of their positions, which have no gap."""
    positions: Tensor
    """[num_tokens], int32: a token attends to the positions 0 to its own of its request."""


class Ops(Protocol):
    """A backend. It takes and returns tensors on its `device`, in its `dtype` where not said."""

    name: str
    device: torch.device
    dtype: torch.dtype
    """Of weights, activations and the KV cache."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiplies rows by a matrix: x [n, K], weight [N, K], bias [N] -> [n, N]."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Scales each row to a mean square of 1, then by the weight: x [n, d], weight [d]."""

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates the two halves of each head: x [n, heads, head_dim], cos, sin [n, head_dim / 2].

        With x = (a, b) that is (a cos - b sin, b cos + a sin), as in Llama. cos and sin are
        float32.
        """

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: AttentionBatch
    ) -> Tensor:
        """Lets each token attend to its request's KV, scaled by 1 / sqrt(head_dim).

        query [n, heads, head_dim]; the caches [num_blocks, block_size, kv_heads, head_dim];
        -> [n, heads, head_dim]. Slots past a token's own position hold anything, NaN included.
        """

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns gate * sigmoid(gate) * up, by element: [n, d]."""

    def head(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Returns logits: hidden [m, d], weight [V, d] -> [m, V], float32 whatever the dtype."""
