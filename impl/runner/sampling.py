"""The next token out of a row of logits: the greatest, or one drawn with noise of its own.

Entry point: `sample`. What is drawn depends on the row, the request's seed, its id and the position
alone, so whoever schedules differently draws the same tokens.
"""

from __future__ import annotations

import hashlib
from typing import Any

import attrs
import torch
from attrs import field, frozen

from impl.runner.errors import RunnerError

Tensor = torch.Tensor


def _share(owner: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 < value <= 1:
        raise RunnerError(f"{attribute.name}={value} is not in (0, 1]; 1 leaves all tokens in")


def _not_negative(owner: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value >= 0:
        raise RunnerError(f"{attribute.name}={value} is below 0; 0 switches it off")


@frozen(kw_only=True)
class SamplingParams:
    """How a request draws its tokens."""

    temperature: float = field(default=0.0, validator=_not_negative)
    """What logits are divided by; 0 always takes the greatest."""
    top_k: int = field(default=0, validator=_not_negative)
    """Only so many of the greatest stay in; 0 is all."""
    top_p: float = field(default=1.0, validator=_share)
    """Only the greatest that together have this probability stay in."""
    seed: int = 0


GREEDY = SamplingParams()


def sample(logits: Tensor, params: SamplingParams, request_id: str, position: int) -> int:
    """Draws one token: logits [vocab_size], float32. Of equals the smallest id is taken."""
    if params.temperature == 0:
        return int(logits.argmax())
    # In float64 on the CPU, one row at a time: neither device nor batch has a say in it.
    scores = logits.cpu().double() / params.temperature
    scores = _keep_top_p(_keep_top_k(scores, params.top_k), params.top_p)
    return int((scores + _make_noise(scores.numel(), params.seed, request_id, position)).argmax())


def _keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    """Leaves out all but the greatest k, and what equals the last of them."""
    if top_k == 0 or top_k >= scores.numel():
        return scores
    return scores.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)


def _keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Leaves out what comes after the first that together have the probability; one stays in."""
    if top_p == 1:
        return scores
    ordered, ids = scores.sort(descending=True, stable=True)
    shares = ordered.softmax(dim=0)
    is_out = shares.cumsum(dim=0) - shares >= top_p
    return scores.masked_fill(torch.zeros_like(is_out).scatter(0, ids, is_out), -torch.inf)


def _make_noise(num_tokens: int, seed: int, request_id: str, position: int) -> Tensor:
    """Returns Gumbel noise: the greatest of scores plus noise is a draw from their softmax."""
    key = f"{seed} {position} {request_id}".encode()
    digest = hashlib.blake2b(key, digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    uniform = torch.rand(num_tokens, generator=generator, dtype=torch.float64)
    return -(-uniform.clamp_min(torch.finfo(torch.float64).tiny).log()).log()
