"""Walks of an engine, recorded: what is rejected is a bug that a recording shows.

Entry points: `record_walk`, and `find_obstacle`, which says why runs of a setting cannot be judged
by their recordings.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable, Iterator

import attrs

from checkers.configs import Setting
from checkers.errors import EngineFault, HarnessError
from checkers.recorder import write_event, write_header
from checkers.recording import Recording, read_recording
from checkers.run import Run
from checkers.validate import validate
from checkers.walk import draw_action
from spec.actions import AddRequest
from spec.interface import NewRequest, Scheduler, SchedulerConfig
from spec.scheduler import ReferenceScheduler

NAME = "walk"
"""How errors call the recording."""
ALWAYS_TOLD = ("request_id", "arrival_time", "prompt_token_ids", "max_tokens")
"""What every recording tells of an arrival."""


def record_walk(setting: Setting, scheduler: Scheduler, seed: int, length: int) -> Iterator[bytes]:
    """Yields the lines of a recorded random walk, which ends where a call of the engine fails."""
    release = setting.dialect.removeprefix("vllm-")
    depth = setting.environment.max_in_flight - 1
    yield _line_of(write_header(setting.scheduler, release, depth))
    rng = random.Random(f"{setting.name} {seed}")
    run = Run(setting.scheduler, scheduler, setting.environment, with_worker=False)
    for _ in range(length):
        action = draw_action(run.model, rng)
        if action is None:
            return
        try:
            seen = run.step(action)
        except EngineFault:
            return  # There is nothing to be written of an answer that did not come.
        yield _line_of(write_event(action, seen.outcome, seen.after))


def _line_of(document: object) -> bytes:
    return json.dumps(document).encode() + b"\n"


def read_walk(setting: Setting, lines: Iterable[bytes]) -> Recording:
    """The recording again, in the dialect of the setting."""
    return read_recording(lines, NAME, setting.dialect)


@functools.cache
def find_obstacle(setting: Setting, num_walks: int, length: int) -> str:
    """Why runs of a setting cannot be judged by their recordings; "" if they can.

    They can if as many of the specification are accepted.
    """
    for seed in range(num_walks):
        lines = list(record_walk(setting, ReferenceScheduler(setting.scheduler), seed, length))
        try:
            rejection = validate(read_walk(setting, lines)).rejection
            missing = [] if rejection is None else list(_find_missing(setting, lines))
        except HarnessError as error:
            # What follows is how a user mends a file.
            _, _, what = str(error).partition(": ")
            return f"recordings cannot tell it: {what.partition(';')[0]}"
        if rejection is not None:
            return f"recordings cannot tell {', '.join(missing) or f'line {rejection.line}'}"
    return ""


def _find_missing(setting: Setting, lines: list[bytes]) -> Iterator[str]:
    """Yields what a file leaves out of the configuration, and of the requests that arrive."""
    recording, config = read_walk(setting, lines), setting.scheduler
    for field in attrs.fields(SchedulerConfig):
        if getattr(recording.config, field.name) != getattr(config, field.name):
            yield field.name
    actions = [event.action for event in recording.events]
    arrived = [action.request for action in actions if isinstance(action, AddRequest)]
    for field in attrs.fields(NewRequest):
        told = [getattr(new, field.name) for new in arrived]
        if field.name not in ALWAYS_TOLD and any(
            getattr(shape, field.name) not in told for shape in setting.environment.shapes
        ):
            yield field.name
