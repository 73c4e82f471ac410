"""How many tokens a step computes, of all requests together: why most engines cut prompts."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import NotHere, Value, axis
from gpu_conformance.way import WHOLE, Sights, Way

MAX_TOKENS = 2**20
"""More than any prompts here have together."""


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_partial_chunks > 0 and seen.longest_chunk <= int(value)


@axis(baseline=WHOLE, values=(17, 64), few=(17,), greatest=MAX_TOKENS, is_reached=_is_reached)
def max_num_batched_tokens(way: Way, value: Value) -> Way:
    """A step has room for so many tokens, decodes first, so that prompts are cut unevenly."""
    if value == WHOLE:
        return way
    budget = int(value)
    num_prompt_tokens = sum(len(request.prompt_token_ids) for request in way.requests)
    if budget >= num_prompt_tokens:
        raise NotHere(f"all prompts together have only {num_prompt_tokens} tokens")
    config = attrs.evolve(
        way.config, max_num_batched_tokens=budget, max_num_scheduled_tokens=budget
    )
    return attrs.evolve(way, config=config)
