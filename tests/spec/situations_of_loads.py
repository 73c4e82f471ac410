"""Situations of requests whose KV is loaded, and of blocks that are kept back."""

from __future__ import annotations

from typing import Any

from spec.actions import KVReceived, SetPauseState
from spec.interface import NewRequest, SchedulerConfig
from spec.transition import Transition
from tests.spec.situations import shows
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story

Sight = tuple[SchedulerConfig, Transition]
LATE = {
    "load_kv_async": True,
    "defer_block_free": True,
    "defer_async_loads": True,
    "async_scheduling": True,
}
"""Two steps in flight, for which blocks and loads have to wait."""


def remote(prompt: int | tuple[int, ...] = 10, num_remote_tokens: int = 8) -> NewRequest:
    """A request of which a store holds two blocks of 4 tokens, and here are two tokens more."""
    return make_request("A", prompt, num_remote_tokens=num_remote_tokens)


def loading(new: NewRequest | None = None, **options: Any) -> tuple[SchedulerConfig, Story]:
    """KV of A is being loaded."""
    config = make_config(load_kv_async=True, **options)
    story = Story(config, new or remote())
    story.schedule()
    story.update()
    return config, story


@shows("refused_as_not_ready")
def a_load_begins() -> Sight:
    """A gets two blocks, and waits for what comes there."""
    config = make_config(load_kv_async=True)
    return config, Story(config, remote()).schedule()


@shows("refused_as_not_ready")
def a_step_beside_a_load() -> Sight:
    """A waits for its KV."""
    config, story = loading()
    return config, story.schedule()


@shows()
def a_load_that_brings_all() -> Sight:
    """All that was asked for is there."""
    config, story = loading()
    return config, story.step(KVReceived("A", 8))


@shows("load_failed_in_part")
def a_load_that_brings_a_part() -> Sight:
    """One block of two is there."""
    config, story = loading()
    return config, story.step(KVReceived("A", 4))


@shows("load_failed")
def a_load_that_brings_nothing() -> Sight:
    """None is."""
    config, story = loading()
    return config, story.step(KVReceived("A", 0))


@shows("loaded_admission")
def an_admission_after_a_load() -> Sight:
    """A's KV has arrived, and the rest of its prompt is computed."""
    config, story = loading()
    story.step(KVReceived("A", 8))
    return config, story.schedule()


@shows("loaded_admission", "loaded_in_full")
def an_admission_after_a_whole_load() -> Sight:
    """All of A's prompt has arrived, and its last token is computed again."""
    config, story = loading(remote(prompt=8))
    story.step(KVReceived("A", 8))
    return config, story.schedule()


@shows("refused_as_not_ready")
def a_load_that_is_tried_again() -> Sight:
    """Nothing has arrived, so A gives its blocks up, and asks the store again."""
    config, story = loading()
    story.step(KVReceived("A", 0))
    return config, story.schedule()


@shows("load_beyond_a_hit", "refused_as_not_ready")
def a_load_behind_a_hit() -> Sight:
    """The first block of A's prompt is found here, the second one is loaded."""
    config = make_config(load_kv_async=True, enable_prefix_caching=True)
    story = Story(config, make_request("B", (5,) * 5, max_tokens=1))
    story.run(1)
    story.add(remote((5,) * 4 + (6,) * 6))
    return config, story.schedule()


@shows("load_after_a_preemption", "refused_as_not_ready")
def a_load_after_a_preemption() -> Sight:
    """B has taken a block from A, and has ended; so A's KV is loaded once more."""
    config = make_config(load_kv_async=True, num_blocks=5)
    story = Story(config, make_request("B", 7, max_tokens=3), remote(8))
    story.schedule()
    story.update()
    story.step(KVReceived("A", 8))
    story.run(2)
    return config, story.schedule()


@shows("abort_while_loading")
def an_abort_of_a_load() -> Sight:
    """A is aborted, and keeps its blocks for what is written there."""
    config, story = loading()
    return config, story.abort("A")


@shows("end_of_an_abandoned_load", "idle_pool")
def the_end_of_an_abandoned_load() -> Sight:
    """A was aborted, and now its load is over."""
    config, story = loading()
    story.abort("A")
    return config, story.step(KVReceived("A", 0))


@shows("refused_by_a_load", "chunked_prefill")
def a_load_that_does_not_fit() -> Sight:
    """B has a block and needs two more for its prompt, so only one of four is left for A's two."""
    config = make_config(load_kv_async=True, num_blocks=4, long_prefill_token_threshold=4)
    return config, Story(config, make_request("B", 12), remote()).schedule()


@shows("admission_in_a_pause", "loaded_admission")
def an_admission_in_a_pause() -> Sight:
    """Admission is paused, but A has its KV already."""
    config, story = loading()
    story.step(KVReceived("A", 8))
    story.step(SetPauseState("paused_new"))
    return config, story.schedule()


@shows("refused_by_pause")
def a_pause_of_a_request_without_kv() -> Sight:
    """Admission is paused for A, whose load has not begun."""
    config = make_config(load_kv_async=True)
    story = Story(config, remote())
    story.step(SetPauseState("paused_new"))
    return config, story.schedule()


def aborted_in_flight() -> tuple[SchedulerConfig, Story]:
    """B was aborted while two steps of it are in flight."""
    config = make_config(**LATE)
    story = Story(config, make_request("B", 6), make_request("C", 3))
    story.schedule()
    story.schedule()
    story.abort("B")
    return config, story


@shows()
def a_step_that_keeps_blocks_back() -> Sight:
    """One of the two steps has returned."""
    config, story = aborted_in_flight()
    return config, story.update()


@shows("late_free")
def the_last_step_that_keeps_blocks_back() -> Sight:
    """The other one has, too, and B's blocks are free."""
    config, story = aborted_in_flight()
    story.update()
    return config, story.update()


def deferred_load() -> tuple[SchedulerConfig, Story]:
    """A waits for KV whose load waits for the step in flight."""
    config = make_config(**LATE)
    story = Story(config, make_request("B", 6))
    story.schedule()
    story.add(remote())
    story.schedule()
    return config, story


@shows("refused_as_not_ready")
def a_load_that_waits_for_a_step() -> Sight:
    """The second step is in flight as well, but only the first one is waited for."""
    config, story = deferred_load()
    return config, story.schedule()


@shows("late_load", "refused_as_not_ready")
def a_load_that_has_waited() -> Sight:
    """The step has returned, and the load begins."""
    config, story = deferred_load()
    story.update()
    return config, story.schedule()


@shows("no_victim")
def nobody_to_preempt() -> Sight:
    """A and B need a block each, of which there is none, and both have a step in flight."""
    config = make_config(defer_block_free=True, async_scheduling=True, num_blocks=3)
    story = Story(config, make_request("A", 4), make_request("B", 8))
    story.schedule()
    return config, story.schedule()
