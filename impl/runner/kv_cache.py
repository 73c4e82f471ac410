"""The paged KV cache: for each layer, blocks of slots, each slot the KV of one token.

Entry point: `KVCache`.
"""

from __future__ import annotations

import torch

from impl.runner.config import ModelConfig

Tensor = torch.Tensor


class KVCache:
    """Keys and values of all layers, by block. Block 0 is nobody's, as in vLLM (its null block).

    With `poison`, what nobody has written is NaN, so that whoever reads it shows it.
    """

    def __init__(
        self,
        config: ModelConfig,
        block_size: int,
        num_blocks: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        poison: bool = True,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.is_poisoned = poison
        shape = (num_blocks + 1, block_size, config.num_key_value_heads, config.head_dim)
        fill = float("nan") if poison else 0.0
        # Per layer: [num_blocks + 1, block_size, num_key_value_heads, head_dim].
        self.keys = [
            torch.full(shape, fill, device=device, dtype=dtype)
            for _ in range(config.num_hidden_layers)
        ]
        self.values = [torch.full_like(keys, fill) for keys in self.keys]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Stores KV in slots: slots [n], block id * block_size + offset; key, value [n, …]."""
        self.keys[layer].flatten(0, 1)[slots] = key
        self.values[layer].flatten(0, 1)[slots] = value

    def poison(self, block_ids: list[int] | None) -> None:
        """Forgets what blocks held that were handed out anew; None says that nobody can tell."""
        if self.is_poisoned and block_ids:
            for cache in (*self.keys, *self.values):
                cache[block_ids] = float("nan")

    def read(self, layer: int, block_ids: list[int], num_tokens: int) -> tuple[Tensor, Tensor]:
        """Copies the KV of a request's first tokens: two of [num_tokens, kv heads, head_dim]."""
        blocks = block_ids[: -(-num_tokens // self.block_size)]
        key, value = (cache[layer][blocks].flatten(0, 1) for cache in (self.keys, self.values))
        return key[:num_tokens], value[:num_tokens]
