"""The backends by name. Entry point: `make_ops`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from impl.runner.errors import RunnerError
from impl.runner.ops.exact import ExactOps
from impl.runner.ops.interface import Ops
from impl.runner.ops.plain import PlainOps
from impl.runner.ops.tile import TileOps


def make_ops(
    name: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Ops:
    """Makes a backend. Raises `RunnerError` if there is none of the name."""
    if name not in BACKENDS:
        raise RunnerError(f"there is no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    return BACKENDS[name](torch.device(device), dtype)


def _make_triton_ops(device: torch.device, dtype: torch.dtype) -> Ops:
    # Loading Triton takes a while, and only Linux has it.
    from impl.runner.ops.triton.backend import TritonOps  # noqa: PLC0415

    return TritonOps(device, dtype)


BACKENDS: dict[str, Callable[[torch.device, torch.dtype], Ops]] = {
    "tile": TileOps,
    "plain": PlainOps,
    "exact": ExactOps,
    "triton": _make_triton_ops,
}
"""What makes each."""
