"""Random numbers on the device, their bits, and steps made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from impl.runner.config import ModelConfig
from impl.runner.ops.interface import AttentionBatch
from impl.runner.weights import Weights, assemble, compute_shapes

Tensor = torch.Tensor

DTYPES = (torch.bfloat16, torch.float32)
MAX_ERROR = {torch.bfloat16: 4e-3, torch.float32: 1e-5}
"""Of a result as a whole against float64; what is broken is far beyond."""


def draw(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    """Draws random numbers, the same each time on one kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def draw_weight(n: int, k: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Draws a weight that neither grows nor shrinks what it multiplies."""
    return draw(n, k, dtype=torch.float32, device=device, seed=1).div(math.sqrt(k)).to(dtype)


def make_weights_there(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """Makes random weights on the device itself, since a CPU takes long for billions."""
    tensors = {
        name: torch.ones(shape, device=device)
        if len(shape) == 1
        else draw_weight(*shape, dtype, device)
        for name, shape in compute_shapes(config).items()
    }
    return assemble(config, tensors, device, dtype)


def count_differing(expected: Tensor, actual: Tensor) -> int:
    """Counts the rows that differ in any bit."""
    integers = {4: torch.int32, 2: torch.int16}[expected.element_size()]
    old, new = (rows.contiguous().view(integers).flatten(1) for rows in (expected, actual))
    return int((old != new).any(1).sum())


def compute_error(actual: Tensor, exact: Tensor) -> float:
    """Returns how far a result is from float64, relative to the whole."""
    return float((actual.double() - exact).norm() / exact.norm())


def make_batch(parts: list[tuple[int, int]], device: torch.device, width: int) -> AttentionBatch:
    """Packs the positions from start to end of each request, which holds `width` blocks in order.

    Block 0 is nobody's.
    """
    owners = [row for row, (start, end) in enumerate(parts) for _ in range(start, end)]
    positions = [position for start, end in parts for position in range(start, end)]
    blocks = torch.arange(1, len(parts) * width + 1, dtype=torch.int32, device=device)
    return AttentionBatch(
        block_tables=blocks.view(len(parts), width),
        request_of_token=torch.tensor(owners, dtype=torch.int32, device=device),
        positions=torch.tensor(positions, dtype=torch.int32, device=device),
    )


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Puts something else in the place of an attribute for as long as the block lasts."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
