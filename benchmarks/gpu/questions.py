"""What only a device answers: which choices keep the bits of a row, and what others would cost.

Nothing here says that the backend is wrong: it makes one choice for all batches, whatever others
would do. The answers say which choices it might make by the batch, or leave to a library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from attrs import asdict, evolve
from torch.nn import functional

from benchmarks.gpu.correctness import BLOCK_SIZE
from benchmarks.gpu.sizes import Setting
from benchmarks.gpu.tensors import (
    DTYPES,
    count_differing,
    draw,
    draw_weight,
    make_batch,
    replaced,
)
from benchmarks.gpu.timing import measure_us
from impl.runner.ops.backends import make_ops
from impl.runner.ops.interface import Ops
from impl.runner.ops.triton import backend
from impl.runner.ops.triton.tiles import MatmulTiles, choose_attention, choose_matmul

Tensor = torch.Tensor
Row = dict[str, Any]

# (block_m, block_n, num_warps, num_stages); block_k stays, since it is the order of the sum.
PRODUCT_TILES = {
    torch.bfloat16: (
        (16, 64, 4, 4),
        (16, 128, 4, 4),
        (32, 64, 4, 4),
        (64, 32, 4, 5),
        (64, 64, 4, 4),
        (64, 128, 4, 4),
        (64, 128, 8, 3),
        (128, 64, 4, 4),
        (128, 128, 8, 3),
        (128, 256, 8, 3),
    ),
    torch.float32: ((16, 32, 4, 3), (32, 32, 4, 3), (32, 64, 4, 3), (64, 64, 8, 3)),
}
# (rows, num_warps, num_stages); block_kv stays.
ATTENTION_TILES = {
    torch.bfloat16: ((16, 1, 2), (16, 4, 2), (32, 2, 2), (64, 4, 2), (64, 4, 3), (128, 8, 2)),
    torch.float32: ((16, 4, 2), (32, 4, 2)),
}


def ask_library(setting: Setting) -> Iterator[Row]:
    """Finds where torch's product gives a row other bits, with and without split-K."""
    for dtype in DTYPES:
        for name, settle in _library_modes(setting, dtype).items():
            for n, k in setting.products:
                x = draw(setting.num_rows[-1], k, dtype=dtype, device=setting.device)
                weight = draw_weight(n, k, dtype, setting.device)
                with settle():
                    whole = functional.linear(x, weight)
                    other = {
                        m: count_differing(whole[:m], functional.linear(x[:m], weight))
                        for m in setting.num_rows
                    }
                yield {
                    "mode": name,
                    "dtype": str(dtype).removeprefix("torch."),
                    "weight": f"{n}x{k}",
                    "differing": {m: num for m, num in other.items() if num},
                }


def _library_modes(
    setting: Setting, dtype: torch.dtype
) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """The ways in which torch lets one choose; a CPU has one."""
    modes: dict[str, Callable[[], AbstractContextManager[None]]] = {"default": nullcontext}
    if setting.device.type != "cuda" or dtype != torch.bfloat16:
        return modes
    for library in ("cublas", "cublaslt"):
        modes[f"without split-K, {library}"] = partial(_without_split_k, library)
    return modes


@contextmanager
def _without_split_k(library: str) -> Iterator[None]:
    """Lets torch multiply with a library, whose programs must not share a sum."""
    # A pair since torch 2.10: whether to reduce in lower precision, and whether to split K.
    name = "allow_bf16_reduced_precision_reduction"
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(library)
    try:
        with replaced(torch.backends.cuda.matmul, name, (False, False)):
            yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def ask_product_tiles(setting: Setting) -> Iterator[Row]:
    """Finds the tiles that give every row the bits that the chosen ones give."""
    for dtype in DTYPES:
        ops = make_ops("triton", setting.device, dtype)
        for n, k in setting.products:
            x = draw(setting.num_rows[-1], k, dtype=dtype, device=setting.device)
            weight = draw_weight(n, k, dtype, setting.device)
            chosen = ops.linear(x, weight, None)
            for tiles in _other_product_tiles(setting, n, k, dtype):
                yield {
                    "dtype": str(dtype).removeprefix("torch."),
                    "weight": f"{n}x{k}",
                    **_describe(tiles),
                    "differing": _try(
                        lambda tiles=tiles, x=x, weight=weight, chosen=chosen, ops=ops: (
                            count_differing(chosen, _multiply(ops, x, weight, tiles))
                        )
                    ),
                }


