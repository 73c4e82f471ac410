"""What may happen to a state, symbolic or plain: the calls of the spec and their environment.

Each action changes the state in place and returns what the scheduler answered. It may fork, so that
one run covers every choice of the environment.
"""

from __future__ import annotations

from typing import Any

from proofs.invariant import is_sampler
from proofs.symbolic.overheard import OverheardScheduler
from proofs.symbolic.state import State, make_new_request
from spec.block_pool import CountedBlockPool
from spec.interface import ModelRunnerOutput, RequestStatus, SchedulerOutput
from spec.request import Request

NEW_REQUEST_ID = "new"


def schedule(state: State) -> SchedulerOutput:
    """Schedules a step and puts it in flight."""
    output = state.scheduler.schedule()
    state.steps.append(
        {name: output.num_scheduled_tokens.get(name, 0) for name in state.shape.request_ids}
    )
    return output


def update(state: State) -> dict[str, Any]:
    """Lets the oldest step return: who completed all that is known has sampled a token.

    Voided parts may have sampled or not, as the environment says.
    """
    output, result = take_oldest_step(state)
    state.scheduler.update_from_output(output, result)
    return result.sampled_token_ids


def take_oldest_step(state: State) -> tuple[SchedulerOutput, ModelRunnerOutput]:
    """Takes the oldest step out of flight: what it was to compute, and what it has sampled."""
    step = state.steps[0]
    sampled: dict[str, list[int]] = {}
    for name, num_tokens in step.items():
        if num_tokens > 0:
            sampled[name] = [state.numbers(f"{name}.token")] if _samples(state, name) else []
    del state.steps[0]
    return SchedulerOutput({name: step[name] for name in sampled}), ModelRunnerOutput(sampled)


def _samples(state: State, name: str) -> bool:
    request = state.scheduler.requests[name]
    parts = [step[name] for step in state.steps]
    if request in state.scheduler.running:
        return bool(is_sampler(request, parts, 0))
    _split_status(request)
    return bool(state.numbers(f"{name}.has_sampled") > 0)


def _split_status(request: Request) -> None:
    """Makes the status of a waiting request a constant on each path, since results name it."""
    is_new = request.status == RequestStatus.WAITING
    request.status = RequestStatus.WAITING if is_new else RequestStatus.PREEMPTED


def two_steps(state: State) -> SchedulerOutput:
    """Schedules a step, lets the oldest step return, and schedules another."""
    schedule(state)
    update(state)
    return schedule(state)


def start(state: State) -> None:
    """Builds the scheduler anew, as it is when it starts."""
    config = state.scheduler.config
    state.scheduler = OverheardScheduler(config, CountedBlockPool(config.num_blocks))


def add_request(state: State) -> None:
    """Lets a request arrive."""
    state.scheduler.add_request(make_new_request(NEW_REQUEST_ID, state.numbers))


def abort(state: State) -> str:
    """Ends one of the requests from outside; returns whom."""
    whom = state.numbers("aborted")
    for place, name in enumerate(state.shape.request_ids[:-1]):
        if whom == place:
            return _end(state, name)
    return _end(state, state.shape.request_ids[-1])


def _end(state: State, name: str) -> str:
    state.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
    return name
