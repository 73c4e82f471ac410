from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from impl.runner.errors import RunnerError
from impl.runner.ops.triton.interpreter import VARIABLE, multiply, prepare, round_to_bfloat16
from tests.impl.runner.triton_support import needs_triton

pytestmark = needs_triton

ROOT = Path(__file__).parents[3]


def run_python(*arguments, interpret):
    """Runs Python in the repository, with or without the interpreter asked for."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if interpret:
        environment[VARIABLE] = "1"
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.fixture(scope="module")
def looked():
    """What the interpreter computes before and after it is mended."""
    return json.loads(run_python("-m", "tests.impl.runner.triton_unmended", interpret=True))


def test_the_interpreter_needs_its_mends(looked):
    """Triton 3.6 and 3.7 get products and rounding of bfloat16 wrong, 3.6 a loop with NumPy 2.4."""
    loops = not looked["triton"].startswith("3.6.")
    assert {"products": False, "rounding": False, "loops": loops} == looked["before"]


def test_the_mends_mend(looked):
    """Once mended, the interpreter gets all of it right."""
    assert {"products": True, "rounding": True, "loops": True} == looked["after"]


def test_rounding_is_that_of_torch():
    """A float32 is rounded to the nearest bfloat16, ties to even, NaN to NaN, for random bits."""
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    x = torch.from_numpy(bits.view(np.int32)).view(torch.float32)
    rounded = torch.from_numpy(round_to_bfloat16(x.numpy()).view(np.int16)).view(torch.bfloat16)
    expected = x.to(torch.bfloat16)
    assert torch.equal(expected.isnan(), rounded.isnan())
    assert torch.equal(expected[~expected.isnan()], rounded[~rounded.isnan()])


@pytest.mark.parametrize("shape", [(32, 32, 32), (64, 64, 128), (16, 12, 32)])
def test_a_product_sums_every_row_in_one_order(shape):
    """The rows of a tile in another order give the same rows, bit for bit, wherever each stands.

    A BLAS need not: OpenBLAS 0.3.31 with its Haswell kernels sums some rows in another order.
    """
    m, k, n = shape
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((m, k)), generator.standard_normal((k, n))
    a, b = a.astype(np.float32), b.astype(np.float32)
    order = generator.permutation(m)
    expected = multiply(a, b)[order]
    assert (expected.view(np.uint32) == multiply(a[order], b).view(np.uint32)).all()
    assert np.abs(expected - (a.astype(np.float64) @ b)[order]).max() < 1e-4


def test_a_cpu_is_refused_once_triton_compiles():
    """If triton was imported without the interpreter, the message says how to start Python."""
    script = (
        "import triton, torch\n"
        "from impl.runner.ops.backends import make_ops\n"
        "try: make_ops('triton')\n"
        "except ValueError as error: print(error)"
    )
    expected = (
        f"triton was imported to compile for a GPU; start Python with {VARIABLE}=1 to run kernels "
        "on the CPU\n"
    )
    assert expected == run_python("-c", script, interpret=False)


def test_a_gpu_is_refused_while_kernels_are_interpreted():
    """What the interpreter computes on the CPU must not pass for a result of a GPU."""
    prepare(torch.device("cpu"))
    with pytest.raises(RunnerError, match=f"{VARIABLE}=1 runs kernels on the CPU, .* for cuda"):
        prepare(torch.device("cuda"))
