"""What clients are sent, and how requests end."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import FinishRequests, UpdateFromOutput
from spec.interface import (
    EngineCoreOutput,
    SchedulerConfig,
)
from spec.invariants.sources import UPDATE
from spec.registry import invariant
from spec.stop import ends_in_repetition
from spec.transition import LiveRequest, StepInFlight, Transition


@invariant(source="vllm/v1/core/sched/output.py: finished_req_ids")
def finished_ids_are_told_once(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """The next schedule, and only that one, tells the worker who has finished."""
    before, after = seen.before.finished_req_ids, seen.after.finished_req_ids
    ended = [name for name in seen.live if name not in seen.live_after]
    if seen.outcome.output is None:
        if sorted(after) != sorted([*before, *ended]):
            yield f"finished_req_ids is {after}, however it was {before} and {ended} have ended"
        return
    if sorted(seen.outcome.output.finished_req_ids) != sorted(before):
        yield f"the worker is told {seen.outcome.output.finished_req_ids}, finished have {before}"
    if after:
        yield f"{after} would be told again"


@invariant(source=UPDATE, on=(UpdateFromOutput,))
def outputs_go_to_the_living(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Each live request that sampled gets one output, at its own client; nobody else gets any."""
    step, results = seen.outcome.returned, seen.outcome.results
    assert step is not None, "only an update returns a step"
    assert results is not None, "only an update has results"
    received: list[str] = []
    for client_index, outputs in results.items():
        for output in outputs:
            name = output.request_id
            received.append(name)
            if name not in seen.live:
                yield f"{name} receives {output.new_token_ids} after its end"
            elif seen.live[name].new.client_index != client_index:
                owner = seen.live[name].new.client_index
                yield f"the output of {name} goes to client {client_index}, its owner is {owner}"
    expected = sorted(name for name in due_outputs(config, seen, step) if name in seen.live)
    received.sort()
    if received != expected and all(name in seen.live for name in received):
        yield f"outputs are for {received}, however due for {expected}"


@invariant(source="vllm/v1/core/sched/utils.py: check_stop", on=(UpdateFromOutput,))
def stops_are_in_order(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request stops at the first token that stops it, for the first reason in order."""
    assert isinstance(seen.action, UpdateFromOutput), "`on` says so"
    assert seen.outcome.results is not None, "only an update has results"
    for outputs in seen.outcome.results.values():
        for output in outputs:
            live = seen.live.get(output.request_id)
            sampled = seen.action.sampled_token_ids.get(output.request_id, [])
            if live is None:
                continue  # Another invariant objects.
            expected = expected_output(config, live, sampled)
            if output != expected:
                yield (
                    f"{output.request_id} is sent {output.new_token_ids} "
                    f"with finish_reason={output.finish_reason}, however due are "
                    f"{expected.new_token_ids} with {expected.finish_reason}"
                )


@invariant(source="vllm/v1/core/sched/scheduler.py: finish_requests", on=(FinishRequests,))
def an_abort_ends_at_once(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request that is ended from outside is gone at once, and nobody else is touched."""
    assert isinstance(seen.action, FinishRequests), "`on` says so"
    for name in seen.action.request_ids:
        if name in seen.after.requests:
            yield f"{name} was ended, however it is {seen.after.requests[name].status}"
    for name, before in seen.before.requests.items():
        if name not in seen.action.request_ids and seen.after.requests.get(name) != before:
            yield f"{name} was not ended, however it changed to {seen.after.requests.get(name)}"


def due_outputs(config: SchedulerConfig, seen: Transition, step: StepInFlight) -> list[str]:
    """Who was handed a token in a step; stale ones count as the dialect says, unless dropped."""
    assert isinstance(seen.action, UpdateFromOutput), "only an update returns a step"
    sampled = seen.action.sampled_token_ids
    return [
        name
        for name in step.output.num_scheduled_tokens
        if sampled.get(name)
        and name not in step.dropped
        and (config.deliver_stale_output or name not in step.voided)
    ]


def expected_output(
    config: SchedulerConfig, live: LiveRequest, sampled: list[int]
) -> EngineCoreOutput:
    """What a request that sampled `sampled` is sent."""
    token_ids = live.token_ids
    for count, token_id in enumerate(sampled, 1):
        token_ids = (*token_ids, token_id)
        reason = find_finish_reason(config, live, token_ids)
        if reason is not None:
            return EngineCoreOutput(live.new.request_id, sampled[:count], reason)
    return EngineCoreOutput(live.new.request_id, list(sampled))


def find_finish_reason(
    config: SchedulerConfig, live: LiveRequest, token_ids: tuple[int, ...]
) -> str | None:
    """The first of the dialect's rules that stops a request; None if it goes on."""
    new = live.new
    num_output_tokens = len(token_ids) - len(new.prompt_token_ids)
    is_capped = len(token_ids) >= config.max_model_len or num_output_tokens >= new.max_tokens
    is_stop = token_ids[-1] == new.eos_token_id or token_ids[-1] in new.stop_token_ids
    is_early = num_output_tokens < new.min_tokens
    if config.stop_order == "length_stop" and is_capped:
        return "length"
    if config.stop_order != "stop_length" and is_early:
        return None
    if is_stop:
        return "stop"
    if is_capped:
        return "length"
    detection = new.repetition_detection
    output_token_ids = token_ids[len(new.prompt_token_ids) :]
    if not is_early and detection and ends_in_repetition(output_token_ids, detection):
        return "repetition"
    return None
