"""Ordinary torch, as fast as it comes: the negative control.

Entry point: `PlainOps`. What a row comes to may depend on how many rows come with it, since torch
chooses its way by the whole shape. A suite that finds no difference here is not looking.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from impl.runner.ops.interface import AttentionBatch
from impl.runner.ops.rowwise import RowwiseOps
from impl.runner.ops.spans import Span, find_spans

Tensor = torch.Tensor


class PlainOps(RowwiseOps):
    """One call of torch for each matrix, and one for each prompt or for all decodes together."""

    name = "plain"

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiplies all rows at once."""
        return functional.linear(x, weight, bias)

    def head(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Multiplies all rows at once, in float32."""
        return functional.linear(hidden.float(), weight.float())

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: AttentionBatch
    ) -> Tensor:
        """Attends for all requests of one token at once, filled up to the longest, else singly."""
        spans = find_spans(batch)
        decodes = [span for span in spans if span.num_tokens == 1]
        groups = [[span] for span in spans if span.num_tokens > 1]
        attended = torch.empty_like(query)
        for group in [*groups, decodes] if decodes else groups:
            tokens = torch.cat([torch.arange(query.shape[0])[span.tokens] for span in group])
            attended[tokens] = self._attend(group, query[tokens], key_cache, value_cache, batch)
        return attended

    def _attend(
        self,
        group: list[Span],
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
    ) -> Tensor:
        """Attends for requests of equally many tokens: query [requests * tokens, heads, dim]."""
        length = max(span.stop for span in group)
        num_blocks = -(-length // key_cache.shape[1])
        tables = batch.block_tables[[span.row for span in group], :num_blocks]
        stops = torch.tensor([span.stop for span in group], device=self.device)
        places = torch.arange(length, device=self.device)
        is_unused = places >= stops[:, None]

        def gather(cache: Tensor) -> Tensor:
            kept = cache[tables].flatten(1, 2)[:, :length]
            return kept.masked_fill(is_unused[:, :, None, None], 0).transpose(1, 2)

        ends = torch.arange(1 - group[0].num_tokens, 1, device=self.device) + stops[:, None]
        mask = places < ends[:, None, :, None]
        heads = query.view(len(group), -1, *query.shape[1:]).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(
            heads, gather(key_cache), gather(value_cache), attn_mask=mask, enable_gqa=True
        )
        return attended.transpose(1, 2).reshape(query.shape)
