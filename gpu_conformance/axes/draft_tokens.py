"""Whether a request's next tokens are guessed, and verified in one step."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import Value, axis
from gpu_conformance.way import Sights, Way


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.max_num_drafts >= int(value)


@axis(baseline=0, values=(1, 3), is_reached=_is_reached)
def draft_tokens(way: Way, value: Value) -> Way:
    """Steps verify up to so many drafts of a request, right ones and wrong ones."""
    num_drafts = int(value)
    num_tokens = way.config.max_num_batched_tokens + num_drafts * len(way.arrivals)
    config = attrs.evolve(
        way.config,
        num_speculative_tokens=num_drafts,
        max_num_batched_tokens=num_tokens,
        max_num_scheduled_tokens=num_tokens,
    )
    return attrs.evolve(way, config=config, num_drafts=num_drafts)
