"""All that is asked of a whole engine: to compute requests in a given way, and to show what it did.

Entry point: `LiveEngine`. How the requests arrive and the scheduler is set is a `Way`, as for a
runner; what an engine cannot be asked for it refuses with `NotHere`, so that nothing counts as
tested that was not. `split_into_calls` is for engines that are called, and return when all is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Protocol

import attrs
from attrs import frozen

from gpu_conformance.registry import NotHere
from gpu_conformance.way import Sights, Way
from spec.interface import NewRequest, SchedulerConfig

NUM_LOGPROBS = 5
"""Of each token that is sampled, the log-probabilities of so many candidates are compared."""


@frozen
class Answer:
    """What came back for one request."""

    token_ids: tuple[int, ...]
    """Of the output; the greatest, each time."""
    logprobs: tuple[Mapping[int, float], ...]
    """For each token of the output, those of the greatest candidates, by token."""

    def get_logprobs(self, number: int) -> Mapping[int, float]:
        """Those at one place; none if the engine gave none."""
        return self.logprobs[number] if number < len(self.logprobs) else {}


@frozen
class Served:
    """What came of one way."""

    answers: Mapping[str, Answer]
    """By request; who has got no answer is not in it."""
    sights: Sights
    """What was seen of the schedule: without it, no value counts as reached."""


class LiveEngine(Protocol):
    """An engine that plans and computes by itself, made of a model, a number type and a device."""

    @property
    def block_size(self) -> int:
        """Tokens of a KV block that suit it; ways are given in such blocks."""

    def serve(self, way: Way) -> Served:
        """Computes a way on a fresh engine, its KV cache empty, greedily.

        Raises `NotHere` for what it cannot be asked for; whatever else it raises is a finding.
        """


def split_into_calls(way: Way, settings: Collection[str]) -> list[list[NewRequest]]:
    """Returns which requests are handed over together, one call after the other.

    `settings` are the fields of `SchedulerConfig` that the engine takes. Raises `NotHere` if the
    way asks for another, or for what cannot be had from outside.
    """
    if Way(arrivals=way.arrivals, config=way.config, engine=way.engine) != way:
        raise NotHere("a live engine plans, places and orders by itself")
    given = {name: getattr(way.config, name) for name in settings}
    others = attrs.asdict(SchedulerConfig(**given))
    for name, value in attrs.asdict(way.config).items():
        if others[name] != value:
            raise NotHere(f"this engine cannot be given {name}={value}")
    arrivals = sorted(way.arrivals, key=lambda arrival: arrival.step)
    calls = [
        (step, [arrival.request for arrival in group])
        for step, group in itertools.groupby(arrivals, key=lambda arrival: arrival.step)
    ]
    for (step, requests), (later, _) in itertools.pairwise(calls):
        # Prompts take one step at least, and each token one.
        if later - step <= max(request.max_tokens for request in requests):
            raise NotHere("nobody can arrive while a call runs")
    return [requests for _, requests in calls]
