"""What the kernels are on a Hopper GPU, as far as a compiler can tell without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from impl.runner.ops.triton.interpreter import VARIABLE
from tests.impl.runner.triton_support import needs_triton

pytestmark = [needs_triton, pytest.mark.slow]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What each kernel became."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.impl.runner.triton_ahead"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def names_where(facts, is_so):
    """Names the kernels of which something is so."""
    return [f"{each['name']} {each['dtype']}" for each in facts if is_so(each)]


def is_matrix(each):
    """Whether a kernel multiplies matrices."""
    return each["name"].startswith(("linear", "head", "attention"))


def test_one_binary_serves_every_batch(facts):
    """A batch of 1, of a multiple of 16 or of any other size launches the same binary."""
    assert [] == names_where(facts, lambda each: each["num_binaries"] != 1)
    assert 25 == len(facts)


def test_nothing_is_summed_in_the_order_of_arrival(facts):
    """No kernel has an atomic operation, whose order is that in which programs get there."""
    assert [] == names_where(facts, lambda each: each["num_atomics"])


def test_no_register_is_spilled(facts):
    """No kernel keeps registers in memory: its tiles fit."""
    assert [] == names_where(facts, lambda each: each["num_spills"] or each["spilled_bytes"])


def test_products_use_the_matrix_units_of_the_chip(facts):
    """In bfloat16, products are wgmma (HGMMA); in float32, exact to float32, they use none."""
    wanted = {"bfloat16": ["HGMMA"], "float32": []}
    assert [] == names_where(
        facts,
        lambda each: each["instructions"] != (wanted[each["dtype"]] if is_matrix(each) else []),
    )


def test_a_row_of_attention_stays_in_one_warp(facts):
    """In bfloat16, warps share the rows of a tile and never a row, whatever the shape of the model.

    So a sum over a row is taken in the same order in all of them.
    """
    warps = {
        each["name"]: each["warps"]
        for each in facts
        if each["name"].startswith("attention") and each["dtype"] == "bfloat16"
    }
    assert {name: ["[4, 1]"] for name in warps} == warps
    assert 5 == len(warps)
