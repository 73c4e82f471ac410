"""Sums of whole numbers: no order matters, since nothing is rounded on the way."""

from __future__ import annotations

import pytest
import torch

from impl.runner.errors import RunnerError
from impl.runner.ops.exact import (
    KV_TILE,
    MAX_FACTOR,
    MAX_SHARE,
    MAX_VALUE,
    NUM_FACTORS,
    VALUE_STEP,
    ExactOps,
)
from impl.runner.ops.interface import AttentionBatch

LIMIT = 2**24


def test_no_partial_sum_reaches_the_limit():
    """The greatest factors there are, as many as are summed at once, stay below 2^24."""
    assert NUM_FACTORS * MAX_FACTOR**2 < LIMIT
    assert KV_TILE * MAX_SHARE * MAX_VALUE < LIMIT


@pytest.mark.parametrize("num_inputs", [64, NUM_FACTORS, NUM_FACTORS + 1, 3000])
def test_the_order_of_a_sum_does_not_matter(num_inputs):
    """A product has the same bits with its terms in any order, also the longest."""
    generator = torch.Generator().manual_seed(num_inputs)
    x, weight = (torch.randn(n, num_inputs, generator=generator) for n in (5, 7))
    order = torch.randperm(num_inputs, generator=generator)
    ops = ExactOps()
    expected = ops.linear(x, weight, None)
    assert torch.equal(expected, ops.linear(x[:, order], weight[:, order], None))
    assert torch.allclose(expected, x @ weight.T, atol=0.05 * num_inputs**0.5)


def test_the_order_of_an_ordinary_sum_does_matter():
    """The test above can fail: float32 as it comes has other bits in another order."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 3000, generator=generator) for n in (5, 7))
    order = torch.randperm(3000, generator=generator)
    assert not torch.equal(x @ weight.T, x[:, order] @ weight[:, order].T)


def test_a_norm_does_not_depend_on_order():
    """A mean of squares has the same bits in any order."""
    generator = torch.Generator().manual_seed(0)
    x, order = 7 * torch.randn(4, 640, generator=generator), torch.randperm(640)
    ops, ones = ExactOps(), torch.ones(640)
    expected = ops.rms_norm(x, ones, 1e-5)
    assert torch.equal(expected[:, order], ops.rms_norm(x[:, order], ones, 1e-5))
    assert torch.allclose(expected, torch.nn.functional.rms_norm(x, (640,)), atol=1e-3)


def attend(query, key, value):
    """Attends with one request whose KV fills one block, all of it from position 0 on."""
    num_tokens = query.shape[0]
    batch = AttentionBatch(
        torch.zeros(1, 1, dtype=torch.int32),
        torch.zeros(num_tokens, dtype=torch.int32),
        torch.arange(num_tokens, dtype=torch.int32),
    )
    return ExactOps().paged_attention(query, key[None], value[None], batch)


def test_attention_is_close_to_ordinary_attention():
    """Whole shares and values give what float32 does, up to their steps."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(150, n, 16, generator=generator) for n in (4, 2, 2))
    heads = [x.transpose(0, 1) for x in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *heads, is_causal=True, enable_gqa=True
    ).transpose(0, 1)
    assert float((attend(query, key, value) - expected).abs().max()) < 2 * VALUE_STEP


def test_what_nobody_wrote_stays_visible():
    """A NaN in a slot that is read shows in what is attended, and raises nothing."""
    key = torch.ones(4, 1, 8)
    key[2] = torch.nan
    is_nan = attend(torch.ones(4, 1, 8), key, torch.ones(4, 1, 8)).isnan().any(-1).flatten()
    assert is_nan.tolist() == [False, False, True, True]


def test_a_row_of_zeros_has_a_scale():
    """Rows without any number are no special case."""
    ops = ExactOps()
    product = ops.linear(torch.zeros(2, 8), torch.ones(3, 8), None)
    assert torch.equal(torch.zeros(2, 3), product)


def test_there_is_one_dtype():
    """Another type than float32 is refused, since its sums would round."""
    with pytest.raises(RunnerError, match="give it float32"):
        ExactOps("cpu", torch.bfloat16)
