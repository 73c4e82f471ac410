"""Where the rules come from, and what several of them ask."""

from __future__ import annotations

from spec.interface import SchedulerOutput
from spec.transition import Transition

SCHEDULE = "vllm/v1/core/sched/scheduler.py: schedule"
UPDATE = "vllm/v1/core/sched/scheduler.py: update_from_output"
POOL = "vllm/v1/core/block_pool.py: BlockPool"


def output_of(seen: Transition) -> SchedulerOutput:
    """The output of a `schedule` action."""
    assert seen.outcome.output is not None, "only a schedule action has an output"
    return seen.outcome.output
