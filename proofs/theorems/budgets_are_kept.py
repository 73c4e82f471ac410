"""What one step computes at most."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import SCHEDULE


@bounded(*SCHEDULE, mutants=("a_grant_costs_nothing", "a_victim_returns_too_many_tokens"))
def budgets_are_kept(run: Run) -> Iterator[Claim]:
    """A step schedules at most either budget, and takes off them exactly what it schedules."""
    scheduler, config = run.after.scheduler, run.after.scheduler.config
    total = sum(run.result.num_scheduled_tokens.values(), 0)
    yield "token budget", total <= config.max_num_scheduled_tokens
    yield "input budget", total <= config.max_num_batched_tokens
    yield "token budget left", scheduler.token_budget == config.max_num_scheduled_tokens - total
    yield "input budget left", scheduler.input_budget == config.max_num_batched_tokens - total
