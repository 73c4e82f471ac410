"""From which states theorems look at an action: shared, so that paths are explored once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.actions import NEW_REQUEST_ID, abort, add_request, schedule, update
from proofs.bounded import Scenario
from proofs.symbolic.state import Shape, State

FCFS = Scenario(schedule, Shape(num_running=2, num_waiting=2))
FCFS_MORE = Scenario(schedule, Shape(num_running=3, num_waiting=2), is_slow=True)
FCFS_MOST = Scenario(schedule, Shape(num_running=3, num_waiting=3), is_core=False)
PRIORITY = Scenario(schedule, Shape(num_running=2, num_waiting=1, policy="priority"))
PRIORITY_MORE = Scenario(
    schedule, Shape(num_running=2, num_waiting=2, policy="priority"), is_slow=True
)
ASYNC = Scenario(schedule, Shape(num_running=1, num_waiting=1, is_async=True))
ASYNC_MORE = Scenario(schedule, Shape(num_running=2, num_waiting=2, is_async=True), is_slow=True)
ANY_HITS = Scenario(schedule, Shape(num_running=1, num_waiting=1, pool="any_hits"))
ANY_HITS_MORE = Scenario(
    schedule, Shape(num_running=2, num_waiting=2, pool="any_hits"), is_slow=True
)
WHOLE_PROMPTS = Scenario(
    schedule,
    Shape(num_running=1, num_waiting=1, switches=frozenset({("enable_chunked_prefill", False)})),
)
LONE = (
    Scenario(schedule, Shape(num_running=1, num_waiting=0, is_async=True)),
    Scenario(schedule, Shape(num_running=0, num_waiting=1)),
)
"""The long-prefill threshold spares a lone request."""
SMALL_BLOCKS = Scenario(schedule, Shape(num_running=1, num_waiting=1, block_size=1))
SCHEDULE = (
    *LONE,
    SMALL_BLOCKS,
    WHOLE_PROMPTS,
    ASYNC,
    ANY_HITS,
    FCFS,
    PRIORITY,
    FCFS_MOST,
    FCFS_MORE,
    PRIORITY_MORE,
    ASYNC_MORE,
    ANY_HITS_MORE,
)
"""Every kind of step, cheap ones first."""

UPDATE = (
    Scenario(update, Shape(num_running=1, num_waiting=1, num_steps=2)),
    Scenario(update, Shape(num_running=1, num_waiting=1, is_async=True, num_steps=2)),
    Scenario(update, Shape(num_running=2, num_waiting=1, num_steps=2), is_slow=True),
    Scenario(update, Shape(num_running=2, num_waiting=1, is_async=True, num_steps=2), is_slow=True),
)
"""The oldest of two steps returns."""


def arrival_makes_sense(state: State) -> Iterator[Any]:
    """a sensible arrival"""  # noqa: D400, D403, D415  (stands in the middle of a label)
    config = state.scheduler.config
    num_prompt_tokens = state.numbers(f"{NEW_REQUEST_ID}.num_prompt_tokens")
    yield num_prompt_tokens >= 1
    yield num_prompt_tokens < config.max_model_len
    yield state.numbers(f"{NEW_REQUEST_ID}.max_tokens") >= 1


ARRIVAL = (
    Scenario(add_request, Shape(num_running=1, num_waiting=2), arrival_makes_sense),
    Scenario(
        add_request, Shape(num_running=1, num_waiting=3, policy="priority"), arrival_makes_sense
    ),
)

ABORT = (
    Scenario(abort, Shape(num_running=2, num_waiting=2)),
    Scenario(abort, Shape(num_running=2, num_waiting=2, policy="priority", pool="any_hits")),
)
