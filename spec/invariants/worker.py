"""What the worker is told is enough, and the KV that it reads and finds was written."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import Schedule
from spec.interface import (
    SchedulerConfig,
)
from spec.invariants.sources import POOL, SCHEDULE
from spec.registry import invariant
from spec.transition import Transition


@invariant(
    source="vllm/v1/worker/gpu_model_runner.py: _update_states", on=(Schedule,), needs=("worker",)
)
def diff_is_sufficient(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A worker that believes only the outputs knows every block table and token count."""
    assert seen.worker is not None, "`needs` says so"
    yield from seen.worker.diff
    if seen.worker.diff:
        return
    for name, table in seen.worker.block_tables.items():
        request = seen.after.requests.get(name)
        if request is not None and table != request.block_ids:
            yield (
                f"the worker believes that {name} holds {table}, "
                f"however the scheduler has {request.block_ids}"
            )


@invariant(source=SCHEDULE, on=(Schedule,), needs=("worker",))
def no_step_overwrites_kv(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step writes KV only into blocks that no other running request holds."""
    assert seen.worker is not None, "`needs` says so"
    yield from seen.worker.writes


@invariant(source=SCHEDULE, on=(Schedule,), needs=("worker",))
def steps_read_what_was_written(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step reads only KV that an executed step wrote, for the request's own tokens."""
    assert seen.worker is not None, "`needs` says so"
    yield from seen.worker.reads


@invariant(source=f"{POOL}.cache_full_blocks", needs=("published_faults",))
def published_blocks_were_written(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A published block was written by an executed step, for the tokens it is found by."""
    yield from seen.published_faults or ()
