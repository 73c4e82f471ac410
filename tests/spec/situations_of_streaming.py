"""Situations of requests whose prompts arrive in chunks."""

from __future__ import annotations

from typing import Any

from spec.actions import StreamingChunk
from spec.interface import NewRequest, SchedulerConfig, StreamingUpdate
from spec.transition import Transition
from tests.spec.situations import shows
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story

Sight = tuple[SchedulerConfig, Transition]
CHUNK = StreamingUpdate(prompt_token_ids=(7, 7), max_tokens=3, arrival_time=1.0)


def session(max_tokens: int = 1, **fields: Any) -> NewRequest:
    """A resumable request with a prompt of 5 tokens."""
    return make_request("A", 5, max_tokens, resumable=True, **fields)


def one_step(*before: StreamingChunk, **options: Any) -> tuple[SchedulerConfig, Story]:
    """A step of A is in flight, which ends its turn; chunks have arrived."""
    config = make_config(**options)
    story = Story(config, session())
    story.schedule()
    for chunk in before:
        story.step(chunk)
    return config, story


def between_turns(**options: Any) -> tuple[SchedulerConfig, Story]:
    """A waits for a chunk."""
    config, story = one_step(**options)
    story.update()
    return config, story


@shows("turn_ends", "stop_by_max_tokens")
def a_turn_ends() -> Sight:
    """A has answered, and waits."""
    config, story = one_step()
    return config, story.update()


@shows("turn_follows_turn", "stop_by_max_tokens")
def a_turn_follows() -> Sight:
    """A has answered, and its next chunk is there."""
    config, story = one_step(StreamingChunk("A", CHUNK))
    return config, story.update()


@shows("closed_after_its_turn", "stop_by_max_tokens", "idle_pool")
def an_end_after_the_turn() -> Sight:
    """A has answered, and is closed."""
    config, story = one_step(StreamingChunk("A", None))
    return config, story.update()


@shows("closed_between_turns", "idle_pool")
def an_end_between_turns() -> Sight:
    """A is closed while it waits."""
    config, story = between_turns()
    return config, story.step(StreamingChunk("A", None))


@shows()
def a_chunk_that_is_waited_for() -> Sight:
    """A takes its chunk at once."""
    config, story = between_turns()
    return config, story.step(StreamingChunk("A", CHUNK))


@shows("chunk_waits")
def a_chunk_that_waits() -> Sight:
    """A has not answered yet."""
    config, story = one_step()
    return config, story.step(StreamingChunk("A", CHUNK))


@shows()
def an_end_that_waits() -> Sight:
    """A has not answered yet, and is closed."""
    config, story = one_step()
    return config, story.step(StreamingChunk("A", None))


@shows("turn_keeps_its_kv")
def a_turn_begins() -> Sight:
    """A is admitted with its chunk, and the KV of its prompt."""
    config, story = between_turns()
    story.step(StreamingChunk("A", CHUNK))
    return config, story.schedule()


@shows("refused_as_not_ready")
def a_step_between_turns() -> Sight:
    """A waits for a chunk, and nobody else is there."""
    config, story = between_turns()
    return config, story.schedule()


@shows("refused_by_max_num_seqs", "refused_by_a_kept_seat")
def a_seat_that_is_kept() -> Sight:
    """A waits for a chunk in the only seat, and B waits for the seat."""
    config, story = between_turns(max_num_seqs=1)
    story.add(make_request("B", 3))
    return config, story.schedule()


def two_steps() -> tuple[SchedulerConfig, Story]:
    """Two steps of A are in flight, of which the first may end its turn."""
    config = make_config(async_scheduling=True)
    story = Story(config, session(5, stop_token_ids=(9,)))
    story.schedule()
    story.schedule()
    return config, story


@shows("turn_ends", "turn_ends_in_flight", "stop_by_stop_token")
def a_turn_ends_in_flight() -> Sight:
    """A stops with a stop token, and its next step is in flight already."""
    config, story = two_steps()
    return config, story.update(A=9)


@shows("dropped_output", "stale_output")
def what_follows_on_the_discarded_token() -> Sight:
    """The step that was in flight returns, and its token is dropped."""
    config, story = two_steps()
    story.update(A=9)
    return config, story.update(A=3)


@shows("turn_ends", "turn_ends_while_preempted", "stale_output", "stop_by_stop_token")
def a_turn_ends_while_preempted() -> Sight:
    """B takes a block from A, whose step in flight then brings a stop token."""
    config = make_config(async_scheduling=True, num_blocks=4)
    story = Story(config, make_request("B", 8), session(5, stop_token_ids=(9,)))
    story.schedule()
    story.schedule()
    return config, story.update(A=9)
