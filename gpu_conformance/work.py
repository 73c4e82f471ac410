"""What is computed on every way: a few requests whose lengths lie around blocks and tiles.

Entry point: `make_requests`. Some begin alike, so that a prefix cache finds something; the last two
are one prompt twice. Some draw their tokens with noise.
"""

from __future__ import annotations

import random

from attrs import frozen

from impl.runner.sampling import SamplingParams
from spec.interface import NewRequest

VOCAB_SIZE = 128
"""Prompts are made of so many tokens; every model has as many."""


@frozen
class Work:
    """The lengths of prompts, and how many tokens follow on each."""

    num_prompt_tokens: tuple[int, ...]
    max_tokens: int


WORKS = {
    # For a backend of which a step takes seconds.
    "slow": Work((15, 17, 20), 3),
    # Blocks hold 16 tokens; the longest prompts are the same for their first 32.
    "tiny": Work((1, 7, 16, 31, 33, 48, 48), 5),
    # For a real model.
    "large": Work((1, 17, 64, 65, 129, 260, 260), 8),
}
LONG_MAX_TOKENS = 2
"""How many tokens follow on a long prompt."""
SAMPLING = {
    "r1": SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    "r4": SamplingParams(temperature=1.5, top_k=20, seed=2),
}
"""Who draws; all others take the greatest."""


def make_requests(work: Work, seed: int = 0) -> list[NewRequest]:
    """Makes the requests of a workload, r0, r1, …, the same for a seed."""
    rng = random.Random(seed)
    text = [rng.randrange(VOCAB_SIZE) for _ in range(max(work.num_prompt_tokens))]
    requests = []
    for number, num_tokens in enumerate(work.num_prompt_tokens):
        # The longer half begins alike.
        own = [rng.randrange(VOCAB_SIZE) for _ in range(num_tokens)]
        is_shared = num_tokens >= max(work.num_prompt_tokens) // 2
        prompt = text[:num_tokens] if is_shared else own
        requests.append(
            NewRequest(
                request_id=f"r{number}",
                prompt_token_ids=tuple(prompt),
                max_tokens=work.max_tokens,
                arrival_time=float(number),
            )
        )
    return requests


def make_long_requests(num_prompt_tokens: int) -> list[NewRequest]:
    """Makes a request with a prompt of so many tokens, and a short one beside it."""
    return make_requests(Work((num_prompt_tokens, 9), LONG_MAX_TOKENS))


def make_text_requests(token_ids: list[int]) -> list[NewRequest]:
    """A text, and its two halves beside it: what it shares its steps with."""
    half = len(token_ids) // 2
    prompts = (token_ids, token_ids[:half], token_ids[half:])
    return [
        NewRequest(
            request_id=f"text{number}",
            prompt_token_ids=tuple(prompt),
            max_tokens=24,
            arrival_time=float(number),
        )
        for number, prompt in enumerate(prompts)
        if prompt
    ]
