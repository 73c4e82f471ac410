"""Models in one GGUF file, as llama.cpp keeps them; what is quantised there is widened to float32.

Entry point: `read_model`. Names and the order of rows are those of llama.cpp
(gguf-py/gguf/constants.py; convert_hf_to_gguf.py: LlamaModel.permute).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from impl.runner.config import ModelConfig, RopeScaling
from impl.runner.errors import RunnerError

Reader = Any
"""A gguf.GGUFReader; the package is loaded when a file is read."""

ARCHITECTURES = ("llama", "qwen2", "qwen3")

TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_model(path: Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Reads a model: its config, and its tensors in float32, by the names of Hugging Face.

    Raises `RunnerError` if it cannot be run.
    """
    try:
        return _read(path)
    except (RunnerError, ImportError, MemoryError):
        raise
    except Exception as fault:  # The package raises anything where a file is broken.
        raise RunnerError(
            f"{path} is no GGUF file that can be read: {type(fault).__name__}: {fault}; "
            "fetch it again"
        ) from fault


def open_file(path: Path) -> Reader:
    """Opens a file. Raises `RunnerError` if it is of another kind or version, or ends too early."""
    from gguf import GGUFReader  # noqa: PLC0415
    from gguf.gguf_reader import READER_SUPPORTED_VERSIONS as VERSIONS  # noqa: PLC0415

    with path.open("rb") as file:
        magic, version = file.read(4), int.from_bytes(file.read(4), "little")
    if magic != b"GGUF":
        raise RunnerError(f"{path} is no GGUF file, which begins with these four letters")
    # Where bytes are in the other order, the lower half of the number is 0.
    if version % 2**16 and version not in VERSIONS:
        readable = " and ".join(map(str, VERSIONS))
        raise RunnerError(f"{path} has version {version} of GGUF; this runner reads {readable}")
    try:
        return GGUFReader(path)
    except (IndexError, ValueError) as fault:
        size = path.stat().st_size
        raise RunnerError(
            f"{path} ends too early, after {size:,} bytes, or is broken; fetch it again"
        ) from fault


def _read(path: Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    reader = open_file(path)
    architecture = _get(reader, path, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise RunnerError(
            f"{path} is of the architecture {architecture}; this runner has "
            f"{', '.join(ARCHITECTURES)}"
        )
    config = _read_config(reader, path, architecture)
    return config, _read_tensors(reader, config, is_interleaved=architecture == "llama")


def _read_config(reader: Reader, path: Path, architecture: str) -> ModelConfig:
    names = {tensor.name for tensor in reader.tensors}

    def get(name: str, default: Any = None) -> Any:
        return _get(reader, path, f"{architecture}.{name}", default)

    heads, hidden = get("attention.head_count"), get("embedding_length")
    return ModelConfig(
        vocab_size=_get_vocab_size(reader, path),
        hidden_size=hidden,
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv", heads),
        head_dim=get("attention.key_length", hidden // heads),
        max_position_embeddings=get("context_length"),
        rope_theta=get("rope.freq_base", 10000.0),
        rope_scaling=_make_rope_scaling(path, names, get("rope.scaling.type", "none"), get),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings="output.weight" not in names,
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        qk_norm="blk.0.attn_q_norm.weight" in names,
    )


def _read_tensors(
    reader: Reader, config: ModelConfig, *, is_interleaved: bool
) -> dict[str, torch.Tensor]:
    from gguf import dequantize  # noqa: PLC0415

    tensors = {}
    for stored in reader.tensors:
        name = translate(stored.name)
        tensor = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy()).float()
        if is_interleaved and ".q_proj." in name:
            tensor = unpermute(tensor, config.num_attention_heads)
        elif is_interleaved and ".k_proj." in name:
            tensor = unpermute(tensor, config.num_key_value_heads)
        tensors[name] = tensor
    return tensors


def translate(name: str) -> str:
    """Returns Hugging Face's name of a tensor; one that has none keeps its own."""
    stem, _, kind = name.rpartition(".")
    if stem in TENSORS:
        return f"{TENSORS[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    if block == "blk" and part in LAYER_TENSORS:
        return f"model.layers.{number}.{LAYER_TENSORS[part]}.{kind}"
    return name


def unpermute(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Puts the two halves of each head back one after the other.

    llama.cpp stores a Llama's queries and keys with the halves interleaved, since it rotates
    neighbours.
    """
    pairs = tensor.view(num_heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _get(reader: Reader, path: Path, name: str, default: Any = None) -> Any:
    field = reader.get_field(name)
    if field is not None:
        return field.contents()
    if default is None:
        raise RunnerError(f"{path} has no field {name}; give a whole model")
    return default


def _get_vocab_size(reader: Reader, path: Path) -> int:
    """Returns how many rows the embedding has; the lists of tokens may be longer or absent."""
    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    if "token_embd.weight" not in shapes:
        raise RunnerError(f"{path} has no tensor token_embd.weight; give a whole model")
    # The innermost dimension stands first.
    return int(shapes["token_embd.weight"][1])


def _make_rope_scaling(path: Path, names: set[str], kind: str, get: Any) -> RopeScaling:
    if "rope_freqs.weight" in names or kind not in {"none", "linear"}:
        raise RunnerError(
            f"{path} scales RoPE in a way that this runner reads from a Hugging Face folder only "
            f"(rope.scaling.type={kind!r}); give that folder"
        )
    if kind == "none":
        return RopeScaling()
    return RopeScaling(kind="linear", factor=get("rope.scaling.factor"))
