"""What one step may compute at most, and how many requests may run."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import Schedule
from spec.interface import (
    SchedulerConfig,
)
from spec.invariants.sources import SCHEDULE, output_of
from spec.registry import invariant
from spec.transition import Transition


@invariant(source=SCHEDULE, on=(Schedule,))
def token_budget_is_kept(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step schedules at most max_num_scheduled_tokens tokens."""
    total = output_of(seen).total_num_scheduled_tokens
    if total > config.max_num_scheduled_tokens:
        yield (
            f"{total} tokens are scheduled, "
            f"max_num_scheduled_tokens={config.max_num_scheduled_tokens}"
        )


@invariant(source=SCHEDULE, on=(Schedule,))
def input_budget_is_kept(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step puts at most max_num_batched_tokens tokens into the forward pass.

    Those that a drafter adds are among them.
    """
    output = output_of(seen)
    num_slots = config.num_draft_slots * len(output.num_scheduled_tokens)
    total = output.total_num_scheduled_tokens + num_slots
    if total > config.max_num_batched_tokens:
        yield f"{total} tokens are batched, max_num_batched_tokens={config.max_num_batched_tokens}"


@invariant(source="vllm/config/scheduler.py: max_num_seqs", of_state=True)
def max_num_seqs_is_kept(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """At most max_num_seqs requests run at once."""
    if len(seen.after.running) > config.max_num_seqs:
        yield f"{len(seen.after.running)} requests run, max_num_seqs={config.max_num_seqs}"
