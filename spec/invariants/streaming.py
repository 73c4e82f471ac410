"""Streaming input: what a resumable request keeps while it waits for its next chunk."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import StreamingChunk, UpdateFromOutput
from spec.interface import SchedulerConfig
from spec.invariants.counters import WAITING_FOR_KV
from spec.registry import invariant
from spec.transition import Transition


@invariant(
    source="vllm/v1/core/sched/scheduler.py: _handle_stopped_request", on=(UpdateFromOutput,)
)
def a_turn_ends_at_its_last_token(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Whoever has ended a turn keeps its blocks, with the KV of all tokens but the last one.

    Nothing else of what is in flight counts: that follows on the token that is discarded.
    """
    for name in seen.turned:
        before, after = seen.before.requests.get(name), seen.after.requests.get(name)
        if before is None or after is None:
            continue  # Another invariant objects.
        if after.block_ids != before.block_ids:
            yield f"{name} held {before.block_ids}, and after its turn {after.block_ids}"
        num_kept = num_tokens_after_turn(seen, name) - 1 if before.block_ids else 0
        kept = (after.num_computed_tokens, after.num_output_placeholders or 0)
        if kept != (num_kept, 0):
            yield (
                f"{name} has num_computed_tokens={kept[0]} and num_output_placeholders={kept[1]} "
                f"after its turn, however {num_kept} tokens before its last are computed"
            )


@invariant(source="vllm/v1/core/sched/scheduler.py: add_request, _update_request_as_session")
def who_waits_for_input_keeps_all(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Between its turns a request keeps its blocks and their KV, until a step computes more."""
    output = seen.outcome.output
    for name, live in seen.live.items():
        before, after = seen.before.requests.get(name), seen.after.requests.get(name)
        if not live.new.resumable or name not in seen.before.waiting or not (before and after):
            continue
        if not before.block_ids or (output is not None and name in output.num_scheduled_tokens):
            continue
        if WAITING_FOR_KV in {before.status, after.status}:
            continue  # What a load brings is another invariant's.
        if (after.block_ids, after.num_computed_tokens) != (
            before.block_ids,
            before.num_computed_tokens,
        ):
            yield (
                f"{name} waited with {before.num_computed_tokens} tokens in {before.block_ids}, "
                f"now it has {after.num_computed_tokens} in {after.block_ids}"
            )


@invariant(source="vllm/v1/core/sched/scheduler.py: num_waiting_for_streaming_input", of_state=True)
def who_waits_for_input_keeps_its_seat(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Those who wait for a chunk with their KV are at most max_num_seqs with those who run.

    The worker keeps the states of both.
    """
    parked = [
        name
        for name in seen.after.waiting
        if name in seen.live_after
        and seen.live_after[name].waits_for_chunk
        and name in seen.after.requests
        and seen.after.requests[name].block_ids
    ]
    if parked and len(seen.after.running) + len(parked) > config.max_num_seqs:
        yield (
            f"{seen.after.running} run and {parked} wait for a chunk, "
            f"max_num_seqs={config.max_num_seqs}"
        )


@invariant(source="vllm/v1/core/sched/scheduler.py: add_request", on=(StreamingChunk,))
def a_chunk_is_for_one_request(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A chunk changes nobody but its request, and that one only if it waits for it.

    What is left of its last turn is its prompt then, without the last token.
    """
    assert isinstance(seen.action, StreamingChunk), "`on` says so"
    name, update = seen.action.request_id, seen.action.update
    for other, known in seen.before.requests.items():
        if other != name and seen.after.requests.get(other) != known:
            yield f"{other} changed, however the chunk is for {name}"
    before, after = seen.before.requests.get(name), seen.after.requests.get(name)
    if before is None:
        return  # Another invariant objects.
    if not seen.live[name].waits_for_chunk:
        if after != before:
            yield f"{name} changed, however the chunk has to wait until its turn is over"
    elif update is not None and after is not None:
        due = (before.num_tokens - 1 + len(update.prompt_token_ids), 0)
        counts = (after.num_prompt_tokens, after.num_output_tokens)
        if counts != due:
            yield f"{name} counts (prompt, output) = {counts} after the chunk, due are {due}"


def num_tokens_after_turn(seen: Transition, name: str) -> int:
    """How many tokens a request had when its turn was over, the discarded one among them."""
    sent = [
        output.new_token_ids
        for outputs in (seen.outcome.results or {}).values()
        for output in outputs
        if output.request_id == name
    ]
    return len(seen.live[name].token_ids) + sum(map(len, sent))
