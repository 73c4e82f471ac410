"""Operations that work on each row by itself, shared by the backends of ordinary torch.

Entry point: `RowwiseOps`. torch computes these row by row, or number by number, on a CPU, whatever
the number of rows (tests/impl/runner/test_ops.py watches that). Sums are taken in float32.
"""

from __future__ import annotations

import torch
from torch.nn import functional

Tensor = torch.Tensor


class RowwiseOps:
    """The part of `Ops` that neither multiplies matrices nor looks at other tokens."""

    def __init__(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.device = torch.device(device)
        self.dtype = dtype

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Scales each row to a mean square of 1, then by the weight."""
        normed = functional.rms_norm(x.float(), weight.shape, weight.float(), eps)
        return normed.to(self.dtype)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates the two halves of each head."""
        first, second = x.float().chunk(2, dim=-1)
        cos, sin = cos[:, None], sin[:, None]
        rotated = [first * cos - second * sin, second * cos + first * sin]
        return torch.cat(rotated, dim=-1).to(self.dtype)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns gate * sigmoid(gate) * up."""
        return (functional.silu(gate.float()) * up.float()).to(self.dtype)
