"""Whether a name is used again, as by a client that hangs up and asks once more."""

from __future__ import annotations

import attrs

from gpu_conformance.registry import NotHere, Value, axis
from gpu_conformance.way import Arrival, Sights, Way

USED_ONCE = "used once"
STEP = {"in the next step": 3, "in the same step": 2}
"""When requests come again that were aborted in mid-prompt, before step 2."""
IN_MID_ANSWER = "in mid-answer"
AFTER_THE_END = "after the end"
NUM_TOKENS = 7
"""Of a chunk: whoever has a longer prompt than two of these has sampled nothing by then."""
SIGHTS = {IN_MID_ANSWER: "num_reused_sampled_ids", AFTER_THE_END: "num_reused_ended_ids"}
"""What shows a value; of all others it is any name that is used again."""


def _is_reached(seen: Sights, value: Value) -> bool:
    num_seen: int = getattr(seen, SIGHTS.get(str(value), "num_reused_ids"))
    return num_seen > 0


@axis(baseline=USED_ONCE, values=(*STEP, IN_MID_ANSWER, AFTER_THE_END), is_reached=_is_reached)
def request_id(way: Way, value: Value) -> Way:
    """Requests are aborted in mid-prompt or later, or end, and come again under their names."""
    if value == USED_ONCE:
        return way
    if value == AFTER_THE_END:
        again = tuple(Arrival(request, 1) for request in way.requests)
        return attrs.evolve(way, arrivals=(*way.arrivals, *again))
    if value == IN_MID_ANSWER:
        return _abort_in_mid_answer(way)
    return _abort_in_mid_prompt(way, STEP[str(value)])


def _abort_in_mid_prompt(way: Way, step: int) -> Way:
    again = [r for r in way.requests if len(r.prompt_token_ids) > 2 * NUM_TOKENS]
    if not again:
        raise NotHere(f"no prompt is longer than {2 * NUM_TOKENS} tokens")
    config = attrs.evolve(
        way.config, long_prefill_token_threshold=NUM_TOKENS, threshold_spares_lone_request=False
    )
    return attrs.evolve(
        way,
        arrivals=(*way.arrivals, *(Arrival(request, step) for request in again)),
        config=config,
        aborts=tuple((2, request.request_id) for request in again),
    )


def _abort_in_mid_answer(way: Way) -> Way:
    """After one token or two: a whole prompt and the first token are one step."""
    steps = [1 + number % 2 for number in range(len(way.requests))]
    again = tuple(map(Arrival, way.requests, steps))
    aborts = tuple((a.step, a.request.request_id) for a in again)
    return attrs.evolve(way, arrivals=(*way.arrivals, *again), aborts=aborts)
