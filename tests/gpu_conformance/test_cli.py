from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from checkers.cli import main
from gpu_conformance.adapters.folder import write_model
from impl.runner.config import TINY_MODELS

load_file = pytest.importorskip("safetensors.torch").load_file
save_file = pytest.importorskip("safetensors.torch").save_file

ROOT = Path(__file__).parents[2]
REJECTED = ROOT / "tests" / "recordings" / "rejected" / "publish-of-taken-back-chunk.jsonl.gz"
SUPPORT = "tests.gpu_conformance.support"
ECHO = f"{SUPPORT}:Echo"
TILE = ("--backend", "tile", "--dtype", "float32")


def call(*arguments):
    """Calls the command."""
    return CliRunner().invoke(main, ["conform", *arguments])


@pytest.mark.parametrize(
    ("exit_code", "arguments"),
    [
        (0, (*TILE, "--axis", "batch_size=2")),
        (0, ("--backend", ECHO, "--axis", "batch_size=2")),
        (3, ("--backend", f"{SUPPORT}:AlwaysSaysTheSame", "--axis", "batch_size=2")),
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
        (2, (*TILE, "--prompt", "", "--axis", "batch_size=2")),
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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--axis", "batch_size=abc"), "axis batch_size has no value 'abc'"),
        (("--axis", "batch_size="), "axis batch_size has no value ''"),
        (("--axis", "cpu_threads=0"), "axis cpu_threads has no value '0'"),
        (("--axis", "prefill_chunk_size=-3"), "axis prefill_chunk_size has no value '-3'"),
        (("--bugs", "--backend", "tile"), "--bugs chooses what it computes by itself"),
        (("--live", "ours", "--tolerance", "nan"), "--tolerance nan bounds nothing"),
        (("--live", "ours", "--engine-timeout", "inf"), "--engine-timeout inf bounds nothing"),
        (("--bugs", "--engine-timeout", "9"), "--bugs chooses what it computes by itself"),
        ((*TILE, "--engine", "nosuch"), "engine 'nosuch' is unknown"),
        ((*TILE, "--engine", f"{SUPPORT}:ECHO"), "cannot be imported"),
        ((*TILE, "--engine", f"{SUPPORT}:SMALL"), "is a Work; name a callable"),
        ((*TILE, "--engine", f"{SUPPORT}:make_dict"), "builds a dict, which has no add_request()"),
        ((*TILE, "--engine", f"{SUPPORT}:raise_at_once"), "__init__ raised OSError: no licence"),
        ((*TILE, "--axis", "recorded_run=no/such"), "no/such does not exist"),
        ((*TILE, "--axis", "block_placement=heap"), "block_placement has no value 'heap'"),
        (
            (*TILE, "--axis", "cpu_threads=4096"),
            "name a whole number from 1 to 128, or one of 1, 2",
        ),
        ((*TILE, "--axis", f"batch_size={'9' * 5000}"), "axis batch_size has no value '999"),
        ((*TILE, "--backend", "abacus"), "there is no backend 'abacus'"),
        ((*TILE, "--backend", f"{SUPPORT}:SMALL"), "is a Work; name a callable"),
        (("--backend", "exact", "--dtype", "bfloat16"), "exact has no bfloat16, only float32"),
        ((*TILE, "--device", "cpu:x"), "--device cpu:x is unknown"),
        ((*TILE, "--model", "a", "--model", "b"), "one model is checked at a time"),
    ],
)
def test_what_makes_no_sense_is_refused(options, told):
    """Wrong usage is one sentence before anything is computed, and no finding."""
    done = call(*options)
    assert (2, "") == (done.exit_code, done.stdout)
    assert told in done.output
    assert 1 == len(done.output.splitlines())


def test_what_is_named_twice_is_computed_once():
    """A backend and a number type have one column each."""
    done = call(*TILE, *TILE, "--axis", "batch_size=2", "--axis", "batch_size=2")
    assert 1 == done.stdout.count("conform  alone  tile float32")
    assert 1 == done.stdout.splitlines()[-3].count("tile-float32")
    assert "  batch_size  247 0 0" == done.stdout.splitlines()[-2]


def test_a_model_that_is_too_short_says_how_long_it_must_be(tmp_path):
    """The workload does not fit, which is no fault of the runner."""
    config = attrs.evolve(TINY_MODELS["tiny"], max_position_embeddings=128)
    write_model(tmp_path, config)
    done = call(*TILE, "--model", str(tmp_path))
    assert 2 == done.exit_code
    told = "max_position_embeddings=128 is too short, since a request comes to 268 tokens"
    assert told in done.output


def test_a_model_of_zeros_is_undetermined(tmp_path):
    """Nothing differs, and nothing could: that is said, and is no success."""
    write_model(tmp_path, TINY_MODELS["tiny"])
    path = tmp_path / "model.safetensors"
    save_file({name: tensor * 0 for name, tensor in load_file(path).items()}, path)
    done = call(*TILE, "--model", str(tmp_path), "--axis", "batch_size=2")
    assert 3 == done.exit_code, done.output
    assert "all 56 rows of logits are the same, whatever was computed" in done.stdout


def test_a_runner_that_gives_no_answer_is_told_before_the_axes():
    """Without a baseline no axis is run: one finding, with what the runner returned."""
    done = call("--backend", f"{SUPPORT}:SamplesNothing")
    assert 1 == done.exit_code
    assert 1 == done.stdout.count("error[")
    assert "it returned sampled_token_ids={'r0': []}" in done.stdout


def test_the_list_names_axes_and_bugs():
    """Every axis has its rule, every bug what it does wrong and where it is known from."""
    text = call("--list").output
    assert "axis  prefill_chunk_size   A prompt is computed in chunks of so many tokens." in text
    assert "nano-vllm #145" in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--device", "tpu"), "ERROR: --device tpu is unknown; choose cpu, cuda or cuda:1"),
        (("--axis", "recorded_run=no/such"), "ERROR: no/such does not exist"),
        (("--backend", "tile", "--model", "no-such"), "no-such is no folder, no file and no tiny"),
    ],
)
def test_pytest_refuses_what_cannot_be_had(options, told):
    """What is not there is wrong usage of pytest, told in one sentence."""
    command = [sys.executable, "-m", "pytest", "gpu_conformance", "-p", "no:cacheprovider"]
    command += options
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 4 == done.returncode
    assert told in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout


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
