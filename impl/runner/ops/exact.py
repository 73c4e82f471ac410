"""Whole numbers, so that no order of a sum can matter: the same bits on every device.

Entry point: `ExactOps`. Factors are rounded to whole numbers of at most 8 bits (in attention,
values to 10 and their weights to 11), and no partial sum reaches 2^24, so float32 adds them without
rounding, in any order and with any unit. All else is done number by number with operations that
IEEE 754 rounds in one way only; exponentials come from tables. This is a model of its own, close to
the one it rounds.
"""

from __future__ import annotations

import torch

from impl.runner.errors import RunnerError
from impl.runner.ops.interface import AttentionBatch
from impl.runner.ops.rowwise import RowwiseOps
from impl.runner.ops.spans import Span, find_spans

Tensor = torch.Tensor

MAX_FACTOR = 127
"""The greatest whole number of a factor: int8 without its smallest."""
NUM_FACTORS = 1024
"""So many products stay below 2^24; longer rows are summed in pieces, and those in float64."""
MAX_SQUARED = 2**15
"""The greatest whole number that is squared; float64 sums 2^23 such squares without rounding."""
VALUE_STEP = 1 / 32
"""What values in attention are rounded to multiples of, …"""
MAX_VALUE = 511
"""… up to so many. All have one scale, since those of different tokens are added."""
MAX_SHARE = 2047
"""The greatest weight that attention gives to a token."""
KV_TILE = 16
"""Tokens whose weighted values stay below 2^24 together; tiles are summed in float64."""
NUM_EXPONENTS = 4096
"""Entries of the tables of exponentials."""
EXPONENT_STEP = 1 / 256


class ExactOps(RowwiseOps):
    """Sums of whole numbers, and nothing that two devices round in two ways."""

    name = "exact"

    def __init__(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        if dtype != torch.float32:
            raise RunnerError(f"the exact backend has no {dtype}; give it float32")
        super().__init__(device, dtype)
        exponents = torch.arange(NUM_EXPONENTS, dtype=torch.float64) * EXPONENT_STEP
        # Worked out on the CPU and rounded, so that every device is given the same numbers.
        self._shares = (MAX_SHARE * (-exponents).exp()).round().float().to(self.device)
        sigmoids = (1 / (1 + (-exponents).exp()) * 2**16).round() / 2**16
        self._sigmoids = sigmoids.float().to(self.device)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiplies whole numbers; each row of x and of the weight has a scale of its own."""
        factors, scales = _to_factors(x)
        weights, weight_scales = _to_factors(weight)
        pieces = [slice(n, n + NUM_FACTORS) for n in range(0, x.shape[1], NUM_FACTORS)]
        sums = [(factors[:, piece] @ weights[:, piece].T).double() for piece in pieces]
        product = (torch.stack(sums).sum(dim=0) * (scales * weight_scales.T)).float()
        return product if bias is None else product + bias

    def head(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Multiplies whole numbers."""
        return self.linear(hidden, weight, None)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Scales each row by a mean of whole squares, which float64 sums without rounding."""
        factors, scales = _to_whole(x, MAX_SQUARED)
        wide, wide_scales = factors.double(), scales.double()
        size = torch.full_like(wide_scales, x.shape[1])
        mean_square = (wide * wide).sum(dim=1, keepdim=True) / size * wide_scales * wide_scales
        return (wide * wide_scales / (mean_square + eps).sqrt()).float() * weight

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns gate * sigmoid(gate) * up; sigmoids come from a table."""
        sigmoids = _look_up(self._sigmoids, gate.abs())
        sigmoids = torch.where(gate < 0, 1 - sigmoids, sigmoids)
        return gate * sigmoids * up

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: AttentionBatch
    ) -> Tensor:
        """Attends request by request."""
        attended = torch.empty_like(query)
        for span in find_spans(batch):
            num_blocks = -(-span.stop // key_cache.shape[1])
            block_ids = batch.block_tables[span.row, :num_blocks]
            key = key_cache[block_ids].flatten(0, 1)[: span.stop]
            value = value_cache[block_ids].flatten(0, 1)[: span.stop]
            attended[span.tokens] = self._attend(span, query[span.tokens], key, value)
        return attended

    def _attend(self, span: Span, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attends for one request: query [n, heads, head_dim], KV [stop, kv heads, head_dim]."""
        num_tokens, num_heads, head_dim = query.shape
        num_kv_heads = key.shape[1]
        queries, query_scales = _to_factors(query)
        keys, key_scales = _to_factors(key)

        def group(rows: Tensor) -> Tensor:
            return rows.view(num_tokens, num_kv_heads, -1, rows.shape[-1])

        # [kv heads, heads of each, n, stop]
        sums = torch.einsum("nhgd,lhd->hgnl", group(queries), keys)
        scales = torch.einsum("nhgd,lhd->hgnl", group(query_scales), key_scales)
        places = torch.arange(span.stop, device=self.device)
        is_hidden = places > places[span.start :, None]
        scores = (sums * scales).masked_fill(is_hidden, -torch.inf)
        gaps = (scores.amax(dim=-1, keepdim=True) - scores) * head_dim**-0.5
        shares = _look_up(self._shares, gaps).masked_fill(is_hidden, 0)
        attended = _sum_shares(shares, _to_values(value))
        totals = shares.double().sum(dim=-1)[..., None]
        rows = (attended * VALUE_STEP / totals).float()
        return rows.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)


def _sum_shares(shares: Tensor, value: Tensor) -> Tensor:
    """Sums values by shares, whole numbers both: [h, g, n, l], [l, h, d] -> [h, g, n, d]."""
    tiles = [slice(n, n + KV_TILE) for n in range(0, value.shape[0], KV_TILE)]
    sums = [
        torch.einsum("hgnl,lhd->hgnd", shares[..., tile], value[tile]).double() for tile in tiles
    ]
    return torch.stack(sums).sum(dim=0)


def _to_factors(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds each row to int8 without its smallest, and a power of two to multiply it by."""
    factors, scales = _to_whole(x, MAX_FACTOR + 1)
    return factors.clamp(-MAX_FACTOR, MAX_FACTOR), scales


def _to_whole(x: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Rounds each row to whole numbers up to a limit, and a power of two to multiply it by.

    The limit is a power of two, too, and scaling by one rounds nothing on any device.
    """
    greatest = x.abs().amax(dim=-1, keepdim=True) / limit
    # The least power of two that is not below: the exponent field of a float32, rounded up.
    bits = greatest.view(torch.int32)
    exponents = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    scales = (exponents.clamp(1, 253) << 23).view(torch.float32)
    return (x / scales).round(), scales


def _to_values(x: Tensor) -> Tensor:
    """Rounds to whole multiples of `VALUE_STEP`."""
    return (x / VALUE_STEP).round().clamp(-MAX_VALUE, MAX_VALUE)


def _look_up(table: Tensor, exponents: Tensor) -> Tensor:
    """Returns what a table says for exponents, at least 0; what is not a number stays so."""
    places = (exponents / EXPONENT_STEP).clamp_max(NUM_EXPONENTS - 1).long().clamp_min(0)
    return torch.where(exponents.isnan(), exponents, table[places])
