"""Observed runs of the reference scheduler: what invariants and witnesses judge."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from attrs import evolve
from hypothesis import strategies as st

from checkers.run import Run, follow
from checkers.walk import draw_action
from spec.actions import Action, AddRequest, FinishRequests, Schedule, UpdateFromOutput
from spec.interface import NewRequest, RequestStatus, SchedulerConfig
from spec.scheduler import ReferenceScheduler
from spec.transition import Transition
from spec.worker import GhostWorker, Writer
from tests.spec.support import make_environment

seeds = st.integers(0, 2**32)
"""Each a random walk."""


class Story(Run):
    """A run of the reference scheduler, with one short call for each thing that may happen."""

    def __init__(self, config: SchedulerConfig, *requests: NewRequest) -> None:
        super().__init__(config, ReferenceScheduler(config))
        for new in requests:
            self.add(new)

    def add(self, new: NewRequest) -> Transition:
        """Lets a request arrive."""
        return self.step(AddRequest(new))

    def schedule(self) -> Transition:
        """Puts a step in flight."""
        return self.step(Schedule())

    def update(self, **tokens: int) -> Transition:
        """Lets the oldest step return; who samples gets its token from `tokens`, else a 0."""
        sampled = {name: [tokens.get(name, 0)] for name in self.model.live_samplers()}
        return self.step(UpdateFromOutput(sampled))

    def run(self, num_steps: int) -> None:
        """Lets a number of steps happen, each returning at once."""
        for _ in range(num_steps):
            self.schedule()
            self.update()

    def abort(self, *request_ids: str) -> Transition:
        """Lets clients disconnect."""
        return self.step(FinishRequests(request_ids, RequestStatus.FINISHED_ABORTED))


def walk(run: Run, seed: int, length: int = 100) -> Iterator[Transition]:
    """Yields what is seen on a random walk."""
    rng = Random(seed)
    for _ in range(length):
        action: Action | None = draw_action(run.model, rng)
        if action is None:
            return
        yield run.step(action)


def make_run(config: SchedulerConfig, scheduler: ReferenceScheduler | None = None) -> Run:
    """A run in the small environment of the walks, followed by a ghost worker."""
    return Run(config, scheduler or ReferenceScheduler(config), make_environment(config))


def follow_trusting(config: SchedulerConfig, seen: Transition) -> Transition:
    """The same transition as a worker sees it that knows only the state before."""
    writers = {name: Writer(live.new.cache_key, live.token_ids) for name, live in seen.live.items()}
    again = evolve(seen, worker=None, published_faults=None)
    follow(GhostWorker.trusting(config.block_size, seen.before, writers, seen.loads), again)
    return again
