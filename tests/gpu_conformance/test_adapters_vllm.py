"""The adapter for a live vLLM: beside a stand-in everywhere, beside vLLM itself where it is."""

from __future__ import annotations

import importlib.util
import sys

import attrs
import pytest

import gpu_conformance.axes  # noqa: F401  (registers)
from checkers.errors import HarnessError
from gpu_conformance.adapters.folder import write_model
from gpu_conformance.adapters.vllm import Vllm
from gpu_conformance.live.bench import LiveBench, LiveSubject
from gpu_conformance.registry import AXES, NotHere
from gpu_conformance.way import make_way
from gpu_conformance.work import Work, make_requests
from tests.gpu_conformance import fake_vllm

WORK = Work((3, 17, 40, 70, 70), 6)


def make_bench(dtype="float32", model="model"):
    """Puts vLLM under test, or what stands for it."""
    subject = LiveSubject(
        name="vllm",
        dtype=dtype,
        device="cpu",
        engine=Vllm(model, dtype, "cpu"),
        tolerance=1e-4,
    )
    return LiveBench(subject, make_requests(WORK))


@pytest.fixture
def fake(monkeypatch):
    """A stand-in that computes the same in every way."""
    return fake_vllm.install(monkeypatch)


@pytest.mark.parametrize(
    ("axis", "value", "sight"),
    [
        ("max_num_batched_tokens", 17, "num_partial_chunks"),
        ("prefill_chunk_size", 7, "num_partial_chunks"),
        ("batch_size", 2, "max_num_reqs"),
        ("prefix_cache", "same step", "num_hit_tokens"),
        ("prefix_cache", "much later", "num_hit_tokens"),
        ("preemption", 0, "num_resumptions"),
    ],
)
def test_each_value_is_seen_at_work(fake, axis, value, sight):
    """What the scheduler does is read off its steps, so a value that showed counts as reached."""
    outcome = make_bench().run(AXES[axis], value)
    assert ("holds", 30) == (outcome.verdict, outcome.comparison.tally.num_tokens), outcome
    assert getattr(outcome.sights, sight) > 0


def test_the_sights_are_those_of_the_steps(fake):
    """Prompts of 3 and 40 tokens, at 17 a step, are eight steps and two partial chunks."""
    way = make_way(make_requests(Work((3, 40), 6)))
    config = attrs.evolve(
        way.config, max_num_batched_tokens=17, max_num_scheduled_tokens=17, block_size=32
    )
    seen = Vllm("model", "float32", "cpu").serve(attrs.evolve(way, config=config)).sights
    # 3 + 14, 1 + 16, 1 + 10, and decodes of both up to the sixth token of each.
    assert (8, 2, 16, 2, 0) == (
        seen.num_steps,
        seen.num_partial_chunks,
        seen.longest_chunk,
        seen.max_num_reqs,
        seen.num_hit_tokens,
    )


def test_a_model_that_feels_its_batch_is_caught(monkeypatch):
    """An engine whose tokens depend on who is computed beside them is a finding of logic."""
    fake_vllm.install(monkeypatch, slip=1)
    outcome = make_bench().run(AXES["batch_size"], 2)
    assert "violated" == outcome.verdict
    assert outcome.comparison.faults[0].describe().endswith("logic, not rounding")


@pytest.mark.parametrize(("noise", "verdict"), [(1e-5, "holds"), (1e-3, "violated")])
def test_noise_is_measured_by_the_tolerance(monkeypatch, noise, verdict):
    """A log-probability may depend on its batch within the tolerance, and no further."""
    fake_vllm.install(monkeypatch, noise=noise)
    outcome = make_bench().run(AXES["batch_size"], 2)
    assert verdict == outcome.verdict
    assert outcome.comparison.worst > 0 or verdict == "violated"


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        ("batch_order", 1, "a live engine plans, places and orders by itself"),
        ("block_size", 8, "vLLM refuses: No common block size for 16."),
        ("prefix_cache", "next step", "nobody can arrive while a call runs"),
        ("async_depth", 2, "a live engine plans, places and orders by itself"),
    ],
)
def test_what_vllm_cannot_be_asked_for_is_left_out(fake, axis, value, message):
    """Ways that its settings and calls cannot express are told, and are no success."""
    outcome = make_bench().run(AXES[axis], value)
    assert (message, "undetermined") == (outcome.left_out, outcome.verdict)


def test_an_engine_is_shut_down_even_if_it_raises(fake, monkeypatch):
    """Each way has an engine of its own, which is gone before the next one starts."""
    made = []

    def generate(self, prompts, params, *, use_tqdm):
        made.append(self)
        raise RuntimeError("gone")

    monkeypatch.setattr(fake.LLM, "generate", generate)
    way = make_way(make_requests(WORK))
    config = attrs.evolve(way.config, block_size=32)
    with pytest.raises(RuntimeError, match="gone"):
        Vllm("model", "float32", "cpu").serve(attrs.evolve(way, config=config))
    assert [True] == [llm.is_shut_down for llm in made]


def test_another_device_is_refused(monkeypatch):
    """A build for CUDA is not taken for one for a CPU."""
    fake_vllm.install(monkeypatch, device="cuda")
    with pytest.raises(HarnessError, match="this vllm computes on cuda, not on cpu"):
        Vllm("model", "float32", "cpu")


def test_a_broken_vllm_is_told_in_one_sentence(fake, monkeypatch):
    """What its import raises is no finding."""
    monkeypatch.setitem(sys.modules, "vllm.platforms", None)
    with pytest.raises(HarnessError, match="vllm cannot be imported"):
        Vllm("model", "float32", "cpu")


def test_without_vllm_one_sentence_says_so(monkeypatch):
    """Who has no vLLM is told where it is said how to get it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(HarnessError, match=r"vllm is not installed; docs/conformance\.md"):
        Vllm("model", "float32", "cpu")


def test_what_the_adapter_refuses_is_no_error_of_the_engine(fake):
    """A way that cannot be had is refused before an engine is started."""
    way = attrs.evolve(make_way(make_requests(WORK)), order_seed=1)
    with pytest.raises(NotHere):
        Vllm("model", "float32", "cpu").serve(way)


# ---- vLLM itself ---------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("axis", "value"),
    [("max_num_batched_tokens", 17), ("prefix_cache", "much later"), ("preemption", 0)],
)
def test_vllm_itself_holds(tmp_path, axis, value):
    """A live vLLM with random weights computes the same tokens, cut, hit or preempted."""
    write_model(tmp_path)
    try:
        bench = make_bench(model=str(tmp_path))
    except HarnessError as error:
        pytest.skip(f"{error}")
    outcome = bench.run(AXES[axis], value)
    assert ("holds", 30) == (outcome.verdict, outcome.comparison.tally.num_tokens), outcome
