"""Small models, steps by hand, and a plain forward pass in float64."""

from __future__ import annotations

import math

import torch

from impl.runner.config import TINY_MODELS, ModelConfig
from impl.runner.model_runner import ModelRunner
from impl.runner.ops.backends import make_ops
from impl.runner.rope import make_rope_table
from impl.runner.weights import make_tensors, make_weights
from spec.interface import CachedRequestData, NewRequestData, SchedulerOutput

BLOCK_SIZE = 4
NUM_BLOCKS = 64


class KeptLogits:
    """A tap that keeps every row of logits, by request and position."""

    def __init__(self):
        self.rows = {}

    def begin(self, batch):
        """Notes which rows are coming."""
        owners, positions = batch.attention.request_of_token, batch.attention.positions
        self.keys = [
            (batch.request_ids[int(owners[row])], int(positions[row]))
            for row in batch.logits_rows.tolist()
        ]

    def see(self, layer, stage, rows):
        """Keeps what it is there for."""
        if stage == "logits":
            self.rows.update(zip(self.keys, rows.clone(), strict=True))


def make_runner(model="tiny", backend="tile", dtype=torch.float32, ops=None, **given):
    """Builds a runner of a tiny model, whose tap keeps all logits."""
    config = TINY_MODELS[model]
    weights = make_weights(config, 0, "cpu", dtype)
    ops = make_ops(backend, "cpu", dtype) if ops is None else ops
    runner = ModelRunner(config, weights, ops, BLOCK_SIZE, NUM_BLOCKS, **given)
    runner.tap = KeptLogits()
    return runner


def make_prompt(num_tokens, seed=0):
    """Makes a random prompt."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 128, (num_tokens,), generator=generator).tolist())


def start(request_id, prompt, num_tokens, block_ids, num_computed_tokens=0):
    """A step that computes the first tokens of a new request."""
    new = NewRequestData(prompt, num_computed_tokens, list(block_ids))
    return SchedulerOutput({request_id: num_tokens}, {request_id: new})


def go_on(request_id, num_tokens, num_computed_tokens, new_block_ids=(), resumed=False, **given):
    """A step that computes the next tokens of a request that is known."""
    cached = CachedRequestData(resumed, list(new_block_ids), num_computed_tokens)
    return SchedulerOutput({request_id: num_tokens}, {}, {request_id: cached}, **given)


def join(*steps):
    """One step out of several, of different requests."""
    return SchedulerOutput(
        {name: num for step in steps for name, num in step.num_scheduled_tokens.items()},
        {name: new for step in steps for name, new in step.scheduled_new_reqs.items()},
        {name: old for step in steps for name, old in step.scheduled_cached_reqs.items()},
    )


def run_alone(runner, request_id, prompt, chunk_size, num_sampled):
    """Runs one request to its end in chunks; returns what it samples."""
    num_blocks = -(-(len(prompt) + num_sampled) // BLOCK_SIZE)
    block_ids = range(1, num_blocks + 1)
    output = start(request_id, prompt, min(chunk_size, len(prompt)), block_ids)
    tokens, position = [], 0
    while len(tokens) < num_sampled:
        tokens += runner.execute(output).sampled_token_ids[request_id]
        position += output.num_scheduled_tokens[request_id]
        num_left = len(prompt) + len(tokens) - position
        output = go_on(request_id, min(chunk_size, num_left), position)
    return tokens


def compute_logits(config: ModelConfig, token_ids, seed=0):
    """The forward pass as a book would write it: all positions at once, dense, in float64."""
    weights = {name: tensor.double() for name, tensor in make_tensors(config, seed).items()}
    hidden = weights["model.embed_tokens.weight"][list(token_ids)]
    cos, sin = (table[: len(token_ids)].double() for table in make_rope_table(config))

    def norm(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weight

    def rotate(x):
        first, second = x.chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat([first * c - second * s, second * c + first * s], -1)

    for number in range(config.num_hidden_layers):
        layer = {
            name.removeprefix(f"model.layers.{number}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.layers.{number}.")
        }
        normed = norm(hidden, layer["input_layernorm.weight"])
        heads = {}
        for part in "qkv":
            projected = normed @ layer[f"self_attn.{part}_proj.weight"].T
            projected = projected + layer.get(f"self_attn.{part}_proj.bias", 0)
            heads[part] = projected.view(len(token_ids), -1, config.head_dim)
        if config.qk_norm:
            heads["q"] = norm(heads["q"], layer["self_attn.q_norm.weight"])
            heads["k"] = norm(heads["k"], layer["self_attn.k_norm.weight"])
        attended = attend(rotate(heads["q"]), rotate(heads["k"]), heads["v"])
        hidden = hidden + attended @ layer["self_attn.o_proj.weight"].T
        normed = norm(hidden, layer["post_attention_layernorm.weight"])
        gate = normed @ layer["mlp.gate_proj.weight"].T
        inner = gate * gate.sigmoid() * (normed @ layer["mlp.up_proj.weight"].T)
        hidden = hidden + inner @ layer["mlp.down_proj.weight"].T
    head = weights["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
    return norm(hidden, weights["model.norm.weight"]) @ head.T


def attend(query, key, value):
    """Attention of a whole sequence, dense: [n, heads, head_dim] -> [n, heads * head_dim]."""
    num_tokens, num_heads, head_dim = query.shape
    key, value = (x.repeat_interleave(num_heads // x.shape[1], 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(head_dim)
    hidden = torch.ones(num_tokens, num_tokens).triu(1).bool()
    shares = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", shares, value).flatten(1)
