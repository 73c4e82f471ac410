"""Sums whose order depends on what else is in the step: no data is wrong, and yet the bits are."""

from __future__ import annotations

from typing import Any

import attrs

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


@bug(target="impl.runner.ops.tile:_attend", axis="prompt_length", value=130, nature="numeric")
def few_queries_sum_long_kv_backwards(original: Method) -> Method:
    """Over more than 64 tokens of KV, fewer than 3 tiles of queries begin at the last block."""

    def _attend(group: Any, query: Any, key_cache: Any, value_cache: Any) -> Any:
        def turn(x: Any) -> Any:
            return x.unflatten(-1, (-1, key_cache.shape[1])).flip(-2).flatten(-2)

        if group.length > 64 and len(group.mask) < 3:
            group = attrs.evolve(
                group,
                tables=group.tables.flip(1),
                is_unused=turn(group.is_unused),
                mask=turn(group.mask),
            )
        return original(group, query, key_cache, value_cache)

    return _attend


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
