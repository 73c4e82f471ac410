"""What a step costs beside ordinary torch, and beside what the device allows.

Entry point: `measure_steps`. Both ways run the same model, recorded as a graph from the tokens to
the logits. The floor is what the device must do at least: the larger of the bytes that a step has
to move over the speed of a copy, and its products over the speed of a large one, both measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import frozen

from benchmarks.gpu.correctness import BLOCK_SIZE
from benchmarks.gpu.dense import DenseOps
from benchmarks.gpu.sizes import Setting
from benchmarks.gpu.tensors import compute_error, draw, make_batch, make_weights_there
from benchmarks.gpu.timing import NOT_MEASURED, measure_us
from impl.runner.config import ModelConfig
from impl.runner.kv_cache import KVCache
from impl.runner.model import Model
from impl.runner.ops.backends import make_ops
from impl.runner.ops.interface import AttentionBatch, Ops
from impl.runner.weights import Weights

Tensor = torch.Tensor
Row = dict[str, Any]

DTYPE = torch.bfloat16
COPIED_BYTES = 2**30
PRODUCT_SIZE = 8192


@frozen
class Work:
    """A step in which all requests are alike."""

    kind: str
    num_reqs: int
    num_tokens: int
    """Per request: 1, or all of them."""
    length: int
    """Tokens of each request once the step is done."""

    @property
    def width(self) -> int:
        """Blocks of each request."""
        return -(-self.length // BLOCK_SIZE)


@frozen
class Ceilings:
    """What the device does at best."""

    bytes_per_us: float
    flops_per_us: float


def measure_steps(setting: Setting) -> Iterator[Row]:
    """Measures decode steps and whole prompts of each model."""
    ceilings = _measure_ceilings(setting)
    for name, config in setting.timed_models.items():
        weights = make_weights_there(config, DTYPE, setting.device)
        works = [Work("decode", rows, 1, setting.context) for rows in setting.decode_rows]
        works += [Work("prefill", 1, length, length) for length in setting.prefill_lengths]
        for work in works:
            yield {"model": name, **_measure(setting, config, weights, work, ceilings)}


def _measure(
    setting: Setting, config: ModelConfig, weights: Weights, work: Work, ceilings: Ceilings | None
) -> Row:
    cache = KVCache(
        config, BLOCK_SIZE, work.num_reqs * work.width, setting.device, DTYPE, poison=False
    )
    for part in (*cache.keys, *cache.values):
        part.normal_()
    ours: Ops = make_ops("triton", setting.device, DTYPE)
    plain: Ops = DenseOps(setting.device, DTYPE, work.num_reqs, work.length)
    steps = [_make_step(config, weights, ops, work, cache) for ops in (ours, plain)]
    error = compute_error(steps[0](), steps[1]().double())
    triton_us, plain_us = (measure_us(setting, step) for step in steps)
    row: Row = {
        "kind": work.kind,
        "rows": work.num_reqs * work.num_tokens,
        "length": work.length,
        "triton_us": triton_us,
        "plain_us": plain_us,
        "ratio": NOT_MEASURED,
        "error_beside_plain": f"{error:.1e}",
    }
    if ceilings is not None and isinstance(triton_us, float) and isinstance(plain_us, float):
        floor_us = _compute_floor(config, work, ceilings)
        row["ratio"] = round(triton_us / plain_us, 2)
        row["floor_us"] = round(floor_us, 1)
        row["times_floor"] = round(triton_us / floor_us, 2)
    return row


def _make_step(
    config: ModelConfig, weights: Weights, ops: Ops, work: Work, cache: KVCache
) -> Callable[[], Tensor]:
    """Returns what computes a step, from tokens to the logits of the last of each request."""
    model, device = Model(config, weights, ops), ops.device
    parts = [(work.length - work.num_tokens, work.length)] * work.num_reqs
    batch = make_batch(parts, device, work.width)
    num_tokens = work.num_reqs * work.num_tokens
    token_ids = torch.arange(num_tokens, device=device) * 31 % config.vocab_size
    first_slots = torch.arange(work.num_reqs, device=device) * work.width * BLOCK_SIZE + BLOCK_SIZE
    slots = first_slots[batch.request_of_token.long()] + batch.positions
    last = torch.arange(1, work.num_reqs + 1, device=device) * work.num_tokens - 1

    def compute() -> Tensor:
        # Built here, so that whatever a backend works out from it is part of the step.
        attention = AttentionBatch(batch.block_tables, batch.request_of_token, batch.positions)
        return model.compute_logits(model.forward(token_ids, slots, attention, cache)[last])

    return compute


def _measure_ceilings(setting: Setting) -> Ceilings | None:
    """Measures a large copy, bytes read and written, and a large product; nothing on a CPU."""
    if setting.device.type != "cuda":
        return None
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    copy_us = measure_us(setting, lambda: target.copy_(source))
    square = draw(PRODUCT_SIZE, PRODUCT_SIZE, dtype=DTYPE, device=setting.device)
    product_us = measure_us(setting, lambda: square @ square)
    return Ceilings(2 * COPIED_BYTES / float(copy_us), 2 * PRODUCT_SIZE**3 / float(product_us))


def _compute_floor(config: ModelConfig, work: Work, ceilings: Ceilings) -> float:
    """Returns the least that a step can take, in microseconds."""
    hidden, head_dim = config.hidden_size, config.head_dim
    num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
    per_layer = hidden * head_dim * (2 * num_heads + 2 * num_kv_heads)
    per_layer += 3 * hidden * config.intermediate_size
    layers, head = config.num_hidden_layers * per_layer, config.vocab_size * hidden
    num_tokens = work.num_reqs * work.num_tokens
    num_kv = 2 * num_kv_heads * head_dim * config.num_hidden_layers
    num_bytes = DTYPE.itemsize * (layers + head + work.num_reqs * work.length * num_kv)
    # A token of a whole prompt sees half of it, on average.
    num_seen = work.length if work.num_tokens == 1 else work.length / 2
    attended = 4 * num_heads * head_dim * config.num_hidden_layers * num_seen
    flops = num_tokens * (2 * layers + attended) + work.num_reqs * 2 * head
    return max(num_bytes / ceilings.bytes_per_us, flops / ceilings.flops_per_us)
