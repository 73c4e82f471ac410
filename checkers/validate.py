"""A recorded run of a real engine, held against the invariants and beside the specification.

Entry point: `validate`. The recording is played back as an engine (`RecordedEngine`), so it is
judged like any other. After the first breach the specification has nothing more to say, but the
invariants need none: they follow the run on, and tell what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import attrs
from attrs import frozen

from checkers.errors import HarnessError
from checkers.lockstep import Lockstep
from checkers.recorded_events import RecordedEvent
from checkers.recording import Recording, open_recording
from checkers.run import Breach, Judge, Run, select_invariants
from spec.actions import ACTION_NAMES, FinishRequests
from spec.books import start_positions
from spec.interface import (
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    Observation,
    PauseState,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
    StreamingUpdate,
)
from spec.transition import Outcome, Transition

MAX_CONSEQUENCES = 3


@frozen
class Consequence:
    """An invariant that breaks later in a run that has left the specification."""

    line: int
    action: str
    """What was done then: the name of a call of `Scheduler`."""
    answer: str
    """What the engine answered."""
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
    consequences: tuple[Consequence, ...] = ()
    """The first breaks of further invariants, in the order of the run."""


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
    unread: str
    """Why what follows a rejection could not be read; "" if it could."""
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
    validator = _Validator(recording, exact_ids=exact_ids)
    try:
        for event in recording.events:
            validator.take(event)
            if on_progress is not None:
                on_progress(validator.num_events)
    except HarnessError as error:
        if validator.rejection is None:
            raise HarnessError(
                f"{error} (the {validator.num_accepted} events before it are accepted)"
            ) from error
        return validator.conclude(unread=str(error))
    return validator.conclude(unread="")


class RecordedEngine:
    """A scheduler that does what was recorded, whatever it is asked."""

    def __init__(self, num_blocks: int, null_block_id: int) -> None:
        free_block_ids = [n for n in range(num_blocks + 1) if n != null_block_id]
        self.initial = Observation([], [], {}, len(free_block_ids), free_block_ids, {}, [], [])
        self.event: RecordedEvent | None = None
        """What happens next."""

    def add_request(self, new: NewRequest) -> EngineCoreOutput | None:
        """Answers as recorded."""
        assert self.event is not None, "an event is set before it happens"
        return self.event.refusal

    def schedule(self) -> SchedulerOutput:
        """Answers as recorded."""
        assert self.event is not None, "an event is set before it happens"
        assert self.event.output is not None, "the event is a schedule"
        return self.event.output

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """Answers as recorded."""
        assert self.event is not None, "an event is set before it happens"
        assert self.event.results is not None, "the event is an update"
        return self.event.results

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """Answers nothing."""

    def update_draft_token_ids(self, draft_token_ids: dict[str, list[int]]) -> None:
        """Answers nothing."""

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Answers nothing."""

    def grammar_ready(self, request_id: str) -> None:
        """Answers nothing."""

    def finish_recving(self, request_id: str, num_valid_tokens: int) -> None:
        """Answers nothing."""

    def streaming_update(self, request_id: str, update: StreamingUpdate | None) -> None:
        """Answers nothing."""

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Answers as recorded."""
        assert self.event is not None, "an event is set before it happens"
        assert self.event.is_reset is not None, "the event is a reset"
        return self.event.is_reset

    def observe(self) -> Observation:
        """Looks as recorded."""
        return self.initial if self.event is None else self.event.observation


class _Validator:
    """Takes one event after the other, and keeps what has been found."""

    def __init__(self, recording: Recording, *, exact_ids: bool) -> None:
        config = recording.config
        if exact_ids and recording.null_block_id != 0:
            raise HarnessError(
                f"{recording.name}:1: null_block_id={recording.null_block_id}, however the blocks "
                "of the specification begin at 1; compare without exact ids"
            )
        self.recording = recording
        self.exact_ids = exact_ids
        self.engine = RecordedEngine(config.num_blocks, recording.null_block_id)
        self.played = Run(config, self.engine)
        self.judge = Judge(config, select_invariants())
        # One call may have ended several requests, whose blocks engines free in any order.
        self.lockstep = Lockstep(config, exact_ids=exact_ids, with_evictions=False, explain=True)
        self.num_events = 0
        self.num_accepted = 0
        self.rejection: Rejection | None = None
        self.consequences: list[Consequence] = []
        # Invariants that a consequence would not add anything to.
        self.broken: set[str] = set()

    def take(self, event: RecordedEvent) -> None:
        """Judges the next event."""
        self.engine.event = event
        self.num_events += 1
        if self.rejection is None:
            self._check_order_is_known(event)
            self._judge(event, self.played.step(event.action))
        elif len(self.consequences) < MAX_CONSEQUENCES:
            self._note_consequences(event, self.played.step(event.action))

    def conclude(self, unread: str) -> Validation:
        """Sums up."""
        rejection = self.rejection
        if rejection is not None:
            rejection = attrs.evolve(rejection, consequences=tuple(self.consequences))
        return Validation(
            path=self.recording.name,
            engine=self.recording.engine,
            dialect=self.recording.dialect,
            config=self.recording.config,
            exact_ids=self.exact_ids,
            num_events=self.num_events,
            num_accepted=self.num_accepted,
            rejection=rejection,
            unread=unread,
            absent_fields=self.recording.reader.absent_fields,
            unobserved=tuple(sorted(self.judge.unobserved)),
            witnesses=dict(self.judge.witnesses),
        )

    def _check_order_is_known(self, event: RecordedEvent) -> None:
        action = event.action
        if not (self.exact_ids and isinstance(action, FinishRequests)):
            return
        num_ended = sum(name in self.played.model.live for name in action.request_ids)
        if num_ended > 1:
            raise HarnessError(
                f"{self.recording.name}:{event.line}: one call ends {num_ended} "
                "requests, and engines free them in any order; compare without exact ids"
            )

    def _judge(self, event: RecordedEvent, seen: Transition) -> None:
        breaches = list(self.judge.breaches(seen))
        difference = self.lockstep.step(seen)
        if difference is not None:
            breaches.append(difference)
        if not breaches:
            self.judge.look(seen)
            self.num_accepted += 1
            return
        self._note_broken(breaches)
        self.rejection = Rejection(
            event.line,
            ACTION_NAMES[type(event.action)],
            describe(seen.outcome),
            describe(self.lockstep.outcome),
            tuple(breaches),
            tuple(self.lockstep.explanation().splitlines()),
        )

    def _note_consequences(self, event: RecordedEvent, seen: Transition) -> None:
        later = [b for b in self.judge.breaches(seen) if b.name not in self.broken]
        self._note_broken(later)
        for breach in later[: MAX_CONSEQUENCES - len(self.consequences)]:
            self.consequences.append(
                Consequence(
                    event.line, ACTION_NAMES[type(event.action)], describe(seen.outcome), breach
                )
            )

    def _note_broken(self, breaches: list[Breach]) -> None:
        """A worker that could not follow the diff knows nothing of the KV cache any more."""
        self.broken.update(breach.name for breach in breaches)
        if "diff_is_sufficient" in self.broken:
            self.broken.update(
                rule.name
                for rule in self.judge.invariants
                if not {"worker", "published_faults"}.isdisjoint(rule.needs)
            )


def describe(outcome: Outcome) -> str:
    """What a scheduler answered, in one sentence."""
    if outcome.output is not None:
        return _describe_step(outcome.output)
    if outcome.results is not None:
        return _describe_results(outcome.results)
    if outcome.is_reset is not None:
        return f"answers {outcome.is_reset}"
    return "answers nothing"


def _describe_step(output: SchedulerOutput) -> str:
    starts = start_positions(output)
    parts = []
    for name, num_tokens in output.num_scheduled_tokens.items():
        start = f"from token {starts[name]} on" if name in starts else "from nowhere"
        parts.append(f"{num_tokens} of {name} {start}{_describe_entry(output, name)}")
    answer = f"computes {'; '.join(parts)}" if parts else "computes nothing"
    if output.preempted_req_ids:
        answer += f"; preempts {', '.join(output.preempted_req_ids)}"
    for name, load in output.kv_loads.items():
        answer += f"; loads tokens {load.start} to {load.end} of {name}"
    return answer


def _describe_entry(output: SchedulerOutput, request_id: str) -> str:
    if request_id in output.scheduled_new_reqs:
        return " (new)"
    cached = output.scheduled_cached_reqs.get(request_id)
    return " (resumed)" if cached is not None and cached.resumed else ""


def _describe_results(results: dict[int, list[EngineCoreOutput]]) -> str:
    parts = [
        f"{output.request_id} {output.new_token_ids}"
        + ("" if output.finish_reason is None else f" and its end ({output.finish_reason})")
        for outputs in results.values()
        for output in outputs
    ]
    return f"sends {', '.join(parts)}" if parts else "sends nothing"
