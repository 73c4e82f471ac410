"""Leads a runner along a way, and lets somebody watch.

Entry point: `follow`.
"""

from __future__ import annotations

import copy
import random
from typing import Protocol

from checkers.engines import hang_alarms
from gpu_conformance.faults import (
    Answer,
    ask,
    blaming,
    check_answer,
    check_sampled,
    check_step,
    keep,
)
from gpu_conformance.ledger import Ledger, Part
from gpu_conformance.renaming import Renaming, shuffle
from gpu_conformance.runners import Runner, cpu_threads
from gpu_conformance.steps import Guess, steps_of
from gpu_conformance.subject import Subject
from gpu_conformance.way import Way
from spec.interface import ModelRunnerOutput, SchedulerOutput


class Watcher(Protocol):
    """Sees each step after it has run."""

    def meet(self, runner: Runner) -> None:
        """A fresh runner is about to run."""

    def watch(self, runner: Runner, parts: list[Part], result: ModelRunnerOutput) -> None:
        """A step has run: what each request was to compute in it, and what the runner answered."""


def guess_nothing(request_id: str, position: int) -> list[int]:
    """Drafts nothing."""
    return []


def follow(
    way: Way, subject: Subject, watcher: Watcher, ledger: Ledger, guess: Guess = guess_nothing
) -> None:
    """Runs all steps of a way on a fresh runner, and keeps the books beside it.

    Raises `RunnerFault` if the runner gives no answer, `EngineFault` if the scheduler does not.
    """
    renaming = Renaming(way.placement, way.config.num_blocks)
    rng = None if way.order_seed is None else random.Random(way.order_seed)
    steps = steps_of(way, guess, ledger.sights)
    with cpu_threads(way.num_threads), hang_alarms():
        runner = subject.make_within(way, renaming.num_blocks)
        watcher.meet(runner)
        planned: SchedulerOutput | None = next(steps, None)
        step = 0
        while planned is not None:
            output = renaming.rename(planned)
            if rng is not None:
                output = shuffle(output, rng)
            parts = ledger.begin(output)
            with blaming(step, output):
                answer = _execute(runner, step, output, subject.limit_s)
                watcher.watch(runner, parts, answer.kept)
                check_sampled(parts, answer.kept)
            ledger.end(output, answer.kept)
            step += 1
            try:
                planned = steps.send(answer)
            except StopIteration:
                planned = None


def _execute(runner: Runner, step: int, output: SchedulerOutput, limit_s: float) -> Answer:
    """Runs one step, of which the runner has a copy: what it does to that is seen, and harmless."""
    handed = copy.deepcopy(output)
    result = ask(limit_s, "execute()", runner.execute, handed)
    check_step(output, handed)
    check_answer(output, result)
    return keep(step, result)
