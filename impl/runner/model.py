"""The forward pass of the Llama family, made of the operations of a backend.

Entry point: `Model.forward`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen

from impl.runner.config import ModelConfig
from impl.runner.kv_cache import KVCache
from impl.runner.ops.interface import AttentionBatch, Ops
from impl.runner.rope import make_rope_table
from impl.runner.weights import LayerWeights, Weights

Tensor = torch.Tensor

See = Callable[[int, str, Tensor], None]
"""Is shown the rows of a layer and a stage: [n, …], one per token of the step."""

STAGES = (
    "embedding",
    "input_norm",
    "query",
    "key",
    "value",
    "attention",
    "after_attention",
    "mlp_norm",
    "output",
    "final_norm",
    "logits",
)
"""In the order of computation; all but the first and the last two come once per layer. The first
has layer 0, the last two the number of layers; both are of those rows only that sample."""


def see_nothing(layer: int, stage: str, rows: Tensor) -> None:
    """Stands where nobody looks."""


@frozen(eq=False)
class _Step:
    """What all layers share in a step."""

    cos: Tensor
    sin: Tensor
    """[n, head_dim / 2], float32: the rotation of each token."""
    slots: Tensor
    attention: AttentionBatch
    kv_cache: KVCache


class Model:
    """A model with its weights on a backend; what it knows of requests is in its arguments."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        cos, sin = make_rope_table(config)
        self.cos, self.sin = cos.to(ops.device), sin.to(ops.device)
        self.see: See = see_nothing

    def forward(
        self, token_ids: Tensor, slots: Tensor, attention: AttentionBatch, kv_cache: KVCache
    ) -> Tensor:
        """Computes the tokens of a step, and stores their KV: [n] -> [n, hidden_size].

        All that depends on the step is in tensors, so that a device can record it and play it back.
        """
        step = _Step(*self._get_rotation(attention.positions), slots, attention, kv_cache)
        hidden = self.weights.embedding[token_ids]
        self.see(0, "embedding", hidden)
        for number, layer in enumerate(self.weights.layers):
            hidden = hidden + self._attend(number, layer, hidden, step)
            self.see(number, "after_attention", hidden)
            hidden = hidden + self._feed_forward(number, layer, hidden)
            self.see(number, "output", hidden)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Returns what each row says of the next token: [m, hidden_size] -> [m, vocab_size]."""
        normed = self.ops.rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)
        self.see(self.config.num_hidden_layers, "final_norm", normed)
        logits = self.ops.head(normed, self.weights.head)
        self.see(self.config.num_hidden_layers, "logits", logits)
        return logits

    def _get_rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cos and sin for each token of a step."""
        return self.cos[positions], self.sin[positions]

    def _attend(self, number: int, layer: LayerWeights, hidden: Tensor, step: _Step) -> Tensor:
        """Lets each token attend to its request; all KV of the step is stored before it is read."""
        query, key, value = self._project(number, layer, hidden, step)
        step.kv_cache.write(number, step.slots, key, value)
        keys, values = step.kv_cache.keys[number], step.kv_cache.values[number]
        attended = self.ops.paged_attention(query, keys, values, step.attention)
        self.see(number, "attention", attended)
        return self.ops.linear(attended.flatten(1), layer.output, layer.output_bias)

    def _project(
        self, number: int, layer: LayerWeights, hidden: Tensor, step: _Step
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns query, key and value of each token, the first two rotated to its position."""
        config, ops = self.config, self.ops
        normed = ops.rms_norm(hidden, layer.input_norm, config.rms_norm_eps)
        self.see(number, "input_norm", normed)
        qkv = ops.linear(normed, layer.qkv, layer.qkv_bias)
        qkv = qkv.view(-1, config.num_qkv_heads, config.head_dim)
        num_rotated = config.num_attention_heads + config.num_key_value_heads
        to_rotate, value = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if layer.q_norm is not None and layer.k_norm is not None:
            to_rotate = self._norm_heads(to_rotate, layer.q_norm, layer.k_norm)
        rotated = ops.rope(to_rotate, step.cos, step.sin)
        query = rotated[:, : config.num_attention_heads]
        key = rotated[:, config.num_attention_heads :]
        for stage, rows in (("query", query), ("key", key), ("value", value)):
            self.see(number, stage, rows)
        return query, key, value

    def _norm_heads(self, heads: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """Norms each query and key by itself (Qwen3)."""
        config = self.config

        def norm(part: Tensor, weight: Tensor) -> Tensor:
            rows = part.reshape(-1, config.head_dim)
            return self.ops.rms_norm(rows, weight, config.rms_norm_eps).view(part.shape)

        query, key = heads[:, : config.num_attention_heads], heads[:, config.num_attention_heads :]
        return torch.cat([norm(query, q_norm), norm(key, k_norm)], dim=1)

    def _feed_forward(self, number: int, layer: LayerWeights, hidden: Tensor) -> Tensor:
        ops = self.ops
        normed = ops.rms_norm(hidden, layer.post_attention_norm, self.config.rms_norm_eps)
        self.see(number, "mlp_norm", normed)
        gate, up = ops.linear(normed, layer.gate_up, None).chunk(2, dim=-1)
        return ops.linear(ops.silu_mul(gate, up), layer.down, None)
