"""Rows times a matrix in tiles of rows, such that a row never feels how many rows come with it.

Entry point: `RowTiles.multiply`. torch chooses how to multiply by the whole shape, and different
ways add up in different orders. A tile always has the same number of rows, so the way is always the
same. Other heights are used only where they were seen to give the same bits as that one: the order
of the sums depends on shapes and not on numbers, so that random rows tell.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

Tensor = torch.Tensor
Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]

BASE_HEIGHT = 16
HEIGHTS = (2, 4, 8, 16, 32, 64, 128, 256)
SHIFTS = (1, 3, 7)
"""By how many places rows are moved to see whether they feel their place in a tile."""

ALIGNMENT = 64
"""Bytes: what torch aligns fresh tensors to, and what MKL asks for to give the same bits."""

Key = tuple[int, int, bool, int]
"""What torch chooses its way by, beside the height: K, N, whether there is a bias, threads."""


class RowTiles:
    """Multiplies by tiles of rows; remembers which heights agree, by shape."""

    def __init__(self, multiply: Multiply = functional.linear) -> None:
        self._multiply = multiply
        self._agrees: dict[tuple[Key, int], bool] = {}

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies rows by a matrix: x [n, K], weight [N, K], bias [N] -> [n, N]."""
        parts = []
        start, num_rows = 0, x.shape[0]
        while start < num_rows:
            height = self._choose_height(num_rows - start, weight, bias)
            parts.append(self._multiply_tile(x[start : start + height], height, weight, bias))
            start += height
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _multiply_tile(self, x: Tensor, height: int, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiplies at most `height` rows, filled up with zeros to so many."""
        num_rows = x.shape[0]
        if num_rows < height:
            x = functional.pad(x, (0, 0, 0, height - num_rows))
        elif x.data_ptr() % ALIGNMENT:
            # Where numbers lie may have a say in how they are added.
            x = x.clone()
        return self._multiply(x, weight, bias)[:num_rows]

    def _choose_height(self, num_rows: int, weight: Tensor, bias: Tensor | None) -> int:
        """Up to the base height the lowest tile that holds all rows, beyond it the highest full."""
        if num_rows >= BASE_HEIGHT:
            candidates = [height for height in reversed(HEIGHTS) if height <= num_rows]
        else:
            candidates = [height for height in HEIGHTS if num_rows <= height < BASE_HEIGHT]
        for height in (*candidates, BASE_HEIGHT):
            if self._is_safe(height, weight, bias):
                return height
        # Not even the base height is blind to the place of a row; a row alone has one place only.
        return 1

    def _is_safe(self, height: int, weight: Tensor, bias: Tensor | None) -> bool:
        num_outputs, num_inputs = weight.shape
        key = (num_inputs, num_outputs, bias is not None, torch.get_num_threads())
        if (key, height) not in self._agrees:
            self._agrees[key, height] = self._probe(height, weight, bias)
        return self._agrees[key, height]

    def _probe(self, height: int, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether rows in tiles of a height, wherever they stand, come to the same as in the base.

        The base height itself is asked whether a row feels its place.
        """
        num_rows = max(height, BASE_HEIGHT)
        generator = torch.Generator().manual_seed(height)
        x = torch.randn(num_rows, weight.shape[1], generator=generator).to(weight)
        expected = self._multiply_all(x, BASE_HEIGHT, weight, bias)
        return all(
            torch.equal(
                expected.roll(shift, 0),
                self._multiply_all(x.roll(shift, 0), height, weight, bias),
            )
            for shift in (0, *SHIFTS)
        )

    def _multiply_all(self, x: Tensor, height: int, weight: Tensor, bias: Tensor | None) -> Tensor:
        starts = range(0, x.shape[0], height)
        return torch.cat([self._multiply(x[n : n + height], weight, bias) for n in starts])
