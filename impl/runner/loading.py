"""A model by what a person types: a folder, a GGUF file, or the name of a tiny one.

Entry point: `load_model`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from impl.runner import gguf_file, hugging_face
from impl.runner.config import TINY_MODELS, ModelConfig
from impl.runner.errors import RunnerError
from impl.runner.weights import Weights, assemble, make_weights


def load_model(
    name: str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[ModelConfig, Weights]:
    """Loads a model. Raises `RunnerError` if there is none, or it cannot be run.

    The weights of a tiny model are random, and the same each time.
    """
    if name in TINY_MODELS:
        return TINY_MODELS[name], make_weights(TINY_MODELS[name], 0, device, dtype)
    path = Path(name)
    if path.is_dir():
        config, tensors = hugging_face.read_config(path), hugging_face.read_tensors(path)
    elif path.is_file():
        config, tensors = gguf_file.read_model(path)
    else:
        raise RunnerError(
            f"{name} is no folder, no file and no tiny model; the latter are "
            f"{', '.join(TINY_MODELS)}"
        )
    return config, assemble(config, tensors, device, dtype)
