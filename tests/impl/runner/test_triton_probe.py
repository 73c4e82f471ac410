"""The script for a CUDA machine, as far as a CPU can run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.probe import CORRECTNESS, OTHERS, Findings
from impl.runner.ops.triton.interpreter import VARIABLE
from tests.impl.runner.triton_support import needs_triton

ROOT = Path(__file__).parents[3]
GOOD = {"num_differing": 0, "is_accurate": True}


def run_probe(path, *arguments):
    """Runs the script; returns its exit code, its last lines, and what it wrote."""
    script = ROOT / "benchmarks" / "gpu" / "probe.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, "--out", path, *arguments],
        env={name: value for name, value in os.environ.items() if name != VARIABLE},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, json.loads(path.read_text())


@needs_triton
@pytest.mark.slow
def test_a_dry_run_takes_the_whole_way(tmp_path):
    """On a CPU all sections run, rows keep their bits, and no number passes for a timing."""
    code, printed, found = run_probe(tmp_path / "probe.json", "--dry-run")
    assert (0, "holds", {}) == (code, found["verdict"], found["not_run"])
    assert [*CORRECTNESS, *OTHERS] == list(found["sections"])
    assert [] == [name for name, rows in found["sections"].items() if not rows]
    assert (True, "not measured") == (found["is_dry_run"], found["timings"])
    steps = found["sections"]["what a step costs"]
    assert {"not measured"} == {row[key] for row in steps for key in ("triton_us", "plain_us")}
    assert printed.endswith("a dry run: nothing was seen on CUDA, and nothing was timed\n")


@needs_triton
@pytest.mark.slow
def test_what_there_was_no_time_for_is_named(tmp_path):
    """A budget that ends at once leaves the verdict undetermined, and every section named."""
    code, printed, found = run_probe(tmp_path / "probe.json", "--dry-run", "--budget-s", "0")
    assert (3, "undetermined") == (code, found["verdict"])
    assert [*CORRECTNESS, *OTHERS] == list(found["not_run"])
    assert "not run: what a step costs: no time was left of 0 s" in printed


@pytest.mark.parametrize(
    ("rows", "not_run", "expected"),
    [
        ([GOOD], {}, "holds"),
        ([GOOD, {**GOOD, "num_differing": 1}], {}, "violated"),
        ([{**GOOD, "is_accurate": False}], {}, "violated"),
        ([], {}, "undetermined"),
        ([GOOD], dict.fromkeys(CORRECTNESS, "failed"), "undetermined"),
    ],
)
def test_the_verdict_has_three_values(rows, not_run, expected):
    """It holds only if everything was compared; inaccurate rows are as bad as differing ones."""
    findings = Findings({}, dict.fromkeys(CORRECTNESS, rows), not_run)
    assert expected == findings.judge()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_rows_keep_their_bits_on_a_gpu(tmp_path):
    """On a CUDA device, rows keep their bits in kernels, in the runner, and in recorded graphs."""
    _, _, found = run_probe(tmp_path / "probe.json")
    assert "holds" == found["verdict"]
