from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from checkers.cli import main
from checkers.errors import EngineFault, HarnessError
from gpu_conformance.adapters.folder import write_model
from gpu_conformance.adapters.ours import Ours
from gpu_conformance.live import command
from gpu_conformance.live.beside import make_engine
from gpu_conformance.live.command import VALUES, choose_live_axes
from impl.runner.config import TINY_MODELS
from tests.gpu_conformance import fake_vllm

AXIS = ("--axis", "max_num_batched_tokens=17")
VLLM = ("--live", "vllm", "--dtype", "float32")


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    """Something that answers as vLLM does."""
    return fake_vllm.install(monkeypatch)


class Inside:
    """An engine in this very process, so that nobody waits for another."""

    def __init__(self, target, model, dtype, device, limit_s):
        self.engine, self.block_size = make_engine(target, model, dtype, device)
        self.serve = self.engine.serve

    def close(self):
        """Ends."""


@pytest.fixture(autouse=True)
def inside(monkeypatch):
    """No processes."""
    monkeypatch.setattr(command, "EngineBeside", Inside)


@pytest.fixture
def folder(tmp_path):
    """A model that our engine computes at once."""
    write_model(tmp_path, TINY_MODELS["tiny"])
    return str(tmp_path)


def call(*arguments):
    """Calls the command."""
    return CliRunner().invoke(main, ["conform", *arguments])


class Hangs(Ours):
    """An engine that is too late with every batch."""

    def serve(self, way):
        """Raises, as it is told of one beside."""
        if len(way.arrivals) > 1 and not any(arrival.step for arrival in way.arrivals):
            raise EngineFault("engine_hangs", "did not answer within 5 s")
        return super().serve(way)


class HangsAlone(Ours):
    """An engine that is always too late."""

    def serve(self, way):
        """Raises, as it is told of one beside."""
        raise EngineFault("engine_hangs", "did not answer within 5 s")


class Refuses:
    """An engine that cannot be asked for anything."""

    block_size = 16

    def __init__(self, model, dtype, device):
        pass

    def serve(self, way):
        """Raises."""
        raise HarnessError("the model is not there")


@pytest.mark.parametrize(
    ("exit_code", "arguments"),
    [
        (0, (*VLLM, *AXIS)),
        (0, (*VLLM, "--axis", "batch_size=2", "--axis", "preemption")),
        (2, ("--live", "abacus")),
        (2, ("--live", "no.such:Engine")),
        (2, ("--live", f"{__name__}:Refuses", *AXIS)),
        (2, ("--live", "vllm", "--axis", "recorded_run=no/such")),
        (2, (*VLLM, "--axis", "weather")),
        (2, (*VLLM, "--device", "tpu")),
        (2, (*VLLM, "--bugs")),
        (2, (*VLLM, "--backend", "tile")),
        (2, (*VLLM, "--engine", "spec")),
        (2, (*VLLM, "--prompt", "Hello")),
        (2, ("--tolerance", "0.1", "--backend", "tile")),
        (3, (*VLLM, "--axis", "batch_size=100")),
        (3, (*VLLM, "--axis", "batch_order")),
    ],
)
def test_the_exit_code_says_how_it_went(exit_code, arguments):
    """0 holds, 2 usage or no such engine in one sentence, 3 undetermined."""
    result = call(*arguments)
    assert exit_code == result.exit_code, result.output
    assert "Traceback" not in result.output


def test_a_finding_tells_how_to_see_it_again(monkeypatch):
    """Request, position, both tokens and the gap between them; and a command line."""
    fake_vllm.install(monkeypatch, slip=1)
    result = call(*VLLM, "--axis", "batch_size=2", "--tolerance", "0.01")
    assert 1 == result.exit_code
    assert "error[batch_size=2]: vllm float32" in result.stdout
    assert "there 1.0e+00 ahead" in result.stdout
    assert (
        "again          schedcheck conform --live vllm --device cpu --model tiny --tolerance 0.01 "
        "--dtype float32 --axis batch_size=2" in result.stdout
    )


@pytest.mark.parametrize(
    ("name", "title", "finding"),
    [
        ("Hangs", "error[batch_size=2]", "batch_size=2: did not answer within 5 s"),
        ("HangsAlone", "error[alone]", "each request alone: did not answer within 5 s"),
    ],
)
def test_an_engine_that_hangs_is_a_finding(folder, name, title, finding):
    """An answer that does not come is told where it is missing, with how to see it again."""
    live = ("--live", f"{__name__}:{name}", "--dtype", "float32", "--model", folder)
    result = call(*live, "--axis", "batch_size=2", "--engine-timeout", "5")
    assert 1 == result.exit_code, result.output
    for part in (title, finding, "--engine-timeout 5 --dtype float32"):
        assert part in result.stdout


def test_the_report_says_that_it_is_weaker_than_bits():
    """Nobody takes equal tokens for equal bits: it is told with the tolerance, and at the end."""
    text = call(*VLLM, *AXIS).stdout
    assert "tolerance   1e-04 of a log-probability" in text
    assert "weaker      than bits: tokens, and log-probabilities of the 5 greatest" in text
    assert "greedy      all requests take the greatest token; tokens that are drawn are not" in text
    assert "within a tolerance: weaker than bits" in text.splitlines()[-1]


def test_a_report_can_be_read_by_machines():
    """JSON holds what was compared and what was seen at work, JUnit a case for each axis."""
    document = json.loads(call(*VLLM, *AXIS, "--format", "json").stdout)
    (axis,) = [c for c in document["checks"] if "max_num_batched_tokens  vllm" in c["title"]]
    (value,) = axis["facts"]["values"]
    assert (192, 0, []) == (
        value["num_rows"],
        value["num_differing_rows"],
        value["partings"],
    )
    assert value["sights"]["num_partial_chunks"] > 0
    suite = ET.fromstring(call(*VLLM, *AXIS, "--format", "junit").stdout)  # noqa: S314
    names = [case.get("name") for case in suite]
    assert "conform  max_num_batched_tokens  vllm float32" in names


def test_our_engine_is_one_of_those_that_can_be_named(folder):
    """The same command holds our own scheduler and runner to it, with a model of one's own."""
    arguments = ("--live", "ours", "--dtype", "float32", "--model", folder)
    result = call(*arguments, "--axis", "max_num_batched_tokens=64")
    assert 0 == result.exit_code, result.output
    assert "192 places, 0 beyond the tolerance; 0 tokens differ, 0 at ties" in result.stdout


def test_unless_axes_are_named_a_few_values_are_tried():
    """Each value starts an engine; whoever names an axis gets those values, or the one that is."""
    assert list(VALUES.items()) == [(axis.name, values) for axis, values in choose_live_axes(())]
    ((axis, values),) = choose_live_axes(("batch_order",))
    assert ("batch_order", axis.values) == (axis.name, values)
    ((_, values),) = choose_live_axes(("batch_size=5",))
    assert (5,) == values
