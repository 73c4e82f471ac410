"""The events of a recording: what each line must hold, and what it must know of those before it.

Entry point: `EventReader.read`. tests/recordings/README.md describes the fields. Values are taken
as the engine gave them, right or wrong; only what makes no sense as a recording raises `Malformed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, get_args

from attrs import frozen

from checkers.recorded_parts import PartReader, read_status
from checkers.strict_json import (
    Fields,
    Malformed,
    count,
    dict_of,
    flag,
    list_of,
    number,
    optional,
    text,
    whole,
)
from spec.actions import (
    ACTION_NAMES,
    Action,
    AddRequest,
    FinishRequests,
    GrammarReady,
    KVReceived,
    ResetPrefixCache,
    Schedule,
    SetPauseState,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.interface import (
    FINISH_REASON,
    EngineCoreOutput,
    KVLoad,
    NewRequest,
    Observation,
    PauseState,
    RepetitionDetection,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
    StreamingUpdate,
)


@frozen
class RecordedEvent:
    """One line: what was done to the engine, what it answered, and how it looked afterwards."""

    line: int
    """Its place in the file, from 1."""
    action: Action
    observation: Observation
    output: SchedulerOutput | None = None
    """Of `schedule`."""
    results: dict[int, list[EngineCoreOutput]] | None = None
    """Of `update_from_output`."""
    refusal: EngineCoreOutput | None = None
    """Of `add_request`."""
    is_reset: bool | None = None
    """Of `reset_prefix_cache`."""


class EventReader(PartReader):
    """Reads events in their order."""

    def __init__(self, config: SchedulerConfig, engine: str, in_flight_depth: int) -> None:
        super().__init__(config, engine)
        self.in_flight_depth = in_flight_depth
        # The requests of each step in flight, oldest first.
        self.in_flight: list[dict[str, int]] = []
        # The loads that have begun and not ended.
        self.loads: dict[str, KVLoad] = {}
        self.readers: dict[type, Callable[[int, Fields], RecordedEvent]] = {
            AddRequest: self._read_add,
            Schedule: self._read_schedule,
            UpdateFromOutput: self._read_update,
            FinishRequests: self._read_finish,
            SetPauseState: self._read_pause,
            GrammarReady: self._read_grammar,
            KVReceived: self._read_received,
            StreamingChunk: self._read_chunk,
            ResetPrefixCache: self._read_reset,
        }

    def read(self, line: int, raw: Any) -> RecordedEvent:
        """Reads one event."""
        fields = Fields(raw)
        kind = fields.take("event", text)
        readers = {ACTION_NAMES[action]: reader for action, reader in self.readers.items()}
        if kind not in readers:
            raise Malformed(f"event {kind!r} is unknown; known are {', '.join(readers)}")
        event = readers[kind](line, fields)
        fields.end()
        self.running = event.observation.running
        return event

    # ---- one reader for each kind of event -------------------------------------------------------

    def _read_add(self, line: int, fields: Fields) -> RecordedEvent:
        new = _read_request(fields)
        self._check_arrival(new)
        self.arrived.add(new.request_id)
        self.prompts[new.request_id] = new.prompt_token_ids
        refusal = fields.take_if_there("refusal", self._read_refusal)
        seen = self._read_observation(fields)
        return RecordedEvent(line, AddRequest(new), seen, refusal=refusal)

    def _read_schedule(self, line: int, fields: Fields) -> RecordedEvent:
        if len(self.in_flight) > self.in_flight_depth:
            raise Malformed(
                f"a step is scheduled while {len(self.in_flight)} are in flight, "
                f"in_flight_depth={self.in_flight_depth}; raise it in the header"
            )
        answer = fields.take("output", Fields)
        seen = self._read_observation(fields)
        output = self._read_output(answer, seen)
        self.in_flight.append(output.num_scheduled_tokens)
        self.loads.update(output.kv_loads)
        return RecordedEvent(line, Schedule(), seen, output=output)

    def _read_update(self, line: int, fields: Fields) -> RecordedEvent:
        if not self.in_flight:
            raise Malformed("no step is in flight that could return; record its schedule, too")
        step = self.in_flight.pop(0)
        sampled = self._read_rows(
            fields.take("sampled_token_ids", _rows), "sampled_token_ids", step
        )
        drafts = fields.take_if_there("draft_token_ids", _rows) or {}
        action = UpdateFromOutput(sampled, self._read_rows(drafts, "draft_token_ids", step))
        results = self._read_results(fields)
        return RecordedEvent(line, action, self._read_observation(fields), results=results)

    def _read_rows(
        self, rows: dict[str, list[int]], name: str, step: dict[str, int]
    ) -> dict[str, list[int]]:
        for request_id in rows:
            if request_id not in step:
                raise Malformed(
                    f"{name} names {request_id!r}, the oldest step in flight computes "
                    f"{', '.join(step) or 'nobody'}; steps return in the order of their schedule"
                )
        return rows

    def _read_finish(self, line: int, fields: Fields) -> RecordedEvent:
        request_ids = self._known(fields.take("request_ids", list_of(text)))
        if len(set(request_ids)) < len(request_ids):
            raise Malformed(f"request_ids {request_ids} names one twice; keep one of them")
        status = fields.take("status", _finished_status)
        for request_id in request_ids:
            self.prompts.pop(request_id, None)
        action = FinishRequests(tuple(request_ids), status)
        return RecordedEvent(line, action, self._read_observation(fields))

    def _read_pause(self, line: int, fields: Fields) -> RecordedEvent:
        action = SetPauseState(fields.take("pause_state", _pause_state))
        return RecordedEvent(line, action, self._read_observation(fields))

    def _read_grammar(self, line: int, fields: Fields) -> RecordedEvent:
        action = GrammarReady(self._take_known(fields))
        return RecordedEvent(line, action, self._read_observation(fields))

    def _read_received(self, line: int, fields: Fields) -> RecordedEvent:
        request_id, num_tokens = self._take_known(fields), fields.take("num_valid_tokens", count)
        load = self.loads.pop(request_id, None)
        if load is None:
            raise Malformed(
                f"nothing is loaded for {request_id!r}; record the schedule that begins its load"
            )
        is_whole = load.start <= num_tokens <= load.end and num_tokens % self.config.block_size == 0
        if num_tokens > 0 and not is_whole:
            raise Malformed(
                f"num_valid_tokens={num_tokens} of {request_id!r}, whose load brings tokens "
                f"{load.start} to {load.end} in blocks of {self.config.block_size}; "
                "count the whole blocks that are there, or write 0"
            )
        action = KVReceived(request_id, num_tokens)
        return RecordedEvent(line, action, self._read_observation(fields))

    def _read_chunk(self, line: int, fields: Fields) -> RecordedEvent:
        action = StreamingChunk(
            self._take_known(fields), fields.take("update", optional(_streaming_update))
        )
        return RecordedEvent(line, action, self._read_observation(fields))

    def _read_reset(self, line: int, fields: Fields) -> RecordedEvent:
        action = ResetPrefixCache(fields.take("reset_running_requests", flag))
        is_reset = fields.take("is_reset", flag)
        return RecordedEvent(line, action, self._read_observation(fields), is_reset=is_reset)

    # ---- what cannot be ------------------------------------------------------------------------

    def _check_arrival(self, new: NewRequest) -> None:
        name, num_tokens = new.request_id, len(new.prompt_token_ids)
        max_num_tokens = self.config.max_model_len - 1
        is_in_flight = name in self.loads or any(name in step for step in self.in_flight)
        if name in self.prompts or is_in_flight:
            raise Malformed(f"request {name!r} arrives twice; give each live request its own id")
        if not 0 < num_tokens <= max_num_tokens:
            raise Malformed(
                f"the prompt of {name!r} has {num_tokens} tokens, 1 to {max_num_tokens} fit "
                f"max_model_len={self.config.max_model_len}; change one of them"
            )
        if new.max_tokens < 1:
            raise Malformed(f"max_tokens={new.max_tokens} of {name!r} is below 1; raise it")
        if new.num_remote_tokens > num_tokens:
            raise Malformed(
                f"num_remote_tokens={new.num_remote_tokens} of {name!r} are more than the "
                f"{num_tokens} tokens of its prompt; name no more of them"
            )


def _read_request(fields: Fields) -> NewRequest:
    ignore_eos = fields.take("ignore_eos", flag)
    new = NewRequest(
        request_id=fields.take("request_id", text),
        prompt_token_ids=tuple(fields.take("prompt_token_ids", list_of(count))),
        max_tokens=fields.take("max_tokens", count),
        min_tokens=fields.take("min_tokens", count),
        eos_token_id=fields.take_if_there("eos_token_id", count),
        stop_token_ids=tuple(fields.take("stop_token_ids", list_of(count))),
        repetition_detection=fields.take_if_there("repetition_detection", _repetition_detection),
        priority=fields.take("priority", whole),
        arrival_time=fields.take("arrival_time", number),
        client_index=fields.take_if_there("client_index", count) or 0,
        cache_salt=fields.take_if_there("cache_salt", text),
        lora_id=fields.take_if_there("lora_id", count) or 0,
        structured_output=fields.take_if_there("structured_output", flag) or False,
        num_remote_tokens=fields.take_if_there("num_remote_tokens", count) or 0,
        resumable=fields.take_if_there("resumable", flag) or False,
    )
    if ignore_eos != (new.eos_token_id is None):
        raise Malformed(
            f"ignore_eos is {str(ignore_eos).lower()}, however eos_token_id is {new.eos_token_id}; "
            "name the end-of-sequence token only where it is not ignored"
        )
    return new


def _repetition_detection(value: Any, place: str) -> RepetitionDetection:
    entry = Fields(value, place)
    names = ("max_pattern_size", "min_pattern_size", "min_count")
    detection = RepetitionDetection(*[entry.take(name, count) for name in names])
    entry.end()
    return detection


def _streaming_update(value: Any, place: str) -> StreamingUpdate:
    entry = Fields(value, place)
    update = StreamingUpdate(
        prompt_token_ids=tuple(entry.take("prompt_token_ids", list_of(count))),
        max_tokens=entry.take("max_tokens", count),
        arrival_time=entry.take("arrival_time", number),
    )
    entry.end()
    return update


def _pause_state(value: Any, place: str) -> PauseState:
    name = text(value, place)
    if name not in get_args(PauseState):
        known = ", ".join(get_args(PauseState))
        raise Malformed(f"{place} {name!r} is unknown; known are {known}")
    return cast(PauseState, name)


def _rows(value: Any, place: str) -> dict[str, list[int]]:
    return dict_of(list_of(count))(value, place)


def _finished_status(value: Any, place: str) -> RequestStatus:
    status = RequestStatus[read_status(value, place)]
    if status not in FINISH_REASON:
        known = ", ".join(RequestStatus(final).name for final in FINISH_REASON)
        raise Malformed(f"{place} {status.name} does not end a request; these do: {known}")
    return status
