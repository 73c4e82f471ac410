"""Sizes that fit together, and the angles of positions."""

from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve

from impl.runner.config import TINY_MODELS, RopeScaling
from impl.runner.errors import RunnerError
from impl.runner.rope import make_rope_table

TINY = TINY_MODELS["tiny"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 is no whole number above 0"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps=-1.0 is no number above 0"),
        ({"num_hidden_layers": [2]}, r"num_hidden_layers=\[2\] is no whole number above 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is no multiple of"),
        ({"head_dim": 15}, "head_dim=15 is odd"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(given, message):
    """A refusal names the field and its value."""
    with pytest.raises(RunnerError, match=message):
        evolve(TINY, **given)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_tiny_models_are_tiny(name):
    """The models for tests have two layers, at most 64 wide."""
    config = TINY_MODELS[name]
    assert (2, True) == (config.num_hidden_layers, config.hidden_size <= 64)


def compute_angle(position, pair, scaling):
    """The angle of a pair at a position, in the words of Llama 3.1."""
    frequency = TINY.rope_theta ** (-2 * pair / TINY.head_dim)
    if scaling.kind == "llama3":
        length = 2 * math.pi / frequency
        old = scaling.original_max_position_embeddings
        if length > old / scaling.low_freq_factor:
            frequency /= scaling.factor
        elif length >= old / scaling.high_freq_factor:
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            share = (old / length - low) / (high - low)
            frequency = (1 - share) * frequency / scaling.factor + share * frequency
    elif scaling.kind == "linear":
        frequency /= scaling.factor
    return position * frequency


@pytest.mark.parametrize(
    "scaling",
    [
        RopeScaling(),
        RopeScaling(kind="linear", factor=4.0),
        RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=64),
    ],
    ids=lambda scaling: scaling.kind,
)
def test_angles_grow_with_positions(scaling):
    """Cos and sin are those of the angle of each position and pair, slowed as the scaling says."""
    cos, sin = make_rope_table(evolve(TINY, rope_scaling=scaling))
    for position in (0, 1, 17, 511):
        angles = [compute_angle(position, pair, scaling) for pair in range(TINY.head_dim // 2)]
        expected = torch.tensor([[f(x) for x in angles] for f in (math.cos, math.sin)])
        actual = torch.stack([cos[position], sin[position]])
        assert torch.allclose(expected, actual, atol=1e-6)
