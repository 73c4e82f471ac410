from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkers.cli import main

ROOT = Path(__file__).parents[2]
REJECTED = ROOT / "tests" / "recordings" / "rejected" / "publish-of-taken-back-chunk.jsonl.gz"
ECHO = "tests.gpu_conformance.support:Echo"
TILE = ("--backend", "tile", "--dtype", "float32")


def call(*arguments):
    """Calls the command."""
    return CliRunner().invoke(main, ["conform", *arguments])


@pytest.mark.parametrize(
    ("exit_code", "arguments"),
    [
        (0, (*TILE, "--axis", "batch_size=2")),
        (0, ("--backend", ECHO, "--axis", "batch_size=2")),
        (0, ("--list",)),
        (0, ("--help",)),
        (1, ("--backend", ECHO.replace("Echo", "FeelsItsBatch"), "--axis", "batch_size=2")),
        (1, (*TILE, "--axis", f"recorded_run={REJECTED}")),
        (2, ("--axis", "weather")),
        (2, ("--backend", "abacus", "--axis", "batch_size=2")),
        (2, ("--backend", "exact", "--dtype", "bfloat16")),
        (2, ("--backend", "no.such:Runner")),
        (2, ("--device", "tpu")),
        (2, ("--model", "no-such-model", *TILE)),
        (2, (*TILE, "--prompt", "Hello")),
        (3, (*TILE, "--axis", "batch_size=100")),
        (3, (*TILE, "--axis", "prefill_chunk_size=257")),
        (3, ("--backend", "triton", "--dtype", "float32", "--axis", "graph_bucket")),
    ],
)
def test_the_exit_code_says_how_it_went(exit_code, arguments):
    """0 holds, 1 finding, 2 usage or bad input in one sentence, 3 undetermined."""
    result = call(*arguments)
    assert exit_code == result.exit_code, result.output
    assert "Traceback" not in result.output


def test_without_torch_one_sentence_says_so(monkeypatch):
    """Who has no torch is told which extra brings it."""
    find_spec = importlib.util.find_spec

    def find_other_spec(name, *package):
        return None if name == "torch" else find_spec(name, *package)

    monkeypatch.setattr(importlib.util, "find_spec", find_other_spec)
    result = call()
    assert (2, "schedcheck: conform needs torch; pip install 'schedcheck[runner]'\n") == (
        result.exit_code,
        result.output,
    )


def test_help_needs_no_torch():
    """Nobody waits for a tensor library to read the help."""
    code = (
        "import sys, checkers.cli\n"
        "checkers.cli.main(['conform', '--help'], standalone_mode=False)\n"
    )
    script = f"try:\n    exec({code!r})\nexcept SystemExit:\n    print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "False" == done.stdout.splitlines()[-1], done.stderr


def test_a_report_can_be_read_by_machines():
    """JSON holds the counts of each value, JUnit a case for each axis."""
    document = json.loads(call(*TILE, "--axis", "batch_size=2", "--format", "json").stdout)
    (axis,) = [check for check in document["checks"] if "batch_size" in check["title"]]
    assert ("conform", "holds") == (document["command"], document["verdict"])
    assert (0, "batch_size-2-tile-float32") == (
        axis["facts"]["num_differing_rows"],
        axis["facts"]["values"][0]["name"],
    )
    suite = ET.fromstring(call(*TILE, "--axis", "batch_size=2", "--format", "junit").stdout)  # noqa: S314
    assert "conform  batch_size  tile float32" in [case.get("name") for case in suite]


def test_the_list_names_axes_and_bugs():
    """Every axis has its rule, every bug what it does wrong and where it is known from."""
    text = call("--list").output
    assert "axis  prefill_chunk_size   A prompt is computed in chunks of so many tokens." in text
    assert "nano-vllm #145" in text


def test_pytest_refuses_what_cannot_be_had():
    """A device that is unknown is wrong usage of pytest, told in one sentence."""
    command = [sys.executable, "-m", "pytest", "gpu_conformance", "--device", "tpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (4, "") == (done.returncode, done.stdout)
    assert "ERROR: --device tpu is unknown; choose cpu or cuda" in done.stderr


def test_the_suite_runs_as_plain_pytest():
    """`pytest gpu_conformance` has a test for each value, and ids of axis, value and backend."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "gpu_conformance",
        "-v",
        "-p",
        "no:cacheprovider",
        "--device",
        "cpu",
        "--backend",
        "tile",
        "--axis",
        "batch_size",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout
    assert "test_every_bit_is_as_alone[batch_size-2-tile-bfloat16] PASSED" in done.stdout
