from __future__ import annotations

import json

import torch

from gpu_conformance.adapters.folder import SMALL_MODEL, write_model
from impl.runner.config import TINY_MODELS
from impl.runner.loading import load_model


def test_a_folder_holds_the_model_that_was_asked_for(tmp_path):
    """What is read from the folder has the sizes and, for a seed, the very weights."""
    write_model(tmp_path / "a", TINY_MODELS["tiny"])
    config, weights = load_model(str(tmp_path / "a"))
    known, others = load_model("tiny")
    assert known == config
    assert torch.equal(others.layers[1].qkv, weights.layers[1].qkv)
    assert torch.equal(others.head, weights.head)


def test_another_seed_is_another_model(tmp_path):
    """Weights are drawn by the seed."""
    write_model(tmp_path, TINY_MODELS["tiny"], seed=1)
    assert not torch.equal(load_model("tiny")[1].head, load_model(str(tmp_path))[1].head)


def test_the_small_model_is_a_llama_of_three_million_numbers(tmp_path):
    """Every engine finds the architecture in config.json."""
    write_model(tmp_path)
    config, weights = load_model(str(tmp_path))
    fields = json.loads((tmp_path / "config.json").read_text())
    assert (SMALL_MODEL, ["LlamaForCausalLM"]) == (config, fields["architectures"])
    layers = [t for layer in weights.layers for t in (layer.qkv, layer.gate_up, layer.down)]
    assert 2_600_000 < sum(map(torch.numel, [*layers, weights.head, weights.embedding])) < 3_200_000
