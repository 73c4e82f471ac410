"""A random model as a folder that every engine can load: config.json and one safetensors file.

Entry point: `write_model`.
"""

from __future__ import annotations

import json
from pathlib import Path

from impl.runner.config import ModelConfig
from impl.runner.weights import make_tensors

SMALL_MODEL = ModelConfig(
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=1024,
)
"""Three million numbers, and heads of a size that kernels of engines have."""


def write_model(folder: Path, config: ModelConfig = SMALL_MODEL, seed: int = 0) -> None:
    """Writes random weights, the same for a seed, and the config of a Llama."""
    # safetensors is needed for files alone, and is no part of torch.
    from safetensors.torch import save_file  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    save_file(make_tensors(config, seed), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_describe(config), indent=2))


def _describe(config: ModelConfig) -> dict[str, object]:
    """What Hugging Face calls the sizes; their names are ours, but for what is added."""
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "tie_word_embeddings",
    )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 0,
        **{name: getattr(config, name) for name in names},
    }
