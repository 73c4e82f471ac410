"""How large everything is: `full_setting` for a GPU, `dry_setting` for a CPU."""

from __future__ import annotations

import torch
from attrs import frozen

from impl.runner.config import TINY_MODELS, ModelConfig

SMOLLM2_135M = ModelConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
SMOLLM2_1_7B = ModelConfig(
    vocab_size=49152,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=24,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=64,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)


@frozen(kw_only=True)
class Setting:
    """Sizes of everything that is asked."""

    device: torch.device
    is_dry: bool
    products: tuple[tuple[int, int], ...]
    """Of weights: (n, k)."""
    num_rows: tuple[int, ...]
    """The batches whose rows are compared; the last is the whole."""
    attention: tuple[tuple[int, int, int], ...]
    """(query heads, KV heads, head_dim)."""
    length: int
    """Tokens of the request whose attention is compared."""
    checked_model: ModelConfig
    prompt_length: int
    chunk_sizes: tuple[int, ...]
    graph_sizes: tuple[int, ...]
    timed_models: dict[str, ModelConfig]
    decode_rows: tuple[int, ...]
    context: int
    """Tokens of each request that decodes."""
    prefill_lengths: tuple[int, ...]
    timed_rows: tuple[int, ...]
    """Batches for which tiles are timed."""


def full_setting() -> Setting:
    """Sizes beside those of tiles, kernels and blocks, and two models as they are used."""
    return Setting(
        device=torch.device("cuda"),
        is_dry=False,
        products=((960, 576), (576, 1536), (6144, 2048), (2048, 8192), (16384, 2048)),
        num_rows=(1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 256, 257, 1000),
        attention=((9, 3, 64), (32, 32, 64), (32, 8, 128)),
        length=700,
        checked_model=SMOLLM2_135M,
        prompt_length=600,
        chunk_sizes=(1, 7, 16, 17, 64, 65, 128, 129, 257),
        graph_sizes=(1, 8, 64, 256),
        timed_models={"SmolLM2-135M": SMOLLM2_135M, "SmolLM2-1.7B": SMOLLM2_1_7B},
        decode_rows=(1, 8, 64, 256),
        context=512,
        prefill_lengths=(2048, 8192),
        timed_rows=(1, 64, 2048),
    )


def dry_setting() -> Setting:
    """The same with tiny sizes, for a CPU."""
    return Setting(
        device=torch.device("cpu"),
        is_dry=True,
        products=((64, 48),),
        num_rows=(1, 3, 20),
        attention=((3, 1, 16),),
        length=40,
        checked_model=TINY_MODELS["tiny"],
        prompt_length=12,
        chunk_sizes=(5,),
        graph_sizes=(8,),
        timed_models={"tiny": TINY_MODELS["tiny"]},
        decode_rows=(1, 2),
        context=8,
        prefill_lengths=(9,),
        timed_rows=(1,),
    )
