"""The angles that tell a model where a token stands.

Entry point: `make_rope_table`.
"""

from __future__ import annotations

import math

import torch

from impl.runner.config import ModelConfig, RopeScaling


def make_rope_table(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cos and sin for all positions: [max_position_embeddings, head_dim / 2], float32.

    They are worked out in float64 on the CPU, so that every device is given the same bits.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequencies = _scale(config.rope_theta**-half, config.rope_scaling)
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
    angles = positions[:, None] * frequencies[None]
    return angles.cos().float(), angles.sin().float()


def _scale(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    if scaling.kind == "default":
        return frequencies
    slowed = frequencies / scaling.factor
    return slowed if scaling.kind == "linear" else _blend(frequencies, slowed, scaling)


def _blend(frequencies: torch.Tensor, slowed: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Slows pairs that turn slowly, and leaves alone those that turn fast (Llama 3.1).

    Source: transformers/modeling_rope_utils.py: _compute_llama3_parameters.
    """
    num_turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((num_turns - low) / (high - low)).clamp(0, 1)
    return share * frequencies + (1 - share) * slowed
