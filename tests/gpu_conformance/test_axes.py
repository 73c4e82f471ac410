from __future__ import annotations

import attrs
import pytest

from gpu_conformance.bench import Bench
from gpu_conformance.reference import LONG, LONG_IF_SLOW, choose_requests, find_worst_error
from gpu_conformance.registry import AXES
from gpu_conformance.subject import make_subject
from gpu_conformance.work import WORKS, make_requests
from impl.runner.model import Model
from tests.gpu_conformance.support import SMALL, make_bench, make_tiny_bench, run

SHOWN = {
    ("resumed_chunk_size", 1): "num_partial_output_chunks",
    ("resumed_chunk_size", 3): "num_partial_output_chunks",
    ("request_id", "in the same step"): "num_reused_ids",
    ("request_id", "in mid-answer"): "num_reused_sampled_ids",
    ("request_id", "after the end"): "num_reused_ended_ids",
    ("prompt_length", 65): "greatest_length",
    ("prompt_length", 130): "greatest_length",
}
"""What must be seen of a value."""


@pytest.fixture(scope="module")
def bench():
    """Our runner with the usual requests."""
    return make_tiny_bench()


@pytest.mark.parametrize(("axis", "value"), SHOWN)
@pytest.mark.parametrize("work", ["tiny", "slow"])
def test_a_value_shows_what_it_is_for(bench, axis, value, work):
    """With the usual requests, and with few, the value is seen at work, and no bit differs."""
    outcome = run(bench if work == "tiny" else make_bench(work=WORKS[work]), axis, value)
    assert ("holds", ()) == (outcome.verdict, outcome.schedule_faults)


@pytest.mark.parametrize(("axis", "value"), SHOWN)
def test_a_value_without_its_sight_has_tested_nothing(bench, axis, value):
    """A run in which it did not happen is undetermined."""
    seen = run(bench, axis, value).sights
    assert AXES[axis].is_reached(seen, value)
    assert not AXES[axis].is_reached(attrs.evolve(seen, **{SHOWN[axis, value]: 0}), value)


def test_other_axes_do_not_come_so_far(bench):
    """A plain preemption recomputes no output in pieces, and no usual request has 64 tokens."""
    found = [run(bench, "preemption", value).sights for value in AXES["preemption"].values]
    assert 0 == sum(seen.num_partial_output_chunks for seen in found)
    assert 64 > max(seen.greatest_length for seen in found)


def test_a_request_that_comes_again_samples_all_its_tokens_again(bench):
    """All 7 requests have 5 tokens, and after the end as many once more."""
    assert 70 == run(bench, "request_id", "after the end").tally.num_tokens
    assert (45, 7) == (
        run(bench, "request_id", "in mid-answer").tally.num_tokens,
        run(bench, "request_id", "in mid-answer").sights.num_reused_sampled_ids,
    )


@pytest.mark.parametrize(
    ("axis", "value", "told"),
    [
        ("prompt_length", 7, "a prompt of up to 7 tokens is one chunk"),
        ("prompt_length", 511, "max_position_embeddings=512 is too short, since a request comes"),
        ("resumed_chunk_size", 20, "no answer is longer than 20 tokens"),
    ],
)
def test_a_length_without_a_meaning_is_left_out(bench, axis, value, told):
    """The report says why."""
    assert run(bench, axis, value).left_out.startswith(told)


def test_an_engine_that_frees_no_name_is_stuck():
    """Who waits for a name that is never free does not wait for ever."""
    engine = "tests.gpu_conformance.support:PlansNothing"
    bench = Bench(make_bench().subject, make_requests(SMALL), engine=engine)
    first = run(bench, "request_id", "after the end").first
    assert "planned nothing 101 times" in first.evidence


# ---- the same positions in float64 ---------------------------------------------------------------


def choose_lengths(subject, **config):
    """How many tokens each request comes to that is held against float64."""
    subject = attrs.evolve(subject, config=attrs.evolve(subject.config, **config))
    bench = Bench(subject, make_requests(SMALL))
    return [len(r.prompt_token_ids) + r.max_tokens for r in choose_requests(bench)]


def test_float64_is_asked_for_positions_that_no_request_comes_to(bench):
    """All of a small model, some of a larger one, and few where a step takes seconds."""
    usual = [6, 20, 23, 23]
    slow = attrs.evolve(bench.subject, is_slow=True)
    assert [*usual, 512] == choose_lengths(bench.subject)
    assert [*usual, 60] == choose_lengths(bench.subject, max_position_embeddings=60)
    assert [*usual, LONG] == choose_lengths(bench.subject, max_position_embeddings=2048)
    assert [*usual, LONG_IF_SLOW] == choose_lengths(slow)
    assert usual == choose_lengths(bench.subject, max_position_embeddings=23)
    assert usual == choose_lengths(bench.subject, vocab_size=127)


def test_who_has_no_model_that_we_know_is_asked_for_the_workload_only():
    """Of a foreign runner nobody knows how far its positions go."""
    subject = make_subject("tiny", "tests.gpu_conformance.support:Echo", "own", "cpu")
    requests = tuple(make_requests(SMALL))
    assert requests == choose_requests(Bench(subject, requests))


def test_what_is_wrong_at_late_positions_only_is_refused(bench, monkeypatch):
    """A position that each way gets wrong alike is held against float64."""
    assert find_worst_error(bench).is_small
    rotate = Model._get_rotation
    monkeypatch.setattr(
        Model, "_get_rotation", lambda model, places: rotate(model, places.clamp(max=500))
    )
    other = Bench(bench.subject, bench.requests)
    assert not find_worst_error(other).is_small
