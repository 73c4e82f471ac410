"""Tensors by name, checked against the sizes of a model."""

from __future__ import annotations

import pytest
import torch

from impl.runner.config import TINY_MODELS
from impl.runner.errors import RunnerError
from impl.runner.weights import assemble, make_tensors, make_weights

TINY = TINY_MODELS["tiny"]
NORM = "model.layers.1.input_layernorm.weight"


def test_a_seed_says_which_weights():
    """The same seed makes the same tensors, another seed others."""
    first, again, other = (make_tensors(TINY, seed)[NORM] for seed in (1, 1, 2))
    assert (True, False) == (torch.equal(first, again), torch.equal(first, other))


def test_queries_keys_and_values_are_one_matrix():
    """What is computed from the same rows stands in one matrix, in order."""
    tensors, layer = make_tensors(TINY), make_weights(TINY).layers[1]
    parts = [tensors[f"model.layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(torch.cat(parts), layer.qkv)


def test_a_tied_head_is_the_embedding():
    """A tied head takes no memory of its own."""
    weights = make_weights(TINY_MODELS["tiny-qwen2"])
    assert weights.head is weights.embedding


def test_weights_are_converted():
    """All weights have the dtype that is asked for."""
    weights = make_weights(TINY, dtype=torch.bfloat16)
    assert {torch.bfloat16} == {weights.head.dtype, weights.norm.dtype, weights.layers[0].qkv.dtype}


def test_tensors_that_say_nothing_new_are_spared():
    """Angles that were worked out before, and a head that is tied, are passed over."""
    config = TINY_MODELS["tiny-qwen2"]
    tensors = make_tensors(config)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    tensors["lm_head.weight"] = torch.ones(1)
    assert torch.equal(assemble(config, tensors).head, tensors["model.embed_tokens.weight"])


def without(name):
    """The tensors of a model but one."""
    return {key: tensor for key, tensor in make_tensors(TINY).items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (without(NORM), f"{NORM} is missing from the weights; give all files of the model"),
        ({}, r"lm_head.weight and \d+ more are missing from the weights"),
        (
            make_tensors(TINY) | {"model.layers.2.mlp.up_proj.weight": torch.ones(1)},
            "model.layers.2.mlp.up_proj.weight is in the weights, and the config has no use",
        ),
        (
            make_tensors(TINY) | {NORM: torch.ones(63)},
            rf"{NORM} has the shape \(63,\), however the config asks for \(64,\)",
        ),
    ],
    ids=["one missing", "all missing", "one too many", "wrong shape"],
)
def test_weights_of_another_model_are_refused(tensors, message):
    """A tensor that is missing, not asked for or of a wrong shape is named."""
    with pytest.raises(RunnerError, match=message):
        assemble(TINY, tensors)
