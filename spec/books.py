"""How the books of a model change: who is alive with which tokens, which steps are void.

Nothing is changed in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from spec.interface import EngineCoreOutput, SchedulerOutput

if TYPE_CHECKING:
    from spec.model import LiveRequest, StepInFlight


def deliver(
    live: dict[str, LiveRequest], results: dict[int, list[EngineCoreOutput]]
) -> dict[str, LiveRequest]:
    """Returns the live requests after their clients have received `results`.

    Output for the dead changes nothing here; an invariant objects to it.
    """
    after = dict(live)
    for outputs in results.values():
        for output in outputs:
            request = after.get(output.request_id)
            if request is None:
                continue
            if output.finish_reason is not None:
                del after[output.request_id]
            else:
                after[output.request_id] = request.receive(output.new_token_ids)
    return after


def give_drafts(
    live: dict[str, LiveRequest], drafts: dict[str, tuple[int, ...]]
) -> dict[str, LiveRequest]:
    """Returns the live requests with new drafts, those of them that have others."""
    changed = {
        name: attrs.evolve(live[name], draft_token_ids=draft_token_ids)
        for name, draft_token_ids in drafts.items()
        if name in live and live[name].draft_token_ids != draft_token_ids
    }
    return {**live, **changed} if changed else live


def start_positions(output: SchedulerOutput) -> dict[str, int]:
    """Where each request's part of a step begins, as the worker is told."""
    starts: dict[str, int] = {}
    for request_id, new in output.scheduled_new_reqs.items():
        starts[request_id] = new.num_computed_tokens
    for request_id, cached in output.scheduled_cached_reqs.items():
        starts[request_id] = cached.num_computed_tokens
    return starts


def void(step: StepInFlight, request_ids: list[str]) -> StepInFlight:
    """Marks the parts of preempted requests as void."""
    hit = [name for name in request_ids if name in step.output.num_scheduled_tokens]
    return attrs.evolve(step, voided=(*step.voided, *hit)) if hit else step
