"""Whether a name is used again, as by a client that hangs up and asks once more."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import NotHere, Value, axis
from gpu_conformance.way import Arrival, Sights, Way

USED_ONCE = "used once"
STEP = {"in the next step": 3, "in the same step": 2}
"""When requests come again that were aborted before step 2."""
NUM_TOKENS = 7
"""Of a chunk: whoever has a longer prompt than two of these has sampled nothing by then."""


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_reused_ids > 0


@axis(baseline=USED_ONCE, values=tuple(STEP), is_reached=_is_reached)
def request_id(way: Way, value: Value) -> Way:
    """Requests are aborted in mid-prompt, and come again under their names, from the start."""
    if value == USED_ONCE:
        return way
    again = [r for r in way.requests if len(r.prompt_token_ids) > 2 * NUM_TOKENS]
    if not again:
        raise NotHere(f"no prompt is longer than {2 * NUM_TOKENS} tokens")
    config = attrs.evolve(
        way.config, long_prefill_token_threshold=NUM_TOKENS, threshold_spares_lone_request=False
    )
    return attrs.evolve(
        way,
        arrivals=(*way.arrivals, *(Arrival(request, STEP[str(value)]) for request in again)),
        config=config,
        aborts=tuple((2, request.request_id) for request in again),
    )
