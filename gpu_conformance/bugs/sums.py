"""Sums whose order depends on what else is in the step: no data is wrong, and yet the bits are."""

from __future__ import annotations

from typing import Any

from checkers.planting import Method
from gpu_conformance.bugs.registry import bug


@bug(
    target="impl.runner.ops.tile:TileOps.linear",
    axis="batch_size",
    value=2,
    nature="numeric",
)
def a_product_is_split_if_there_are_few_rows(original: Method) -> Method:
    """With fewer than 8 rows a matrix product is summed in two halves (split-K)."""

    def linear(self: Any, x: Any, weight: Any, bias: Any) -> Any:
        if len(x) >= 8:
            return original(self, x, weight, bias)
        half = x.shape[1] // 2
        first = original(self, x[:, :half], weight[:, :half].contiguous(), None)
        return first + original(self, x[:, half:], weight[:, half:].contiguous(), bias)

    return linear


@bug(
    target="impl.runner.ops.rowwise:RowwiseOps.rms_norm",
    axis="prefill_chunk_size",
    value=1,
    nature="numeric",
)
def a_norm_is_more_precise_for_few_rows(original: Method) -> Method:
    """With fewer than 8 rows the mean square of a row is summed in float64."""

    def rms_norm(self: Any, x: Any, weight: Any, eps: float) -> Any:
        if len(x) >= 8:
            return original(self, x, weight, eps)
        wide = x.double()
        mean_square = wide.square().mean(dim=-1, keepdim=True)
        return (wide / (mean_square + eps).sqrt() * weight).to(self.dtype)

    return rms_norm
