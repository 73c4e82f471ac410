"""What a model looks like: the sizes and choices of the Llama family.

Entry point: `ModelConfig`. `TINY_MODELS` are small enough for tests; all others are read from
files (`impl.runner.hugging_face`, `impl.runner.gguf_file`).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
from attrs import field, frozen

from impl.runner.errors import RunnerError

RopeKind = Literal["default", "linear", "llama3"]


MAX_LAYERS = 4096
MAX_POSITIONS = 2**24
"""The rotations of all positions are worked out at once."""


def _positive(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not (type(value) in {int, float} and 0 < value < math.inf):
        raise RunnerError(f"{attribute.name}={value!r} is no number above 0; a model needs one")


def _whole(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not (type(value) is int and value > 0):
        raise RunnerError(
            f"{attribute.name}={value!r} is no whole number above 0; a model needs one"
        )


def _at_most(greatest: int) -> Any:
    def check(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        _whole(owner, attribute, value)
        if value > greatest:
            raise RunnerError(f"{attribute.name}={value} is above {greatest}; give another model")

    return check


def _flag(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not bool:
        raise RunnerError(f"{attribute.name}={value!r} is neither true nor false; say one of them")


@frozen(kw_only=True)
class RopeScaling:
    """How the angles of the positions are stretched for prompts longer than those of training."""

    kind: RopeKind = "default"
    factor: float = field(default=1.0, validator=_positive)
    """Angles grow so many times slower; with "llama3", those of the slow pairs only."""
    low_freq_factor: float = field(default=1.0, validator=_positive)
    """"llama3": pairs that turn less often than this within the original length are slowed."""
    high_freq_factor: float = field(default=4.0, validator=_positive)
    """"llama3": pairs that turn more often than this are left alone; between, it is a blend."""
    original_max_position_embeddings: int = field(default=8192, validator=_whole)
    """"llama3": the length of training."""


@frozen(kw_only=True)
class ModelConfig:
    """The sizes and choices of a model: RMSNorm, RoPE, grouped queries, SwiGLU.

    Raises `RunnerError` if they contradict each other.
    """

    vocab_size: int = field(validator=_whole)
    hidden_size: int = field(validator=_whole)
    intermediate_size: int = field(validator=_whole)
    num_hidden_layers: int = field(validator=_at_most(MAX_LAYERS))
    num_attention_heads: int = field(validator=_whole)
    num_key_value_heads: int = field(validator=_whole)
    """Each serves num_attention_heads / num_key_value_heads query heads."""
    head_dim: int = field(validator=_whole)
    max_position_embeddings: int = field(validator=_at_most(MAX_POSITIONS))
    """The most tokens of a request."""
    rope_theta: float = field(default=10000.0, validator=_positive)
    rope_scaling: RopeScaling = RopeScaling()
    rms_norm_eps: float = field(default=1e-5, validator=_positive)
    tie_word_embeddings: bool = field(default=False, validator=_flag)
    """Whether the head is the embedding."""
    qkv_bias: bool = field(default=False, validator=_flag)
    """Whether queries, keys and values have a bias (Qwen2)."""
    output_bias: bool = field(default=False, validator=_flag)
    """Whether the projection after attention has one."""
    qk_norm: bool = field(default=False, validator=_flag)
    """Whether each head's query and key are normed before they are rotated (Qwen3)."""

    def __attrs_post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise RunnerError(
                f"num_attention_heads={self.num_attention_heads} is no multiple of "
                f"num_key_value_heads={self.num_key_value_heads}; each group needs as many"
            )
        if self.head_dim % 2:
            raise RunnerError(f"head_dim={self.head_dim} is odd; RoPE rotates its halves")

    @property
    def num_qkv_heads(self) -> int:
        """Query, key and value heads together."""
        return self.num_attention_heads + 2 * self.num_key_value_heads


def _tiny(**given: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
    }
    return ModelConfig(**{**sizes, **given})


TINY_MODELS: dict[str, ModelConfig] = {
    "tiny": _tiny(),
    "tiny-smollm": _tiny(tie_word_embeddings=True, num_attention_heads=6, head_dim=12),
    "tiny-qwen2": _tiny(qkv_bias=True, tie_word_embeddings=True, rope_theta=1e6),
    "tiny-qwen3": _tiny(qk_norm=True, head_dim=32, rms_norm_eps=1e-6),
    "tiny-llama3": _tiny(
        rope_theta=5e5,
        rope_scaling=RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=64),
    ),
}
"""Models for tests, by name: two layers, at most 64 wide, one of each kind."""
