"""How far the positions of a request go. Tiles of KV hold 64 tokens."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import NotHere, Value, axis
from gpu_conformance.way import Sights, Way, make_way
from gpu_conformance.work import make_long_requests

AS_USUAL = "as usual"
CHUNK_SIZE = 7


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.greatest_length >= int(value) and seen.longest_chunk == CHUNK_SIZE


@axis(baseline=AS_USUAL, values=(65, 130), few=(65,), is_reached=_is_reached)
def prompt_length(way: Way, value: Value) -> Way:
    """A prompt of so many tokens is computed in small chunks, beside a short one."""
    if value == AS_USUAL:
        return way
    if int(value) <= CHUNK_SIZE:
        raise NotHere(f"a prompt of up to {CHUNK_SIZE} tokens is one chunk")
    plain = make_way(make_long_requests(int(value)))
    config = attrs.evolve(
        plain.config, long_prefill_token_threshold=CHUNK_SIZE, threshold_spares_lone_request=False
    )
    return attrs.evolve(way, arrivals=plain.arrivals, config=config)
