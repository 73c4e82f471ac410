"""What Triton's interpreter computes before and after it is mended, as JSON: a program of its own.

A mend is for good, so that the tests, which need it, cannot look at the state before.
"""

from __future__ import annotations

import contextlib
import json
import sys

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterError

from impl.runner.ops.triton.interpreter import mend

SIZE = 16


@triton.jit
def multiply(a_ptr: tl.tensor, b_ptr: tl.tensor, out_ptr: tl.tensor, size: tl.constexpr) -> None:
    """Multiplies two square tiles."""
    at = tl.arange(0, size)[:, None] * size + tl.arange(0, size)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@triton.jit
def narrow(x_ptr: tl.tensor, out_ptr: tl.tensor, size: tl.constexpr) -> None:
    """Rounds to bfloat16."""
    at = tl.arange(0, size)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(tl.bfloat16))


@triton.jit
def count(x_ptr: tl.tensor, out_ptr: tl.tensor, size: tl.constexpr) -> None:
    """Loops up to a number that is computed."""
    total = 0
    for _ in range(tl.max(tl.load(x_ptr + tl.arange(0, size)), 0)):
        total += 1
    tl.store(out_ptr, total)


def look():
    """Computes products, roundings and a loop, and compares them with what they should be."""
    a = torch.arange(SIZE * SIZE).view(SIZE, SIZE).remainder(7).to(torch.bfloat16)
    product = torch.empty(SIZE, SIZE)
    multiply[(1,)](a, a, product, SIZE)
    # Ties, the largest number, infinity and NaN among them.
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3FFFFFFF, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]
    x = torch.tensor(bits * 3, dtype=torch.int32).view(torch.float32)[:SIZE]
    rounded = torch.empty(SIZE, dtype=torch.bfloat16)
    narrow[(1,)](x, rounded, SIZE)
    counted = torch.zeros(1, dtype=torch.int32)
    with contextlib.suppress(InterpreterError):
        count[(1,)](torch.arange(SIZE, dtype=torch.int32), counted, SIZE)
    nearest = x.to(torch.bfloat16)
    return {
        "products": torch.equal(product, a.float() @ a.float()),
        "rounding": bool(((rounded == nearest) | (rounded.isnan() & nearest.isnan())).all()),
        "loops": counted.item() == SIZE - 1,
    }


if __name__ == "__main__":
    seen = {"triton": triton.__version__, "before": look()}
    mend()
    seen["after"] = look()
    sys.stdout.write(json.dumps(seen))
