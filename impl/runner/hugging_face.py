"""Models as Hugging Face keeps them: a folder with config.json and safetensors files.

Entry points: `read_config`, `read_tensors`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from impl.runner.config import ModelConfig, RopeScaling
from impl.runner.errors import RunnerError

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

REFUSED_FIELDS: dict[str, Any] = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "use_sliding_window": False,
}
"""What would be another model if it had another value than this."""

ROPE_KINDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""The kinds of RoPE that can be run, and the fields that each must have."""


def read_config(folder: Path) -> ModelConfig:
    """Reads config.json. Raises `RunnerError` if it is missing, or of a model that cannot run."""
    path = folder / "config.json"
    fields = _read_json(path)
    named = fields.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else named
    if architecture not in ARCHITECTURES:
        raise RunnerError(
            f"{path} is of the architecture {architecture}; this runner has "
            f"{', '.join(ARCHITECTURES)}"
        )
    for name, value in REFUSED_FIELDS.items():
        if fields.get(name, value) != value:
            raise RunnerError(f"{path} has {name}={fields[name]!r}; this runner has {value!r} only")
    try:
        return _make_config(architecture, fields)
    except KeyError as missing:
        raise RunnerError(f"{path} has no {missing}; give the model's own config") from missing
    except (AttributeError, TypeError, ZeroDivisionError) as fault:
        raise RunnerError(f"{path} makes no sense: {fault}; give the model's own config") from fault


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Reads all tensors of a folder, of one safetensors file or of those that its index names."""
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    tensors: dict[str, torch.Tensor] = {}
    for path in _find_files(folder):
        try:
            tensors.update(load_file(path))
        except (SafetensorError, OSError) as fault:
            raise RunnerError(f"{path} cannot be read: {fault}; fetch it again") from fault
    return tensors


def _find_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = _read_json(index).get("weight_map")
        names = _read_names(index, weight_map)
    else:
        names = ["model.safetensors"]
    paths = [folder / name for name in names]
    for path in paths:
        if not path.exists():
            raise RunnerError(f"{path} is missing; give a folder with all files of the model")
    return paths


def _read_names(index: Path, weight_map: object) -> list[str]:
    """The files that an index names, all of them beside it."""
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise RunnerError(
            f"{index} has no weight_map that says which file holds what; fetch it again"
        )
    outside = next((n for n in names if n in {"", ".."} or n != Path(n).name), None)
    if outside is not None:
        raise RunnerError(
            f"{index} has a weight_map that names {outside!r}, which is no file of its own folder; "
            "fetch the model again"
        )
    return sorted(set(names))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunnerError(f"{path} is missing; give the folder of a model") from None
    except OSError as fault:
        raise RunnerError(f"{path} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise RunnerError(f"{path} is no JSON: {fault}") from fault
    if not isinstance(fields, dict):
        raise RunnerError(f"{path} holds no fields; give the folder of a model")
    return fields


def _make_config(architecture: str, fields: Mapping[str, Any]) -> ModelConfig:
    heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
    # Qwen2 always has these biases, and only these; Llama and Qwen3 have all four or none.
    has_bias = fields.get("attention_bias") or False
    return ModelConfig(
        vocab_size=fields["vocab_size"],
        hidden_size=hidden,
        intermediate_size=fields["intermediate_size"],
        num_hidden_layers=fields["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=fields.get("num_key_value_heads", heads),
        head_dim=fields.get("head_dim") or hidden // heads,
        max_position_embeddings=fields["max_position_embeddings"],
        rope_theta=_get_rope_fields(fields).get("rope_theta", fields.get("rope_theta", 10000.0)),
        rope_scaling=_make_rope_scaling(_get_rope_fields(fields)),
        rms_norm_eps=fields["rms_norm_eps"],
        tie_word_embeddings=fields.get("tie_word_embeddings") or False,
        qkv_bias=has_bias or architecture == "Qwen2ForCausalLM",
        output_bias=has_bias and architecture != "Qwen2ForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
    )


def _get_rope_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what is said of RoPE: newer files say all in `rope_parameters`."""
    return fields.get("rope_parameters") or fields.get("rope_scaling") or {}


def _make_rope_scaling(fields: Mapping[str, Any]) -> RopeScaling:
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind not in list(ROPE_KINDS):
        raise RunnerError(f"rope_type={kind!r} is unknown; this runner has {', '.join(ROPE_KINDS)}")
    return RopeScaling(kind=kind, **{name: fields[name] for name in ROPE_KINDS[kind]})
