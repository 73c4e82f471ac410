"""How the books of a model change: who is alive with which tokens, which steps are void.

Nothing is changed in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from spec.interface import EngineCoreOutput, KVLoad, SchedulerOutput, StreamingUpdate
from spec.sessions import end_turn, take_chunk

if TYPE_CHECKING:
    from spec.transition import LiveRequest, StepInFlight


def deliver(
    live: dict[str, LiveRequest], results: dict[int, list[EngineCoreOutput]]
) -> dict[str, LiveRequest]:
    """Returns the live requests after their clients have received `results`.

    Output for the dead changes nothing here; an invariant objects to it.
    """
    after = dict(live)
    for outputs in results.values():
        for output in outputs:
            request = after.get(output.request_id)
            if request is None:
                continue
            received: LiveRequest | None = request.receive(output.new_token_ids)
            if received is not None and output.finish_reason is not None:
                received = end_turn(received)
            if received is None:
                del after[output.request_id]
            else:
                after[output.request_id] = received
    return after


def hand_over(
    live: dict[str, LiveRequest], request_id: str, update: StreamingUpdate | None
) -> dict[str, LiveRequest]:
    """Returns the live requests after one of them was handed a chunk, or its end.

    What comes for one that has ended changes nothing.
    """
    if request_id not in live:
        return live
    changed = take_chunk(live[request_id], update)
    if changed is not None:
        return {**live, request_id: changed}
    return {name: request for name, request in live.items() if name != request_id}


def note_compiled(live: dict[str, LiveRequest], request_id: str) -> dict[str, LiveRequest]:
    """Returns the live requests after a grammar is compiled; its request may have ended."""
    if request_id not in live:
        return live
    return {**live, request_id: attrs.evolve(live[request_id], waits_for_grammar=False)}


def count_rejected(step: StepInFlight, sampled_token_ids: dict[str, list[int]]) -> dict[str, int]:
    """How many drafts of each request are wrong, of those that a step has verified."""
    return {
        name: len(drafts) + 1 - len(sampled_token_ids[name])
        for name, drafts in step.output.scheduled_spec_decode_tokens.items()
        if sampled_token_ids.get(name) and name not in step.voided
    }


def give_drafts(
    live: dict[str, LiveRequest], drafts: dict[str, tuple[int, ...]]
) -> dict[str, LiveRequest]:
    """Returns the live requests with new drafts, those of them that have others."""
    changed = {
        name: attrs.evolve(live[name], draft_token_ids=draft_token_ids)
        for name, draft_token_ids in drafts.items()
        if name in live and live[name].draft_token_ids != draft_token_ids
    }
    return {**live, **changed} if changed else live


def mark_lost(
    live: dict[str, LiveRequest], request_ids: list[str], has_lost_kv: bool
) -> dict[str, LiveRequest]:
    """Returns the live requests with those named marked as ones that have lost their KV, or not."""
    changed = {
        name: attrs.evolve(live[name], has_lost_kv=has_lost_kv)
        for name in request_ids
        if name in live and live[name].has_lost_kv != has_lost_kv
    }
    return {**live, **changed} if changed else live


def valid_ends(load: KVLoad) -> list[int]:
    """How many first tokens of a request may have their KV when a load ends: 0, or whole blocks."""
    num_blocks = len(load.block_ids)
    if num_blocks == 0:  # A counted pool names none, so nobody can tell where one begins.
        return [0, load.end]
    return sorted({0, *range(load.start, load.end + 1, (load.end - load.start) // num_blocks)})


def start_positions(output: SchedulerOutput) -> dict[str, int]:
    """Where each request's part of a step begins, as the worker is told."""
    starts: dict[str, int] = {}
    for request_id, new in output.scheduled_new_reqs.items():
        starts[request_id] = new.num_computed_tokens
    for request_id, cached in output.scheduled_cached_reqs.items():
        starts[request_id] = cached.num_computed_tokens
    return starts


def find_padded(output: SchedulerOutput) -> tuple[str, ...]:
    """Returns who is admitted with drafts: before its first step nobody guesses what follows."""
    admitted = [
        *output.scheduled_new_reqs,
        *[name for name, cached in output.scheduled_cached_reqs.items() if cached.resumed],
    ]
    return tuple([name for name in admitted if name in output.scheduled_spec_decode_tokens])


def void(
    in_flight: tuple[StepInFlight, ...], request_ids: list[str], *, drops: bool = False
) -> tuple[StepInFlight, ...]:
    """Marks the parts of preempted requests as void, and as dropped if nobody is sent them.

    Once output of a request is to be dropped, all that is in flight of it at a preemption is.
    """
    dropped = [
        name for name in request_ids if drops or any(name in step.dropped for step in in_flight)
    ]
    return tuple(
        [
            attrs.evolve(
                step,
                voided=_join(step, step.voided, request_ids),
                dropped=_join(step, step.dropped, dropped),
            )
            for step in in_flight
        ]
    )


def _join(step: StepInFlight, names: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
    """Adds those who have a part in a step."""
    scheduled = step.output.num_scheduled_tokens
    return (*names, *[name for name in more if name in scheduled and name not in names])
