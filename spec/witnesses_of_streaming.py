"""What must sometimes happen where prompts arrive in chunks."""

from __future__ import annotations

from spec.actions import StreamingChunk, UpdateFromOutput
from spec.gates import find_hindrance, find_refusing_gate
from spec.interface import SchedulerConfig
from spec.invariants.sources import output_of
from spec.registry import witness
from spec.transition import Transition


@witness(on=(UpdateFromOutput,))
def turn_ends(config: SchedulerConfig, seen: Transition) -> bool:
    """A resumable request stops, and waits for its next chunk."""
    return any(seen.live_after[name].waits_for_chunk for name in seen.turned)


@witness(on=(UpdateFromOutput,))
def turn_follows_turn(config: SchedulerConfig, seen: Transition) -> bool:
    """A resumable request stops, and its next chunk is there."""
    return any(not seen.live_after[name].waits_for_chunk for name in seen.turned)


@witness(on=(UpdateFromOutput,))
def turn_ends_in_flight(config: SchedulerConfig, seen: Transition) -> bool:
    """A turn ends while another step computes tokens that follow on the discarded one."""
    return any(
        name in step.output.num_scheduled_tokens
        for name in seen.turned
        for step in seen.in_flight[1:]
    )


@witness(on=(UpdateFromOutput,))
def turn_ends_while_preempted(config: SchedulerConfig, seen: Transition) -> bool:
    """A turn ends with a token of a step that a preemption has voided, so no KV is left of it."""
    return any(name in seen.before.waiting for name in seen.turned)


@witness(on=(UpdateFromOutput,))
def closed_after_its_turn(config: SchedulerConfig, seen: Transition) -> bool:
    """A resumable request ends with its turn, since it was closed meanwhile."""
    ended = [name for name in seen.live if name not in seen.live_after]
    return any(seen.live[name].new.resumable for name in ended)


@witness(on=(StreamingChunk,))
def closed_between_turns(config: SchedulerConfig, seen: Transition) -> bool:
    """A resumable request ends that waited for a chunk."""
    return len(seen.live_after) < len(seen.live)


@witness(on=(StreamingChunk,))
def chunk_waits(config: SchedulerConfig, seen: Transition) -> bool:
    """A chunk arrives before the one before it is answered."""
    assert isinstance(seen.action, StreamingChunk), "`on` says so"
    live = seen.live.get(seen.action.request_id)
    return live is not None and seen.action.update is not None and not live.waits_for_chunk


@witness()
def turn_keeps_its_kv(config: SchedulerConfig, seen: Transition) -> bool:
    """A request goes on with a chunk, and computes only that."""
    requests = seen.before.requests
    return any(
        name in output_of(seen).scheduled_new_reqs and requests[name].block_ids
        for name in seen.admitted
        if seen.live[name].new.resumable
    )


@witness()
def refused_by_a_kept_seat(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because of those who keep their seats until a chunk follows."""
    is_ready = any(find_hindrance(config, seen, name) is None for name in seen.after.waiting)
    has_room = len(seen.after.running) < config.max_num_seqs
    return is_ready and has_room and find_refusing_gate(config, seen) == "max_num_seqs"
