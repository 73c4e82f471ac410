"""Situations of requests whose KV is loaded, and of blocks that are kept back."""

from __future__ import annotations

from typing import Any

from spec.actions import KVReceived, ResetPrefixCache, SetPauseState
from spec.interface import NewRequest, SchedulerConfig
from spec.transition import Transition
from tests.spec.situations import shows
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story

Sight = tuple[SchedulerConfig, Transition]


def loading(*others: NewRequest, num_remote_tokens: int = 8, **options: Any) -> tuple[Any, Story]:
    """KV of A is loaded, 8 tokens of its 10, into two blocks."""
    config = make_config(load_kv_async=True, **options)
    story = Story(config, *others)
    if others:
        story.schedule()
        story.update()
    story.add(make_request("A", 10, num_remote_tokens=num_remote_tokens))
    story.schedule()
    story.update()
    return config, story


@shows("loaded_admission")
def a_loaded_admission() -> Sight:
    """A's KV has arrived, and the rest of its prompt is computed."""
    config, story = loading()
    story.step(KVReceived("A", 8))
    return config, story.schedule()
