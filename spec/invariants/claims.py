"""Claims: they do not hold everywhere, and are checked where a setting asks for them."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import Schedule
from spec.interface import (
    SchedulerConfig,
)
from spec.registry import invariant
from spec.transition import Transition


@invariant(
    source="vllm/config/scheduler.py: scheduler_reserve_full_isl", on=(Schedule,), is_claim=True
)
def prompts_are_not_preempted(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """No admitted prompt is preempted before all of it is computed."""
    for name in seen.preempted:
        before = seen.before.requests.get(name)
        if before is not None and before.num_computed_tokens < before.num_prompt_tokens:
            yield (
                f"{name} was admitted because its {before.num_prompt_tokens} prompt tokens fit, "
                f"however it is preempted with {before.num_computed_tokens} of them computed"
            )
