"""How much of a prompt a step computes. Blocks hold 16 tokens, tiles of kernels 4 to 128."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import NotHere, Value, axis
from gpu_conformance.way import WHOLE, Sights, Way

SIZES = (1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
MAX_SIZE = 2**20


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.longest_chunk == value and seen.num_partial_chunks > 0


@axis(baseline=WHOLE, values=SIZES, few=(7,), greatest=MAX_SIZE, is_reached=_is_reached)
def prefill_chunk_size(way: Way, value: Value) -> Way:
    """A prompt is computed in chunks of so many tokens."""
    if value == WHOLE:
        return way
    longest = max(len(request.prompt_token_ids) for request in way.requests)
    if int(value) >= longest:
        raise NotHere(f"no prompt is longer than {longest} tokens")
    config = attrs.evolve(
        way.config, long_prefill_token_threshold=int(value), threshold_spares_lone_request=False
    )
    return attrs.evolve(way, config=config)
