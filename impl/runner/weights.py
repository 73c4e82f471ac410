"""The numbers of a model, checked against its sizes, and random ones for tests.

Entry points: `assemble`, which every reader of files hands its tensors to, and `make_weights`.
Tensors go by the names of Hugging Face's Llama.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from attrs import frozen

from impl.runner.config import ModelConfig
from impl.runner.errors import RunnerError

Tensor = torch.Tensor
Shape = tuple[int, ...]


@frozen(eq=False)
class LayerWeights:
    """One layer. What is computed from the same rows is one matrix."""

    input_norm: Tensor
    qkv: Tensor
    """[num_qkv_heads * head_dim, hidden_size]: queries, then keys, then values."""
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    """[hidden_size, num_attention_heads * head_dim]"""
    output_bias: Tensor | None
    post_attention_norm: Tensor
    gate_up: Tensor
    """[2 * intermediate_size, hidden_size]: gate, then up."""
    down: Tensor
    """[hidden_size, intermediate_size]"""


@frozen(eq=False)
class Weights:
    """A whole model."""

    embedding: Tensor
    """[vocab_size, hidden_size]"""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    """[vocab_size, hidden_size]; the very same tensor as `embedding` if they are tied."""


def assemble(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Weights:
    """Builds a model's weights out of tensors by name, on a device, in a type.

    Raises `RunnerError` if one is missing, is not asked for, has the wrong shape or type, or holds
    NaN.
    """
    shapes = compute_shapes(config)
    _check_names(config, shapes, tensors)
    for name, shape in shapes.items():
        _check_tensor(name, tensors[name], shape)
    placed = {name: tensors[name].to(device, dtype).contiguous() for name in shapes}
    for name, tensor in placed.items():
        _check_numbers(name, tensor)
    embedding = placed["model.embed_tokens.weight"]
    layers = tuple(_assemble_layer(placed, n) for n in range(config.num_hidden_layers))
    head = embedding if config.tie_word_embeddings else placed["lm_head.weight"]
    return Weights(embedding, layers, placed["model.norm.weight"], head)


def make_weights(
    config: ModelConfig,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Weights:
    """Makes random weights, the same for a seed on every machine."""
    return assemble(config, make_tensors(config, seed), device, dtype)


def make_tensors(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Makes random tensors by name, such that no row grows or fades on its way through."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in compute_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            # A norm's weight, or a bias.
            tensors[name] = 0.1 * noise + (1 if name.endswith("norm.weight") else 0)
        else:
            is_embedding = name == "model.embed_tokens.weight"
            tensors[name] = noise / (1 if is_embedding else math.sqrt(shape[1]))
    return tensors


def compute_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Returns which tensors a model consists of, and their shapes."""
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size)
    }
    for number in range(config.num_hidden_layers):
        for name, shape in _compute_layer_shapes(config).items():
            shapes[f"model.layers.{number}.{name}"] = shape
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def _compute_layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    num_query = config.num_attention_heads * config.head_dim
    num_kv = config.num_key_value_heads * config.head_dim
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (num_query, hidden),
        "self_attn.k_proj.weight": (num_kv, hidden),
        "self_attn.v_proj.weight": (num_kv, hidden),
        "self_attn.o_proj.weight": (hidden, num_query),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        shapes["self_attn.q_proj.bias"] = (num_query,)
        shapes["self_attn.k_proj.bias"] = shapes["self_attn.v_proj.bias"] = (num_kv,)
    if config.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def _check_names(
    config: ModelConfig, shapes: Mapping[str, Shape], tensors: Mapping[str, Tensor]
) -> None:
    missing = sorted(set(shapes) - set(tensors))
    if missing:
        raise RunnerError(
            f"{_name_some(missing)} missing from the weights; "
            "give all files of the model, and its own config"
        )
    extra = sorted(name for name in set(tensors) - set(shapes) if not _is_spare(config, name))
    if extra:
        raise RunnerError(
            f"{_name_some(extra)} in the weights, and the config has no use for it; "
            "give the config of this very model"
        )


def _check_tensor(name: str, tensor: Tensor, shape: Shape) -> None:
    if tuple(tensor.shape) != shape:
        raise RunnerError(
            f"{name} has the shape {tuple(tensor.shape)}, however the config asks for "
            f"{shape}; give the config and the weights of one model"
        )
    if not tensor.is_floating_point():
        raise RunnerError(
            f"{name} is of the type {tensor.dtype}, whose scale is not known; "
            "give weights in floating point"
        )


def _check_numbers(name: str, tensor: Tensor) -> None:
    """Raises for what is no number; zeros may be meant, and are one."""
    if not tensor.isfinite().all():
        what = "NaN" if tensor.isnan().any() else f"what {tensor.dtype} has no number for"
        raise RunnerError(f"the weights hold {what}: {name}; fetch them again, or give others")


def _is_spare(config: ModelConfig, name: str) -> bool:
    """Whether a tensor says nothing new: angles worked out before, or a head that is tied."""
    is_tied_head = config.tie_word_embeddings and name == "lm_head.weight"
    return is_tied_head or name.endswith("rotary_emb.inv_freq")


def _name_some(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} is"
    return f"{names[0]} and {len(names) - 1} more are"


def _assemble_layer(tensors: Mapping[str, Tensor], number: int) -> LayerWeights:
    prefix = f"model.layers.{number}."

    def get(name: str) -> Tensor | None:
        return tensors.get(prefix + name)

    def join(owner: str, names: str, kind: str) -> Tensor | None:
        parts = [get(f"{owner}.{name}_proj.{kind}") for name in names.split()]
        return None if parts[0] is None else torch.cat([part for part in parts if part is not None])

    def need(tensor: Tensor | None) -> Tensor:
        assert tensor is not None, "names and shapes were checked"
        return tensor

    return LayerWeights(
        input_norm=need(get("input_layernorm.weight")),
        qkv=need(join("self_attn", "q k v", "weight")),
        qkv_bias=join("self_attn", "q k v", "bias"),
        q_norm=get("self_attn.q_norm.weight"),
        k_norm=get("self_attn.k_norm.weight"),
        output=need(get("self_attn.o_proj.weight")),
        output_bias=get("self_attn.o_proj.bias"),
        post_attention_norm=need(get("post_attention_layernorm.weight")),
        gate_up=need(join("mlp", "gate up", "weight")),
        down=need(get("mlp.down_proj.weight")),
    )
