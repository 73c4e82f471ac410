"""Ordinary torch in tiles of fixed shapes: the same bits however a request is scheduled.

Entry point: `TileOps`, the default on a CPU. Matrices are multiplied by `RowTiles`. In attention a
tile is `QUERY_TILE` queries at absolute positions (0 to 3, 4 to 7, …) over the first KV of their
request, up to an end that depends on the tile's position only. So each token is computed at the
same place of a tile of the same shape, whether it comes alone, in a chunk or in the whole prompt.

In bfloat16, rows are stored so; products are summed in float32 and rounded once, as on a GPU.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from attrs import frozen
from torch.nn import functional

from impl.runner.errors import RunnerError
from impl.runner.ops.interface import AttentionBatch
from impl.runner.ops.row_tiles import RowTiles
from impl.runner.ops.rowwise import RowwiseOps
from impl.runner.ops.spans import Span, find_spans

Tensor = torch.Tensor

QUERY_TILE = 4
"""Queries in a tile of attention; a request that decodes fills one place of it."""
KV_TILE = 64
"""KV is filled up to a multiple of so many tokens."""


@frozen(eq=False)
class TileGroup:
    """Tiles over equally much KV: several requests with one tile each, or one with several."""

    length: int
    """How much KV each looks at; a multiple of `KV_TILE`."""
    tables: Tensor
    """[num_reqs, blocks]: where that KV is."""
    is_unused: Tensor
    """[num_reqs, length]: where there is none, and the slots hold anything."""
    sources: Tensor
    """[num_tiles * QUERY_TILE]: the token in each place; in an unused one, any."""
    mask: Tensor
    """[num_tiles, 1, QUERY_TILE, length]: what each place attends to."""
    places: Tensor
    """The places that are used, …"""
    tokens: Tensor
    """… and the token of each."""


class TileOps(RowwiseOps):
    """Tiles whose shapes and places depend on the model and on positions, never on the batch."""

    name = "tile"

    def __init__(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(device, dtype)
        if self.device.type != "cpu":
            raise RunnerError(f"the tile backend is for the CPU, and not for {device}; take triton")
        self._row_tiles = RowTiles()
        self._planned: tuple[AttentionBatch, list[TileGroup]] | None = None

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiplies rows by tiles."""
        wide_bias = None if bias is None else bias.float()
        return self._row_tiles.multiply(x.float(), weight.float(), wide_bias).to(self.dtype)

    def head(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Multiplies rows by tiles, in float32."""
        return self._row_tiles.multiply(hidden.float(), weight.float())

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: AttentionBatch
    ) -> Tensor:
        """Attends tile by tile; tiles of one shape in one call, which computes each by itself."""
        attended = torch.empty_like(query)
        for group in self._plan(batch, key_cache.shape[1]):
            rows = _attend(group, query[group.sources].float(), key_cache, value_cache)
            attended[group.tokens] = rows[group.places].to(self.dtype)
        return attended

    def _plan(self, batch: AttentionBatch, block_size: int) -> list[TileGroup]:
        """Plans a step once for all its layers."""
        if self._planned is None or self._planned[0] is not batch:
            self._planned = (batch, plan_tiles(batch, block_size))
        return self._planned[1]


def plan_tiles(batch: AttentionBatch, block_size: int) -> list[TileGroup]:
    """Cuts the tokens of a step into tiles, and groups tiles that one call can do."""
    singles: defaultdict[int, list[tuple[Span, int]]] = defaultdict(list)
    groups = []
    for span in find_spans(batch):
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for tile in range(span.start // QUERY_TILE, -(-span.stop // QUERY_TILE)):
            by_length[compute_length(tile)].append(tile)
        for length, tiles in by_length.items():
            if len(tiles) == 1:
                singles[length].append((span, tiles[0]))
            else:
                pairs = [(span, tile) for tile in tiles]
                groups.append(_make_group(batch, block_size, length, [span], pairs))
    for length, pairs in singles.items():
        groups.append(_make_group(batch, block_size, length, [span for span, _ in pairs], pairs))
    return groups


def compute_length(tile: int) -> int:
    """How much KV a tile looks at: the tiles of KV that hold all its positions."""
    return -(-(tile + 1) * QUERY_TILE // KV_TILE) * KV_TILE


def _make_group(
    batch: AttentionBatch,
    block_size: int,
    length: int,
    spans: list[Span],
    tiles: list[tuple[Span, int]],
) -> TileGroup:
    num_blocks = -(-length // block_size)
    tables = batch.block_tables[[span.row for span in spans], :num_blocks]
    tables = functional.pad(tables, (0, num_blocks - tables.shape[1]))
    stops = torch.tensor([span.stop for span in spans])
    positions = torch.tensor([tile for _, tile in tiles])[:, None] * QUERY_TILE
    positions = positions + torch.arange(QUERY_TILE)
    starts, ends, firsts = torch.tensor(
        [(span.start, span.stop, span.first) for span, _ in tiles]
    ).T[:, :, None]
    is_used = ((starts <= positions) & (positions < ends)).flatten()
    tokens = (positions - starts + firsts).flatten()
    lengths = torch.arange(length)
    return TileGroup(
        length=length,
        tables=tables,
        is_unused=lengths >= stops[:, None],
        sources=torch.where(is_used, tokens, spans[0].first),
        mask=(lengths <= positions[..., None])[:, None],
        places=is_used.nonzero().flatten(),
        tokens=tokens[is_used],
    )


def _attend(group: TileGroup, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
    """Attends for all places of a group: query [places, heads, head_dim] -> the same."""
    num_kv_heads, head_dim = key_cache.shape[2:]
    num_tiles = group.mask.shape[0]
    num_shared = query.shape[1] // num_kv_heads

    def gather(cache: Tensor) -> Tensor:
        kept = cache[group.tables].flatten(1, 2)[:, : group.length].float()
        kept = kept.masked_fill(group.is_unused[:, :, None, None], 0).transpose(1, 2)
        # If the tiles are of one request, they all look at the same KV.
        return kept.expand(num_tiles, -1, -1, -1)

    # The queries that share a KV head stand together, as rows of one tile.
    tiles = query.view(num_tiles, QUERY_TILE, num_kv_heads, num_shared, head_dim).transpose(1, 2)
    attended = functional.scaled_dot_product_attention(
        tiles.flatten(2, 3),
        gather(key_cache),
        gather(value_cache),
        attn_mask=group.mask.repeat_interleave(num_shared, dim=2),
    )
    shape = (num_tiles, num_kv_heads, QUERY_TILE, num_shared, head_dim)
    return attended.view(shape).transpose(1, 2).reshape(query.shape)
