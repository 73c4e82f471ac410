from __future__ import annotations

import attrs
import pytest
import torch

from checkers.errors import HarnessError
from gpu_conformance.axes.recorded_run import FOLDER, make_recorded_way
from gpu_conformance.bench import Bench
from gpu_conformance.reference import find_sameness, find_worst_error
from gpu_conformance.registry import AXES
from gpu_conformance.runners import OurRunner
from gpu_conformance.subject import make_subject
from gpu_conformance.work import make_requests
from impl.runner.config import TINY_MODELS
from impl.runner.ops.backends import make_ops
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
    ("request_id", "in the next step"),
    ("request_id", "in the same step"),
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


def make_subject_of(weights):
    """What makes our runner of other weights."""
    ops = make_ops("tile", "cpu", torch.float32)

    def make(way, num_blocks):
        return OurRunner(TINY_MODELS["tiny"], weights, ops, way.config.block_size, num_blocks)

    return make


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


def test_what_a_runner_raises_is_a_finding_of_its_own():
    """Who raised what in which step of whose tokens is told, and no row is counted for it."""
    outcome = run(foreign("Raises"), "batch_size", 2)
    assert ("no answer", "violated") == (outcome.first.kind, outcome.verdict)
    assert (
        "the runner raises RuntimeError: out of memory, in step 0 (tokens: r0 3, r1 17)"
        == outcome.first.evidence
    )
    assert 'raise RuntimeError("out of memory")' in outcome.first.trace
    assert (0, 0) == (outcome.tally.num_differing_rows, outcome.tally.num_differing_tokens)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "SamplesNothing",
            "all 3 tokens are computed; it returned sampled_token_ids={'r0': []}, in step 0",
        ),
        ("SamplesTooMuch", "the runner samples 2 tokens for r0, however 1 may be: [1, 2]"),
        ("SamplesBelowZero", "the runner samples [-1] for r0; tokens count from 0, in step 0"),
        ("AnswersNone", "the answer of execute() is None, expected ModelRunnerOutput, in step 0"),
        ("ShowsNoLogits", "get_logits() shows None for r0, which samples 1 token"),
        ("Leaves", "the runner raises SystemExit: 0, in step 0"),
    ],
)
def test_what_is_no_answer_is_blamed_on_the_runner(name, told):
    """It is told with what the runner returned, and neither the engine nor we are at fault."""
    first = run(foreign(name), "batch_size", 2).first
    assert "no answer" == first.kind
    assert told in first.evidence


def test_a_runner_that_does_not_return_from_a_step_is_a_finding():
    """It is interrupted, and the step and the line that it was in are told."""
    bench = foreign("Hangs")
    first = run(Bench(attrs.evolve(bench.subject, limit_s=0.3), bench.requests), "batch_size", 2)
    assert ("no answer", "violated") == (first.first.kind, first.verdict)
    told = "execute() did not return within 0.3 s, in step 0 (tokens: r0 3, r1 17)"
    assert told == first.first.evidence
    assert "in execute" in first.first.trace


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "PlansNothing",
            "planned nothing 101 times, while nothing is in flight and r0, r1, r2, r3 wait",
        ),
        ("RefusesAll", "add_request() refuses r0"),
    ],
)
def test_an_engine_that_serves_nobody_is_blamed_itself(name, told):
    """One that leaves a request waiting, or refuses one that fits, is a finding that names it."""
    engine = f"tests.gpu_conformance.support:{name}"
    bench = Bench(make_bench().subject, make_requests(SMALL), engine=engine)
    outcome = run(bench, "batch_size", 2)
    assert ("no answer", "violated") == (outcome.first.kind, outcome.verdict)
    assert f"the engine '{engine}': " in outcome.first.evidence
    assert outcome.first.evidence.endswith(told)


def test_an_engine_that_raises_on_the_way_is_blamed_itself():
    """What a scheduler raises in the middle is a finding that names it, not the runner."""
    engine = "tests.gpu_conformance.support:RaisesLater"
    bench = Bench(make_bench().subject, make_requests(SMALL), engine=engine)
    first = run(bench, "batch_size", 2).first
    assert f"the engine '{engine}': schedule raised ValueError: lost count" == first.evidence
    assert 'raise ValueError("lost count")' in first.trace


def test_a_run_that_is_too_long_for_the_model_is_left_out(bench):
    """A recorded run whose requests the model has no positions for has no meaning here."""
    short = attrs.evolve(bench.subject.config, max_position_embeddings=60)
    other = Bench(attrs.evolve(bench.subject, config=short), bench.requests)
    outcome = run(other, "recorded_run", "prefix-preempt")
    assert outcome.left_out.startswith("max_position_embeddings=60 is too short, since a request")


@pytest.mark.parametrize("zero", ["norm", "head", "embedding"])
def test_rows_that_are_all_the_same_tell_nothing(bench, zero):
    """Weights of zero are right, and their rows would be the same with wrong data, too."""
    assert "" == find_sameness(bench)
    weights = attrs.evolve(
        bench.subject.weights, **{zero: torch.zeros_like(getattr(bench.subject.weights, zero))}
    )
    make = make_subject_of(weights)
    other = Bench(attrs.evolve(bench.subject, weights=weights, make=make), bench.requests)
    assert (True, True) == (
        find_worst_error(other).is_small,
        "tell nothing" in find_sameness(other),
    )


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
