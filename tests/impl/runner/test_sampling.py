"""Which token is drawn, and what it depends on."""

from __future__ import annotations

import math

import pytest
import torch

from impl.runner.errors import RunnerError
from impl.runner.sampling import GREEDY, SamplingParams, sample

LOGITS = torch.tensor([0.0, 3.0, 1.0, 3.0, 2.0])
NUM_DRAWS = 1000


def draw(logits, **given):
    """Draws many times, at different positions; returns how often each token came."""
    params = SamplingParams(**{"temperature": 1.0, **given})
    drawn = [sample(logits, params, "A", position) for position in range(NUM_DRAWS)]
    return [drawn.count(token_id) / NUM_DRAWS for token_id in range(len(logits))]


def test_of_equals_the_smallest_id_is_taken():
    """The greedy choice among the greatest is the first."""
    assert sample(LOGITS, GREEDY, "A", 0) == 1


def test_draws_follow_the_softmax():
    """Tokens come about as often as the softmax of the logits says."""
    expected = LOGITS.softmax(0).tolist()
    # Five standard deviations.
    assert draw(LOGITS) == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(NUM_DRAWS))


def test_temperature_sharpens():
    """Half the temperature is twice the logits."""
    expected = (2 * LOGITS).softmax(0).tolist()
    actual = draw(LOGITS, temperature=0.5)
    assert actual == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(NUM_DRAWS))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"top_k": 1}, {1, 3}),
        ({"top_k": 3}, {1, 3, 4}),
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.3}, {1}),
        ({"top_p": 0.5}, {1, 3}),
        ({"top_p": 0.98}, {1, 2, 3, 4}),
        ({"top_k": 3, "top_p": 0.3}, {1}),
    ],
)
def test_only_the_greatest_stay_in(given, expected):
    """top_k keeps so many and their equals, top_p what together has the probability."""
    shares = draw(LOGITS, **given)
    assert expected == {token_id for token_id, share in enumerate(shares) if share > 0}


def test_noise_depends_on_seed_request_and_position():
    """The same three draw the same; each of them alone draws otherwise."""
    logits, params = torch.zeros(10_000), SamplingParams(temperature=1.0)
    first = sample(logits, params, "A", 0)
    assert first == sample(logits, params, "A", 0)
    others = [
        sample(logits, params, "A", 1),
        sample(logits, params, "B", 0),
        sample(logits, SamplingParams(temperature=1.0, seed=1), "A", 0),
    ]
    assert first not in others


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.5)]
)
def test_parameters_that_make_no_sense_are_refused(field, value):
    """A refusal names the field and its value."""
    with pytest.raises(RunnerError, match=f"{field}={value}"):
        SamplingParams(**{field: value})
