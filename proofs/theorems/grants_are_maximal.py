"""How many tokens each request is granted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import SCHEDULE
from proofs.symbolic.values import all_of, choose, symbolic_max, symbolic_min
from spec.interface import SchedulerConfig
from spec.request import Request


@bounded(
    *SCHEDULE,
    mutants=("a_grant_is_a_token_short", "a_grant_costs_nothing"),
    assumptions=("the step preempts nobody: what a victim gives back may go to waste",),
)
def grants_are_maximal(run: Run) -> Iterator[Claim]:
    """Each request gets its gap, cut only by threshold, budgets and max_model_len."""
    heard, config = run.after.scheduler.heard, run.after.scheduler.config
    if heard.preemptions:
        return
    left = symbolic_min(config.max_num_scheduled_tokens, config.max_num_batched_tokens)
    for request in run.before.scheduler.running:
        num_tokens = run.result.num_scheduled_tokens.get(request.request_id, 0)
        expected = symbolic_min(_running_gap(run, request), left)
        yield f"{request.request_id} gets all it may", num_tokens == symbolic_max(expected, 0)
        left = left - num_tokens
    for each in heard.admissions:
        num_tokens = run.result.num_scheduled_tokens[each.request.request_id]
        gap = each.request.num_tokens - each.hit.num_blocks * config.block_size
        expected = symbolic_min(_cap(run, gap), left)
        yield f"{each.request.request_id} gets all it may", num_tokens == expected
        left = left - num_tokens


def _running_gap(run: Run, request: Request) -> Any:
    """The gap of a running request, cut by threshold and by room for the token to be sampled."""
    config: SchedulerConfig = run.before.scheduler.config
    num_computed_tokens = request.num_computed_tokens
    num_placeholders = request.num_output_placeholders
    gap = request.num_tokens + num_placeholders - num_computed_tokens
    is_last = all_of(
        num_placeholders > 0,
        num_computed_tokens + 2 - num_placeholders
        >= request.num_prompt_tokens + request.max_tokens,
    )
    room = config.max_model_len - 1 - num_computed_tokens
    return choose(is_last, 0, symbolic_min(_cap(run, gap), room))


def _cap(run: Run, num_tokens: Any) -> Any:
    """The threshold, which spares a lone request."""
    threshold = run.before.scheduler.config.long_prefill_token_threshold
    if len(run.before.scheduler.requests) <= 1:
        return num_tokens
    return choose(threshold > 0, symbolic_min(num_tokens, threshold), num_tokens)
