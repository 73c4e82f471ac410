"""The forward pass is the one that the model is known by."""

from __future__ import annotations

import pytest
import torch

from impl.runner.config import TINY_MODELS
from impl.runner.model import STAGES
from tests.impl.runner.support import compute_logits, make_prompt, make_runner, run_alone

NUM_SAMPLED = 3
# Relative to the spread of the logits. bfloat16 keeps 8 bits, the exact backend rounds to 8.
MAX_ERRORS = {
    ("tile", torch.float32): 1e-5,
    ("plain", torch.float32): 1e-5,
    ("tile", torch.bfloat16): 0.05,
    ("plain", torch.bfloat16): 0.05,
    ("exact", torch.float32): 0.2,
}


def compute_error(runner, model, prompt, tokens):
    """The greatest error of the logits that were sampled from, relative to their spread."""
    expected = compute_logits(TINY_MODELS[model], (*prompt, *tokens[:-1]))[len(prompt) - 1 :]
    actual = torch.stack(list(runner.tap.rows.values())).double()
    return float((actual - expected).abs().max() / expected.std())


@pytest.mark.parametrize("model", TINY_MODELS)
@pytest.mark.parametrize(("backend", "dtype"), MAX_ERRORS)
def test_logits_are_close_to_float64(model, backend, dtype):
    """All kinds of models, in chunks, come close to a dense forward pass in float64."""
    runner, prompt = make_runner(model, backend, dtype), make_prompt(75)
    tokens = run_alone(runner, "A", prompt, 33, NUM_SAMPLED)
    assert compute_error(runner, model, prompt, tokens) < MAX_ERRORS[backend, dtype]


def test_a_wrong_forward_pass_is_far_from_float64():
    """The test above can fail: rotated the wrong way round, logits are far off."""
    runner, prompt = make_runner(), make_prompt(75)
    runner.model.sin = -runner.model.sin
    tokens = run_alone(runner, "A", prompt, 33, NUM_SAMPLED)
    assert compute_error(runner, "tiny", prompt, tokens) > max(MAX_ERRORS.values())


class Stages:
    """A tap that notes what it sees."""

    def __init__(self):
        self.seen = []

    def begin(self, batch):
        """Notes which rows are coming."""
        self.num_tokens = len(batch.token_ids)

    def see(self, layer, stage, rows):
        """Keeps what it is there for."""
        self.seen.append((layer, stage, len(rows)))


def test_a_tap_sees_every_stage_of_every_layer():
    """A tap is shown the rows of all stages, in order, and of those that sample at the end."""
    runner = make_runner()
    runner.tap = Stages()
    run_alone(runner, "A", make_prompt(5), 5, 1)
    per_layer = [(layer, stage, 5) for layer in (0, 1) for stage in STAGES[1:-2]]
    expected = [(0, "embedding", 5), *per_layer, (2, "final_norm", 1), (2, "logits", 1)]
    assert expected == runner.tap.seen


def test_a_tap_changes_nothing():
    """With and without a tap a runner samples the same."""
    seen, unseen = make_runner(), make_runner()
    unseen.tap = None
    prompt = make_prompt(20)
    assert run_alone(seen, "A", prompt, 7, 4) == run_alone(unseen, "A", prompt, 7, 4)