def ask_attention_tiles(setting: Setting) -> Iterator[Row]:
    """Finds the tiles that give every row of attention the bits that the chosen ones give."""
    for dtype in DTYPES:
        ops = make_ops("triton", setting.device, dtype)
        for num_heads, num_kv_heads, head_dim in setting.attention:
            attend = _make_attention(setting, ops, (num_heads, num_kv_heads, head_dim))
            chosen = attend()
            tiles = choose_attention(num_heads // num_kv_heads, head_dim, dtype)
            for num_rows, num_warps, num_stages in ATTENTION_TILES[dtype][: _limit(setting)]:
                other = evolve(
                    tiles,
                    block_tokens=max(1, num_rows // tiles.block_group),
                    num_warps=num_warps,
                    num_stages=num_stages,
                )
                with replaced(backend, "choose_attention", lambda *_, other=other: other):
                    differing = _try(
                        lambda attend=attend, chosen=chosen: count_differing(chosen, attend())
                    )
                yield {
                    "dtype": str(dtype).removeprefix("torch."),
                    "heads": f"{num_heads}/{num_kv_heads}x{head_dim}",
                    **asdict(other),
                    "differing": differing,
                }


def measure_product_tiles(setting: Setting) -> Iterator[Row]:
    """What a product costs with each of the tiles, beside torch's."""
    dtype = torch.bfloat16
    ops = make_ops("triton", setting.device, dtype)
    for n, k in setting.products:
        weight = draw_weight(n, k, dtype, setting.device)
        for m in setting.timed_rows:
            x = draw(m, k, dtype=dtype, device=setting.device)
            costs = {
                str(_describe(tiles)): _try(
                    lambda tiles=tiles, x=x, weight=weight: measure_us(
                        setting, lambda: _multiply(ops, x, weight, tiles)
                    )
                )
                for tiles in _other_product_tiles(setting, n, k, dtype)
            }
            yield {
                "weight": f"{n}x{k}",
                "rows": m,
                "torch_us": measure_us(
                    setting, lambda x=x, weight=weight: functional.linear(x, weight)
                ),
                "tiles_us": costs,
            }


def _other_product_tiles(
    setting: Setting, n: int, k: int, dtype: torch.dtype
) -> Iterator[MatmulTiles]:
    chosen = choose_matmul(n, k, dtype)
    for block_m, block_n, num_warps, num_stages in PRODUCT_TILES[dtype][: _limit(setting)]:
        yield evolve(
            chosen, block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages
        )


def _limit(setting: Setting) -> int | None:
    """A dry run tries two of all choices."""
    return 2 if setting.is_dry else None


def _describe(tiles: MatmulTiles) -> Row:
    size = f"{tiles.block_m}x{tiles.block_n}x{tiles.block_k}"
    return {"tile": size, "warps": tiles.num_warps, "stages": tiles.num_stages}


def _multiply(ops: Ops, x: Tensor, weight: Tensor, tiles: MatmulTiles) -> Tensor:
    with replaced(backend, "choose_matmul", lambda *_: tiles):
        return ops.linear(x, weight, None)


def _make_attention(
    setting: Setting, ops: Ops, shape: tuple[int, int, int]
) -> Callable[[], Tensor]:
    num_heads, num_kv_heads, head_dim = shape
    width = -(-setting.length // BLOCK_SIZE)
    query = draw(setting.length, num_heads, head_dim, dtype=ops.dtype, device=setting.device)
    cache = draw(
        width + 1, BLOCK_SIZE, num_kv_heads, head_dim, dtype=ops.dtype, device=setting.device
    )

    def attend() -> Tensor:
        # A batch of its own each time: tiles of another one would be used again.
        batch = make_batch([(0, setting.length)], setting.device, width)
        return ops.paged_attention(query, cache, cache, batch)

    return attend


def _try(ask: Callable[[], Any]) -> Any:
    """Asks; a choice that does not fit the device, of shared memory say, is an answer, too."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  (Triton's own errors have no other base)
        return f"{type(error).__name__}: {str(error)[:80]}"
