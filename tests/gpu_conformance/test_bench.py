from __future__ import annotations

import attrs
import pytest
import torch

from checkers.errors import HarnessError
from gpu_conformance.axes.recorded_run import FOLDER, make_recorded_way
from gpu_conformance.bench import Bench
from gpu_conformance.reference import find_worst_error
from gpu_conformance.registry import AXES
from gpu_conformance.subject import make_subject
from gpu_conformance.work import make_requests
from tests.gpu_conformance.support import SMALL, make_bench, make_tiny_bench, run

SOME = [
    ("prefill_chunk_size", 7),
    ("prefill_chunk_size", 16),
    ("batch_order", 1),
    ("block_placement", "scattered"),
    ("prefix_cache", "next step"),
    ("preemption", 0),
    ("async_depth", 3),
    ("draft_tokens", 3),
    ("graph_bucket", 64),
    ("engine_walk", 3),
]


@pytest.fixture(scope="module")
def bench():
    """Our runner with the usual requests."""
    return make_tiny_bench()


@pytest.mark.parametrize(("axis", "value"), SOME)
def test_tiles_give_the_same_bits(bench, axis, value):
    """On our default backend no row differs, and the value is seen at work."""
    outcome = run(bench, axis, value)
    assert ("holds", True) == (outcome.verdict, outcome.is_reached)
    assert () == outcome.schedule_faults


def test_a_value_that_does_not_show_is_undetermined():
    """A batch of 5 is not reached by 4 requests, so nothing was tested."""
    assert "undetermined" == run(make_bench(), "batch_size", 5).verdict


def test_a_value_without_a_meaning_is_left_out():
    """No prompt is cut into chunks that are longer than itself."""
    assert (
        "no prompt is longer than 20 tokens" == run(make_bench(), "prefill_chunk_size", 33).left_out
    )


def test_the_spec_schedules_as_well():
    """Any engine drives the runner."""
    bench = Bench(make_bench().subject, make_requests(SMALL), engine="spec")
    assert "holds" == run(bench, "preemption", 0).verdict


def test_a_recorded_run_drives_the_runner():
    """Steps that vLLM has planned, a preemption among them, give the same bits."""
    outcome = run(make_bench(), "recorded_run", "thrash")
    assert ("holds", 1) == (outcome.verdict, outcome.sights.num_resumptions)


def test_a_fault_of_the_schedule_is_told_from_one_of_the_runner():
    """Blocks that vLLM 0.33.0 publishes and never computes give wrong KV and wrong tokens."""
    way = make_recorded_way(FOLDER / "rejected" / "publish-of-taken-back-chunk.jsonl.gz")
    outcome = make_bench().follow(AXES["recorded_run"], "rejected", way)
    assert ("violated", "A", 97) == (
        outcome.verdict,
        outcome.first.part.request_id,
        outcome.first.position,
    )
    assert outcome.tally.num_differing_tokens > 0
    assert outcome.schedule_faults[0].startswith(
        "A reads tokens 96 to 111 from block 7, which holds"
    )


def foreign(name):
    """A bench with a foreign runner."""
    subject = make_subject("tiny", f"tests.gpu_conformance.support:{name}", "own", "cpu")
    return Bench(subject, make_requests(SMALL))


def test_of_a_foreign_runner_tokens_are_compared():
    """A runner with one method is under test, without rows."""
    outcome = run(foreign("Echo"), "preemption", 0)
    assert ("holds", 0, 12) == (outcome.verdict, outcome.tally.num_rows, outcome.tally.num_tokens)


def test_a_foreign_runner_that_feels_its_batch_is_found():
    """Tokens that depend on who else is in the step differ from those alone."""
    outcome = run(foreign("FeelsItsBatch"), "batch_order", 1)
    assert ("violated", "token") == (outcome.verdict, outcome.first.kind)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("RunsNothing", "has no execute"),
        ("ShowsHalf", "has get_logits and no read_kv"),
        ("TakesNothing", "cannot be made of block_size=16 and num_blocks=.*TypeError"),
    ],
)
def test_what_cannot_be_a_runner_is_wrong_usage(name, told):
    """It is refused in one sentence, and is no finding."""
    with pytest.raises(HarnessError, match=told):
        run(foreign(name), "batch_order", 1)


def test_what_a_runner_raises_is_a_finding():
    """A runner that raises gives no answer, which is not as alone."""
    first = run(foreign("Raises"), "batch_order", 1).first
    assert ("no answer", "RuntimeError: out of memory") == (first.kind, first.evidence)


def test_a_wrong_baseline_is_refused(bench):
    """Rows that are the same on all ways are still held against float64."""
    assert find_worst_error(bench).is_small
    wrong = attrs.evolve(bench.subject.weights, norm=bench.subject.weights.norm * 1.01)
    other = Bench(attrs.evolve(bench.subject, weights=wrong), bench.requests)
    assert not find_worst_error(other).is_small


def test_nan_is_as_wrong_as_can_be(bench):
    """A baseline of NaN is not near to anything."""
    other = Bench(bench.subject, bench.requests)
    other.compute_alone(other.requests[0]).kv[0] = torch.nan
    assert torch.inf == find_worst_error(other).kv
