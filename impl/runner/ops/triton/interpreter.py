"""Triton's interpreter, which runs the kernels on a CPU, and what has to be mended in it.

Entry point: `prepare`. A mend is made only where kernels are interpreted; a GPU sees none of them.
"""

# ruff: noqa: PLC0415, SLF001  (triton reads TRITON_INTERPRET when it is imported, so that waits;
# what is mended is private)

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import torch

from impl.runner.errors import RunnerError

VARIABLE = "TRITON_INTERPRET"


def prepare(device: torch.device) -> None:
    """Sees to it that kernels are interpreted for a CPU, and compiled for a GPU.

    Raises `RunnerError` if triton was imported for the other one, which is for good.
    """
    if device.type == "cpu" and "triton" not in sys.modules:
        os.environ[VARIABLE] = "1"
    from triton import JITFunction
    from triton import language as tl

    is_interpreted = not isinstance(tl.sum, JITFunction)
    if device.type != "cpu" and is_interpreted:
        raise RunnerError(
            f"{VARIABLE}=1 runs kernels on the CPU, which would pass for {device}; unset it, or "
            "use the device cpu"
        )
    if device.type == "cpu" and not is_interpreted:
        raise RunnerError(
            f"triton was imported to compile for a GPU; start Python with {VARIABLE}=1 to run "
            "kernels on the CPU"
        )
    if is_interpreted:
        mend()


@cache
def mend() -> None:
    """Mends the interpreter of Triton 3.6 and 3.7, once: products, and the rounding of bfloat16.

    It holds a bfloat16 as a uint16. Its product multiplies these as numbers, and its rounding cuts
    off what a GPU rounds to the nearest even. It leaves a product to a BLAS, which may sum a row
    in an order that depends on where the row stands; a GPU sums all elements of a tile alike.
    """
    import triton
    from triton import language as tl
    from triton.runtime import interpreter

    convert_float = interpreter._convert_float
    create_dot = interpreter.InterpreterBuilder.create_dot

    def mended_convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            return round_to_bfloat16(data)
        return convert_float(data, source, target, rounding)

    def get_float32(handle: Any) -> Any:
        if handle.dtype.scalar == tl.float32:
            return handle.data
        return convert_float(handle.data, tl.bfloat16, tl.float32, None).view("float32")

    def mended_dot(self: Any, a: Any, b: Any, total: Any, *options: Any) -> Any:
        if not {a.dtype.scalar, b.dtype.scalar} <= {tl.float32, tl.bfloat16}:
            return create_dot(self, a, b, total, *options)
        product = multiply(get_float32(a), get_float32(b))
        return interpreter.TensorHandle(product + total.data, total.dtype.scalar)

    interpreter._convert_float = mended_convert_float
    interpreter.InterpreterBuilder.create_dot = mended_dot
    if triton.__version__.startswith("3.6."):
        mend_index()


def mend_index() -> None:
    """Lets a loop of Triton 3.6 end at a computed number, an array [1], which NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def mended_patch_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = mended_patch_tensor


def round_to_bfloat16(data: Any) -> Any:
    """Rounds a float32 array to the nearest bfloat16, ties to even; returns these as uint16."""
    import numpy as np

    bits = data.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(data), 0x7FFF, nearest).astype(np.uint16)


def multiply(a: Any, b: Any) -> Any:
    """Multiplies float32 arrays [m, k] and [k, n], all sums in one order."""
    import numpy as np

    return np.einsum("mk,kn->mn", a, b)
