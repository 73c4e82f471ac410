"""The steps of a way: planned by a real scheduler, or as they were recorded.

Entry point: `steps_of`. Each step is yielded, and the runner's answer sent back; with several steps
in flight the scheduler hears of it later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import cast

import attrs

from checkers.engines import load_engine
from checkers.errors import EngineFault
from checkers.recording import open_recording
from gpu_conformance.faults import Answer
from gpu_conformance.way import Arrival, Sights, Way
from spec.actions import UpdateFromOutput
from spec.interface import (
    ControlledScheduler,
    RequestStatus,
    Scheduler,
    SchedulerOutput,
)

Steps = Generator[SchedulerOutput, Answer, None]
Guess = Callable[[str, int], list[int]]
"""Drafts for a request, by the position of its next token."""
MAX_IDLE_STEPS = 100
"""A scheduler that plans nothing for so long, though somebody waits, is stuck."""


def steps_of(way: Way, guess: Guess, sights: Sights) -> Steps:
    """Yields the steps of a way, and notes how many were in flight.

    Raises `EngineFault` if its scheduler gives no answer, or gets stuck; `RunnerFault` if an answer
    was changed before the scheduler heard of it.
    """
    if way.recording is not None:
        return _recorded_steps(way)
    return _Engine(way, guess, sights).steps()


def _recorded_steps(way: Way) -> Steps:
    """The steps of a recorded run, for the prompts of the way."""
    assert way.recording is not None, "asked for a recorded run only"
    prompts = {request.request_id: request.prompt_token_ids for request in way.requests}
    in_flight: deque[Answer] = deque()
    for event in open_recording(way.recording).events:
        if event.output is not None:
            new_reqs = {
                name: attrs.evolve(new, prompt_token_ids=prompts[name])
                for name, new in event.output.scheduled_new_reqs.items()
            }
            in_flight.append((yield attrs.evolve(event.output, scheduled_new_reqs=new_reqs)))
        elif isinstance(event.action, UpdateFromOutput):
            in_flight.popleft().deliver()


class _Engine:
    """A scheduler, who arrives, and the steps in flight."""

    def __init__(self, way: Way, guess: Guess, sights: Sights) -> None:
        self.way = way
        self.guess = guess
        self.sights = sights
        self.scheduler: Scheduler = load_engine(way.engine).build(way.config)
        self.to_come = deque(sorted(way.arrivals, key=lambda arrival: arrival.step))
        # Who has arrived and not ended, and how many tokens of each the client knows.
        self.live: dict[str, int] = {}
        self.in_flight: deque[tuple[SchedulerOutput, Answer]] = deque()

    def steps(self) -> Steps:
        """Plans step by step, until everybody is served."""
        step = num_idle = 0
        while self.to_come or self.live or self.in_flight:
            self._abort_and_arrive(step)
            output = self.scheduler.schedule()
            answer = yield self._fill_in_drafts(output)
            step += 1
            is_idle = not output.num_scheduled_tokens
            if not is_idle:
                self.in_flight.append((output, answer))
                self.sights.max_in_flight = max(self.sights.max_in_flight, len(self.in_flight))
            num_idle = num_idle + 1 if is_idle and not self.in_flight else 0
            is_expecting = bool(self.to_come) and self.to_come[0].step >= step
            if num_idle > MAX_IDLE_STEPS and not is_expecting:
                raise EngineFault(
                    "engine_answers",
                    f"schedule() has planned nothing {num_idle} times, while nothing is in flight "
                    f"and {', '.join(self.live)} wait",
                )
            if self.in_flight and (is_idle or len(self.in_flight) >= self.way.max_in_flight):
                self._settle(*self.in_flight.popleft())

    def _abort_and_arrive(self, step: int) -> None:
        # In this order, so that somebody may come under a name that has just become free.
        for at, request_id in self.way.aborts:
            if at == step and self.live.pop(request_id, None) is not None:
                self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)
        while self.to_come and self._can_arrive(self.to_come[0], step):
            request = self.to_come.popleft().request
            if self.scheduler.add_request(request) is not None:
                raise EngineFault("engine_answers", f"add_request() refuses {request.request_id}")
            self.live[request.request_id] = len(request.prompt_token_ids)

    def _can_arrive(self, arrival: Arrival, step: int) -> bool:
        return arrival.step <= step and arrival.request.request_id not in self.live

    def _fill_in_drafts(self, output: SchedulerOutput) -> SchedulerOutput:
        """Puts drafts in the places that an asynchronous scheduler leaves to its worker."""
        if not self.way.config.async_scheduling:
            return output
        drafts = {
            name: [*self.guess(name, self._count_tokens(name)), *places][: len(places)]
            for name, places in output.scheduled_spec_decode_tokens.items()
        }
        return attrs.evolve(output, scheduled_spec_decode_tokens=drafts)

    def _count_tokens(self, name: str) -> int:
        """How many tokens a request has, with those that the scheduler has not heard of."""
        unheard = (answer.kept.sampled_token_ids.get(name, []) for _, answer in self.in_flight)
        return self.live[name] + sum(map(len, unheard))

    def _settle(self, output: SchedulerOutput, answer: Answer) -> None:
        """Tells the scheduler what a step has sampled, and what may follow on it."""
        result = answer.deliver()
        for outputs in self.scheduler.update_from_output(output, result).values():
            for sent in outputs:
                self.live[sent.request_id] += len(sent.new_token_ids)
                if sent.finish_reason is not None:
                    del self.live[sent.request_id]
        if self.way.num_drafts > 0 and not self.way.config.async_scheduling:
            drafts = {
                name: self.guess(name, self.live[name])[: self.way.num_drafts]
                for name, tokens in result.sampled_token_ids.items()
                if tokens and name in self.live
            }
            cast(ControlledScheduler, self.scheduler).update_draft_token_ids(drafts)
