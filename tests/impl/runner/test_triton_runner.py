from __future__ import annotations

import pytest
import torch

from tests.impl.runner.support import (
    compute_logits,
    go_on,
    join,
    make_prompt,
    make_runner,
    run_alone,
    start,
)
from tests.impl.runner.triton_support import DTYPES, needs_triton

pytestmark = needs_triton

PROMPT = make_prompt(40)
NUM_SAMPLED = 3


def num_differing(expected, actual):
    """Counts the rows of logits, and of the KV of A, of which not every bit is the same."""
    assert list(expected.tap.rows) == list(actual.tap.rows)
    pairs = [(row, actual.tap.rows[key]) for key, row in expected.tap.rows.items()]
    for layer in (0, 1):
        kv = [
            torch.cat(runner.kv_cache.read(layer, runner.requests["A"].block_ids, len(PROMPT)))
            for runner in (expected, actual)
        ]
        pairs += zip(*kv, strict=True)
    return sum(not torch.equal(old, new) for old, new in pairs)


@pytest.fixture(scope="module", params=DTYPES)
def whole(request):
    """A runner that has run the whole prompt in one step, alone."""
    runner = make_runner("tiny", "triton", request.param)
    run_alone(runner, "A", PROMPT, len(PROMPT), NUM_SAMPLED)
    return runner


@pytest.mark.parametrize("chunk_size", [7])
def test_chunks_have_the_bits_of_the_whole(whole, chunk_size):
    """A prompt in chunks gives every bit of the logits, and of the KV, of the whole prompt."""
    runner = make_runner("tiny", "triton", whole.ops.dtype)
    run_alone(runner, "A", PROMPT, chunk_size, NUM_SAMPLED)
    assert 0 == num_differing(whole, runner)


def test_company_changes_no_bit(whole):
    """A request that starts while others decode, in scattered blocks, has the bits of it alone."""
    runner = make_runner("tiny", "triton", whole.ops.dtype)
    runner.execute(
        join(
            start("B", make_prompt(9, 1), 9, [60, 1, 30]),
            start("C", make_prompt(3, 2), 3, [17]),
        )
    )
    mine = [50, 3, 29, 44, 4, 40, 5, 6, 22, 8, 7]
    runner.execute(join(go_on("B", 1, 9), start("A", PROMPT, 19, mine)))
    runner.execute(join(go_on("A", 21, 19), go_on("C", 1, 3)))
    runner.execute(join(go_on("B", 1, 10), go_on("A", 1, 40)))
    runner.execute(go_on("A", 1, 41))
    runner.tap.rows = {key: row for key, row in runner.tap.rows.items() if key[0] == "A"}
    assert 0 == num_differing(whole, runner)


@pytest.mark.parametrize("model", ["tiny-smollm", "tiny-qwen2", "tiny-qwen3"])
def test_logits_are_close_to_float64(model):
    """Each kind of model computes what a plain forward pass in float64 does."""
    runner = make_runner(model, "triton")
    run_alone(runner, "A", PROMPT[:12], 12, 1)
    expected = compute_logits(runner.config, PROMPT[:12])[-1]
    torch.testing.assert_close(runner.tap.rows["A", 11].double(), expected, rtol=1e-5, atol=1e-5)
