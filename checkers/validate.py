"""A recorded run of a real engine, held against the invariants and beside the specification.

Entry point: `validate`. The recording is played back as an engine (`RecordedEngine`), so it is
judged like any other. After the first breach the specification has nothing more to say, but the
invariants need none: they follow the run on, and tell what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attrs import define, field, frozen

from checkers.errors import HarnessError
from checkers.lockstep import Lockstep
from checkers.recorded_events import RecordedEvent
from checkers.recording import Recording, open_recording
from checkers.run import Breach, Judge, Run, select_invariants
from spec.interface import (
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    Observation,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.model import ACTION_NAMES, FinishRequests, Outcome, start_positions

MAX_CONSEQUENCES = 3


@frozen
class Consequence:
    """An invariant that breaks later in a run that has left the specification."""

    line: int
    action: str
    answer: str
    breach: Breach


@frozen
class Rejection:
    """Where a recorded run leaves the specification, and what comes of it."""

    line: int
    """Of the first event that is not accepted."""
    action: str
    """What was done then: the name of a call of `Scheduler`."""
    answer: str
    """What the engine answered."""
    expected: str
    """What the specification answers."""
    breaches: tuple[Breach, ...]
    """Invariants first, then how the engine differs from the specification."""
    explanation: tuple[str, ...]
    """How the specification came to its decision: a sentence per rule or gate."""
    consequences: tuple[Consequence, ...]
    """The first break of each further invariant, in the order of the run."""
    unread: str = ""
    """Why the rest of the file could not be read; "" if it could."""


@frozen(kw_only=True)
class Validation:
    """What a validation has found."""

    path: str
    engine: str
    """Engine and version."""
    dialect: str
    config: SchedulerConfig
    exact_ids: bool
    """Whether block ids and the order of the free queue were compared, too."""
    num_events: int
    num_accepted: int
    """The longest accepted prefix, in events."""
    rejection: Rejection | None
    absent_fields: tuple[str, ...]
    """What the recording does not tell, so that nobody could check it."""
    unobserved: tuple[str, ...]
    """Invariants that could not be checked everywhere for want of those fields."""
    witnesses: dict[str, int]
    """What was seen to happen in the accepted prefix, and how often."""

    @property
    def is_accepted(self) -> bool:
        """Whether the whole run is as the specification says."""
        return self.rejection is None


def validate(
    recording: str | Path | Recording,
    *,
    dialect: str | None = None,
    exact_ids: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Validation:
    """Holds a recorded run against the specification.

    `dialect` overrides the one that the file's engine and version name; `on_progress` is told the
    number of events read. Raises `HarnessError` if the file is no recording.
    """
    if not isinstance(recording, Recording):
        recording = open_recording(recording, dialect)
    if exact_ids and recording.null_block_id != 0:
        raise HarnessError(
            f"{recording.name}:1: null_block_id={recording.null_block_id}, the specification's "
            "blocks begin at 1; compare up to renaming, without exact ids"
        )
    return _Validator(recording, exact_ids, on_progress).run()


class RecordedEngine:
    """A scheduler that does what was recorded, whatever it is asked."""

    def __init__(self, recording: Recording) -> None:
        num_ids = recording.config.num_blocks + 1
        free_block_ids = [n for n in range(num_ids) if n != recording.null_block_id]
        self.event: RecordedEvent | None = None
        """What happens next."""
        self.initial = Observation([], [], {}, len(free_block_ids), free_block_ids, {}, [], [])

    def add_request(self, new: NewRequest) -> None:
        """Answers nothing."""

    def schedule(self) -> SchedulerOutput:
        """Answers as recorded."""
        assert self.event is not None and self.event.output is not None, "the event is a schedule"
        return self.event.output

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """Answers as recorded."""
        assert self.event is not None and self.event.results is not None, "the event is an update"
        return self.event.results

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """Answers nothing."""

    def observe(self) -> Observation:
        """Looks as recorded."""
        return self.initial if self.event is None else self.event.observation


@define
class _Validator:
    recording: Recording
    exact_ids: bool
    on_progress: Callable[[int], None] | None
    engine: RecordedEngine = field(init=False)
    judge: Judge = field(init=False)
    lockstep: Lockstep = field(init=False)
    followed: Run = field(init=False)
    num_events: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        config = self.recording.config
        self.engine = RecordedEngine(self.recording)
        self.judge = Judge(config, select_invariants())
        self.lockstep = Lockstep(config, exact_ids=self.exact_ids, explain=True)
        self.followed = Run(config, self.engine)

    def run(self) -> Validation:
        num_accepted, rejection = 0, None
        for event in self._events():
            rejection = self._judge(event)
            if rejection is not None:
                break
            num_accepted += 1
        return Validation(
            path=self.recording.name,
            engine=self.recording.engine,
            dialect=self.recording.dialect,
            config=self.recording.config,
            exact_ids=self.exact_ids,
            num_events=self.num_events,
            num_accepted=num_accepted,
            rejection=rejection,
            absent_fields=self.recording.reader.absent_fields,
            unobserved=tuple(sorted(self.judge.unobserved)),
            witnesses=dict(self.judge.witnesses),
        )
