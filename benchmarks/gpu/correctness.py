"""Do rows keep their bits on this device? Entry points: `compare_kernels`, `compare_runner`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

from benchmarks.gpu.sizes import Setting
from benchmarks.gpu.tensors import (
    DTYPES,
    MAX_ERROR,
    compute_error,
    count_differing,
    draw,
    draw_weight,
    make_batch,
    make_weights_there,
)
from impl.runner.graphs import use_graphs
from impl.runner.model_runner import ModelRunner
from impl.runner.ops.backends import make_ops
from impl.runner.ops.interface import Ops
from spec.interface import CachedRequestData, NewRequestData, SchedulerOutput

Tensor = torch.Tensor
Row = dict[str, Any]

BLOCK_SIZE = 16


def compare_kernels(setting: Setting) -> Iterator[Row]:
    """Compares rows of every kernel in batches of many sizes with those of the whole batch."""
    for dtype in DTYPES:
        ops = make_ops("triton", setting.device, dtype)
        for n, k in setting.products:
            yield {**_name(f"linear {n}x{k}", dtype), **_compare_product(setting, ops, n, k)}
        yield {**_name("norm, RoPE, SiLU", dtype), **_compare_small(setting, ops)}
        for shape in setting.attention:
            yield {**_name(f"attention {shape}", dtype), **_compare_attention(setting, ops, shape)}


def compare_runner(setting: Setting) -> Iterator[Row]:
    """Compares chunks, company and recorded graphs with a prompt alone in one step."""
    for dtype in DTYPES:
        weights = make_weights_there(setting.checked_model, dtype, setting.device)

        def make(weights: Any = weights, dtype: torch.dtype = dtype) -> ModelRunner:
            ops = make_ops("triton", setting.device, dtype)
            num_blocks = 3 * (setting.prompt_length // BLOCK_SIZE + 2)
            return ModelRunner(setting.checked_model, weights, ops, BLOCK_SIZE, num_blocks)

        whole = _run(make(), setting, setting.prompt_length)
        for size in setting.chunk_sizes:
            rows = _run(make(), setting, size)
            yield {**_name(f"chunks of {size}", dtype), **_compare(whole, rows)}
        rows = _run(make(), setting, setting.chunk_sizes[-1], has_company=True)
        yield {**_name("company", dtype), **_compare(whole, rows)}
        runner = make()
        use_graphs(runner, setting.graph_sizes)
        rows = _run(runner, setting, min(setting.graph_sizes[-1], setting.prompt_length))
        yield {**_name("recorded graphs", dtype), **_compare(whole, rows)}


def _name(what: str, dtype: torch.dtype) -> Row:
    return {"what": what, "dtype": str(dtype).removeprefix("torch.")}


def _judge(num_rows: int, num_differing: int, error: float, max_error: float) -> Row:
    return {
        "num_rows": num_rows,
        "num_differing": num_differing,
        "error": f"{error:.1e}",
        "is_accurate": error < max_error,
    }


def _compare_product(setting: Setting, ops: Ops, n: int, k: int) -> Row:
    total = setting.num_rows[-1]
    x = draw(total, k, dtype=ops.dtype, device=setting.device)
    weight = draw_weight(n, k, ops.dtype, setting.device)
    whole = ops.linear(x, weight, None)
    # From the front and from the back, so that a row stands elsewhere in its tile, too.
    parts = [part for m in setting.num_rows for part in ((0, m), (total - m, total))]
    differing = sum(
        count_differing(whole[start:end], ops.linear(x[start:end], weight, None))
        for start, end in parts
    )
    error = compute_error(whole, x.double() @ weight.double().T)
    num_rows = sum(end - start for start, end in parts)
    return _judge(num_rows, differing, error, MAX_ERROR[ops.dtype])


def _compare_small(setting: Setting, ops: Ops) -> Row:
    total, width = setting.num_rows[-1], setting.checked_model.hidden_size
    x = draw(total, width, dtype=ops.dtype, device=setting.device)
    angles = draw(total, 16, dtype=torch.float32, device=setting.device)
    weight = torch.ones(width, dtype=ops.dtype, device=setting.device)

    def compute(rows: slice) -> list[Tensor]:
        heads = x[rows].view(-1, width // 32, 32)
        return [
            ops.rms_norm(x[rows], weight, 1e-5),
            ops.rope(heads, angles[rows].cos(), angles[rows].sin()).flatten(1),
            ops.silu_mul(x[rows], x[rows]),
        ]

    whole = compute(slice(0, total))
    differing = sum(
        count_differing(old[total - m :], new)
        for m in setting.num_rows
        for old, new in zip(whole, compute(slice(total - m, total)), strict=True)
    )
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    error = compute_error(whole[0], exact)
    return _judge(3 * sum(setting.num_rows), differing, error, MAX_ERROR[ops.dtype])


def _compare_attention(setting: Setting, ops: Ops, shape: tuple[int, int, int]) -> Row:
    num_heads, num_kv_heads, head_dim = shape
    length, device = setting.length, setting.device
    width = -(-length // BLOCK_SIZE)
    query = draw(length, num_heads, head_dim, dtype=ops.dtype, device=device)
    caches = [
        draw(width + 1, BLOCK_SIZE, num_kv_heads, head_dim, dtype=ops.dtype, device=device, seed=n)
        for n in (1, 2)
    ]

    def attend(start: int, end: int) -> Tensor:
        batch = make_batch([(start, end)], device, width)
        return ops.paged_attention(query[start:end], *caches, batch)

    whole = attend(0, length)
    parts = [(at, at + 1) for at in range(0, length, 63)]
    for size in (7, 64, 129):
        parts += list(pairwise([*range(0, length, size), length]))
    differing = sum(count_differing(whole[a:b], attend(a, b)) for a, b in parts)
    error = compute_error(whole, _attend_exactly(query, *caches))
    # Weights are rounded to the dtype before they multiply values.
    return _judge(sum(b - a for a, b in parts), differing, error, 2 * MAX_ERROR[ops.dtype])


def _attend_exactly(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    length, num_heads, head_dim = query.shape
    group = num_heads // keys.shape[2]
    key, value = (
        cache[1:].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
        for cache in (keys, values)
    )
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) / math.sqrt(head_dim)
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -math.inf).softmax(-1), value)


def _run(
    runner: ModelRunner, setting: Setting, chunk_size: int, *, has_company: bool = False
) -> dict[str, Tensor]:
    """Runs a prompt in chunks, and two tokens more; returns logits and the KV of each position."""
    length = setting.prompt_length
    prompt = tuple(range(7, 7 + length))
    prompt = tuple(token % setting.checked_model.vocab_size for token in prompt)
    width = length // BLOCK_SIZE + 2
    logits = _keep_logits(runner)
    start, step = 0, min(chunk_size, length)
    while start < length + 2:
        output = _schedule("A", prompt, start, step, range(1, width + 1))
        if has_company and start < length:
            other = _schedule("B", prompt[::-1], start, step, range(width + 1, 2 * width + 1))
            output = _join(other, output)
        runner.execute(output)
        start += step
        step = min(chunk_size, length - start) if start < length else 1
    kv = [
        torch.cat(
            [
                part.flatten(1)
                for part in runner.kv_cache.read(layer, list(range(1, width + 1)), length)
            ],
            1,
        )
        for layer in (0, runner.config.num_hidden_layers - 1)
    ]
    return {"logits": torch.cat([rows[-1:] for rows in logits][-3:]), "kv": torch.cat(kv, 1)}


def _keep_logits(runner: ModelRunner) -> list[Tensor]:
    """Keeps what the model says; a tap would keep graphs from being used."""
    logits: list[Tensor] = []
    compute = runner.model.compute_logits

    def compute_and_keep(hidden: Tensor) -> Tensor:
        logits.append(compute(hidden))
        return logits[-1]

    runner.model.compute_logits = compute_and_keep  # type: ignore[method-assign]
    return logits


def _schedule(
    request_id: str, prompt: tuple[int, ...], start: int, num_tokens: int, block_ids: range
) -> SchedulerOutput:
    if start == 0:
        new = NewRequestData(prompt, 0, list(block_ids))
        return SchedulerOutput({request_id: num_tokens}, {request_id: new})
    cached = CachedRequestData(False, [], start)
    return SchedulerOutput({request_id: num_tokens}, {}, {request_id: cached})


def _join(one: SchedulerOutput, two: SchedulerOutput) -> SchedulerOutput:
    return SchedulerOutput(
        one.num_scheduled_tokens | two.num_scheduled_tokens,
        one.scheduled_new_reqs | two.scheduled_new_reqs,
        one.scheduled_cached_reqs | two.scheduled_cached_reqs,
    )


def _compare(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> Row:
    differing = sum(count_differing(rows, actual[name]) for name, rows in expected.items())
    num_rows = sum(len(rows) for rows in expected.values())
    is_finite = all(bool(rows.isfinite().all()) for rows in expected.values())
    return {"num_rows": num_rows, "num_differing": differing, "is_accurate": is_finite}
