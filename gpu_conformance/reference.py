"""The same model in float64, a whole request at once: how far a backend may be from the truth.

Entry points: `find_worst_error` of `choose_requests`, and `find_sameness`. That all ways give the
same bits says nothing if these are wrong, or the same whatever is computed.
"""

from __future__ import annotations

import torch
from attrs import frozen

from gpu_conformance.alone import Alone
from gpu_conformance.bench import Bench
from gpu_conformance.work import LONG_MAX_TOKENS, VOCAB_SIZE, make_long_requests
from impl.runner.config import ModelConfig
from impl.runner.rope import make_rope_table
from impl.runner.weights import LayerWeights, Weights
from spec.interface import NewRequest

Tensor = torch.Tensor

MAX_ERROR = {"float32": 1e-4, "bfloat16": 0.05}
"""How far rows may be off, as a share of their length, by number type."""
MAX_EXACT_ERROR = 0.2
"""The same for a backend that rounds to whole numbers of 8 bits: it is a model of its own."""
MAX_POSITIONS = 512
"""Up to so many positions of a model are computed all; of one that has more, `LONG`."""
LONG = 132
LONG_IF_SLOW = 67
"""Both reach into another tile of KV, which holds 64 tokens."""


@frozen
class Error:
    """How far the worst row is off, as a share of its length."""

    logits: float
    kv: float
    limit: float

    @property
    def is_small(self) -> bool:
        """Whether it is what rounding explains."""
        return self.logits <= self.limit and self.kv <= self.limit


def find_worst_error(bench: Bench) -> Error:
    """Holds what all requests compute alone against float64."""
    subject = bench.subject
    assert subject.config is not None, "our runner has a model"
    assert subject.weights is not None, "our runner has weights"
    errors = [
        compute_error(bench.compute_alone(request), subject.config, subject.weights)
        for request in choose_requests(bench)
    ]
    limit = MAX_EXACT_ERROR if subject.backend == "exact" else MAX_ERROR[subject.dtype]
    return Error(max(logits for logits, _ in errors), max(kv for _, kv in errors), limit)


def choose_requests(bench: Bench) -> tuple[NewRequest, ...]:
    """The workload, and a request at positions that nobody of it comes to.

    All ways come to the same at a position that a runner gets wrong on each of them.
    """
    config = bench.subject.config
    if config is None or config.vocab_size < VOCAB_SIZE:
        return bench.requests
    most = config.max_position_embeddings
    length = most if most <= MAX_POSITIONS else LONG
    length = min(length, LONG_IF_SLOW) if bench.subject.is_slow else length
    if length <= max(len(r.prompt_token_ids) + r.max_tokens for r in bench.requests):
        return bench.requests
    return (*bench.requests, make_long_requests(length - LONG_MAX_TOKENS)[0])


def compute_error(alone: Alone, config: ModelConfig, weights: Weights) -> tuple[float, float]:
    """How far the worst row of logits, and of KV, is from the same in float64."""
    assert alone.logits is not None, "a runner that shows nothing has no error"
    assert alone.kv is not None, "a runner that shows its logits shows its KV"
    computed = alone.token_ids[: len(alone.kv)]
    logits, kv = _forward(torch.tensor(computed), config, weights)
    return _worst(alone.logits, logits[-len(alone.logits) :]), _worst(alone.kv, kv)


def _worst(rows: Tensor, truth: Tensor) -> float:
    off = (rows.double().cpu() - truth).norm(dim=1)
    # A row of zeros has no share; NaN is as far off as can be.
    shares = torch.where(off == 0, 0, off / truth.norm(dim=1))
    return float(shares.nan_to_num(nan=torch.inf).max())


def find_sameness(bench: Bench) -> str:
    """Why the rows of a model can tell nothing; "" if they can.

    Where all rows are equal, a row that was computed from wrong data is equal as well.
    """
    alone = [bench.compute_alone(request) for request in bench.requests]
    logits = torch.cat([each.logits.double() for each in alone if each.logits is not None])
    if (logits == logits[0]).all():
        return (
            f"all {len(logits)} rows of logits are the same, whatever was computed, so they tell "
            "nothing; give weights that are not zero"
        )
    kv = torch.cat([each.kv.double() for each in alone if each.kv is not None])
    if (kv == kv[0]).all():
        return f"all {len(kv)} rows of KV are the same, so they tell nothing; give other weights"
    return ""


def _forward(token_ids: Tensor, config: ModelConfig, weights: Weights) -> tuple[Tensor, Tensor]:
    """Returns logits [n, vocab_size] and KV [n, all layers, k and v] of all tokens."""
    hidden = _wide(weights.embedding)[token_ids]
    kept: list[Tensor] = []
    for layer in weights.layers:
        attended, kv = _attend(hidden, layer, config)
        kept += kv
        hidden = hidden + attended
        normed = _norm(hidden, layer.post_attention_norm, config)
        gate, up = (normed @ _wide(layer.gate_up).T).chunk(2, dim=1)
        hidden = hidden + (gate * gate.sigmoid() * up) @ _wide(layer.down).T
    logits = _norm(hidden, weights.norm, config) @ _wide(weights.head).T
    return logits, torch.cat(kept, dim=1)


def _attend(
    hidden: Tensor, layer: LayerWeights, config: ModelConfig
) -> tuple[Tensor, list[Tensor]]:
    """Attends over all tokens at once; returns the rows, and keys and values, each [n, …]."""
    num_tokens = len(hidden)
    qkv = _norm(hidden, layer.input_norm, config) @ _wide(layer.qkv).T + _bias(layer.qkv_bias)
    sizes = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
    heads = qkv.view(num_tokens, -1, config.head_dim)
    query, key, value = torch.split(heads, sizes, dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        query, key = _norm(query, layer.q_norm, config), _norm(key, layer.k_norm, config)
    query, key = _rotate(query, config), _rotate(key, config)
    num_shared = config.num_attention_heads // config.num_key_value_heads
    wide_key, wide_value = (each.repeat_interleave(num_shared, dim=1) for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, wide_key) * config.head_dim**-0.5
    is_later = torch.ones(num_tokens, num_tokens).triu(1).bool()
    shares = scores.masked_fill(is_later, -torch.inf).softmax(dim=-1)
    attended = torch.einsum("hqk,khd->qhd", shares, wide_value).flatten(1)
    rows = attended @ _wide(layer.output).T + _bias(layer.output_bias)
    return rows, [key.flatten(1), value.flatten(1)]


def _norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    mean_square = x.square().mean(dim=-1, keepdim=True)
    return x / (mean_square + config.rms_norm_eps).sqrt() * _wide(weight)


def _rotate(x: Tensor, config: ModelConfig) -> Tensor:
    cos, sin = (_wide(angles)[: len(x), None] for angles in make_rope_table(config))
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _wide(x: Tensor) -> Tensor:
    return x.double().cpu()


def _bias(bias: Tensor | None) -> Tensor:
    return torch.zeros(()).double() if bias is None else _wide(bias)
