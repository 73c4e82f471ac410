"""The events of a recording: what each line must hold, and what it must know of those before it.

Entry point: `EventReader.read`. tests/recordings/README.md describes the fields. Values are taken
as the engine gave them, right or wrong; only what makes no sense as a recording raises `Malformed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from attrs import frozen

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
from spec.interface import (
    FINISH_REASON,
    CachedRequestData,
    EngineCoreOutput,
    NewRequest,
    NewRequestData,
    Observation,
    RequestObservation,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.model import Action, AddRequest, FinishRequests, Schedule, UpdateFromOutput

NOT_RECORDED = (
    "observation.block_contents",
    "observation.requests.num_stale_output_tokens",
    "output.new_block_ids_to_zero",
)
"""What the format has no place for."""
WITHOUT_VICTIMS = {"vllm 0.11.0"}
"""Releases whose output does not name the victims; their recordings hold an empty list."""
FINISH_REASON_BY_NUMBER = {"0": "stop", "1": "length", "2": "abort"}

Names = TypeVar("Names", bound=Iterable[str])


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


class EventReader:
    """Reads events in their order."""

    def __init__(self, config: SchedulerConfig, engine: str, in_flight_depth: int) -> None:
        self.config = config
        self.engine = engine
        self.in_flight_depth = in_flight_depth
        # Every id that ever arrived: an output that names another is a fault of the file.
        self.arrived: set[str] = set()
        self.prompts: dict[str, tuple[int, ...]] = {}
        # The requests of each step in flight, oldest first.
        self.in_flight: list[dict[str, int]] = []
        self.running: list[str] = []
        # For each field that may be null: whether it is told.
        self.is_told: dict[str, bool] = {}

    @property
    def absent_fields(self) -> tuple[str, ...]:
        """What the events read so far do not tell."""
        untold = [name for name, is_told in self.is_told.items() if not is_told]
        return tuple(sorted([*untold, *NOT_RECORDED]))

    def read(self, line: int, raw: Any) -> RecordedEvent:
        """Reads one event."""
        fields = Fields(raw)
        kind = fields.take("event", text)
        readers = {
            "add_request": self._read_add,
            "schedule": self._read_schedule,
            "update_from_output": self._read_update,
            "finish_requests": self._read_finish,
        }
        if kind not in readers:
            raise Malformed(f"event {kind!r} is unknown; known are {', '.join(readers)}")
        event = readers[kind](line, fields)
        fields.end()
        self.running = event.observation.running
        return event

    # ---- one reader for each kind of event -------------------------------------------------------

    def _read_add(self, line: int, fields: Fields) -> RecordedEvent:
        new = NewRequest(
            request_id=fields.take("request_id", text),
            prompt_token_ids=tuple(fields.take("prompt_token_ids", list_of(count))),
            max_tokens=fields.take("max_tokens", count),
            min_tokens=fields.take("min_tokens", count),
            stop_token_ids=tuple(fields.take("stop_token_ids", list_of(count))),
            priority=fields.take("priority", whole),
            arrival_time=fields.take("arrival_time", number),
        )
        if not fields.take("ignore_eos", flag):
            raise Malformed(
                "ignore_eos is false, however the format does not name the end-of-sequence token; "
                "write true, and that token among stop_token_ids"
            )
        self._check_arrival(new)
        self.arrived.add(new.request_id)
        self.prompts[new.request_id] = new.prompt_token_ids
        return RecordedEvent(line, AddRequest(new), self._read_observation(fields))

    def _read_schedule(self, line: int, fields: Fields) -> RecordedEvent:
        if len(self.in_flight) > self.in_flight_depth:
            raise Malformed(
                f"a step is scheduled while {len(self.in_flight)} are in flight, "
                f"in_flight_depth={self.in_flight_depth}; raise it in the header"
            )
        answer = fields.take("output", Fields)
        seen = self._read_observation(fields)
        output = SchedulerOutput(
            num_scheduled_tokens=self._known(answer.take("num_scheduled_tokens", dict_of(whole))),
            scheduled_new_reqs=self._read_new(answer),
            scheduled_cached_reqs=self._read_cached(answer),
            preempted_req_ids=self._read_victims(answer, seen),
            finished_req_ids=self._known(answer.take("finished_req_ids", list_of(text))),
            new_block_ids_to_zero=None,
        )
        answer.end()
        self.in_flight.append(output.num_scheduled_tokens)
        return RecordedEvent(line, Schedule(), seen, output=output)

    def _read_update(self, line: int, fields: Fields) -> RecordedEvent:
        if not self.in_flight:
            raise Malformed("no step is in flight that could return; record its schedule, too")
        step = self.in_flight.pop(0)
        sampled = fields.take("sampled_token_ids", dict_of(list_of(count)))
        for request_id in sampled:
            if request_id not in step:
                raise Malformed(
                    f"sampled_token_ids names {request_id!r}, the oldest step in flight computes "
                    f"{', '.join(step) or 'nobody'}; steps return in the order of their schedule"
                )
        outputs = fields.take("outputs", list_of(self._read_result))
        for output in outputs:
            if output.finish_reason is not None:
                self.prompts.pop(output.request_id, None)
        return RecordedEvent(
            line,
            UpdateFromOutput(sampled),
            self._read_observation(fields),
            # The format does not tell clients apart.
            results={0: outputs} if outputs else {},
        )

    def _read_finish(self, line: int, fields: Fields) -> RecordedEvent:
        request_ids = self._known(fields.take("request_ids", list_of(text)))
        if len(set(request_ids)) < len(request_ids):
            raise Malformed(f"request_ids {request_ids} names one twice; keep one of them")
        status = fields.take("status", _finished_status)
        for request_id in request_ids:
            self.prompts.pop(request_id, None)
        action = FinishRequests(tuple(request_ids), status)
        return RecordedEvent(line, action, self._read_observation(fields))

    # ---- parts of an answer ----------------------------------------------------------------------

    def _read_new(self, answer: Fields) -> dict[str, NewRequestData]:
        new: dict[str, NewRequestData] = {}
        for entry in answer.take("new", list_of(Fields)):
            request_id = self._take_once(entry, new)
            num_prompt_tokens = entry.take("num_prompt_tokens", whole)
            new[request_id] = NewRequestData(
                self._make_prompt(request_id, num_prompt_tokens),
                entry.take("num_computed_tokens", whole),
                entry.take("block_ids", list_of(whole)),
            )
            entry.end()
        return new

    def _make_prompt(self, request_id: str, num_prompt_tokens: int) -> tuple[int, ...]:
        """The prompt that arrived; a meaningless one if the worker is told another length."""
        prompt = self.prompts.get(request_id, ())
        return prompt if len(prompt) == num_prompt_tokens else (-1,)

    def _read_cached(self, answer: Fields) -> dict[str, CachedRequestData]:
        cached: dict[str, CachedRequestData] = {}
        for entry in answer.take("cached", list_of(Fields)):
            cached[self._take_once(entry, cached)] = CachedRequestData(
                entry.take("resumed", flag),
                entry.take("new_block_ids", list_of(whole)),
                entry.take("num_computed_tokens", whole),
            )
            entry.end()
        return cached

    def _take_once(self, entry: Fields, others: dict[str, Any]) -> str:
        request_id = self._take_known(entry)
        if request_id in others:
            raise Malformed(f"output names {request_id!r} twice in one list; keep one of them")
        return request_id

    def _read_victims(self, answer: Fields, seen: Observation) -> list[str]:
        """The victims in the order of their preemption: the last stands before those ahead of it.

        The recorder sorts them by name. Where a release does not name them, they are who ran and
        now waits.
        """
        told = answer.take("preempted_req_ids", optional(list_of(text)))
        if told and self.engine in WITHOUT_VICTIMS:
            raise Malformed(f"output.preempted_req_ids is {told}, {self.engine} has no such field")
        if self.engine in WITHOUT_VICTIMS:
            told = None
        self._note_told("output.preempted_req_ids", told)
        if told is None:
            return [name for name in reversed(seen.waiting) if name in self.running]
        ranks = {name: -index for index, name in enumerate(seen.waiting)}
        return sorted(self._known(told), key=lambda name: ranks.get(name, 1))

    def _read_result(self, raw: Any, place: str) -> EngineCoreOutput:
        entry = Fields(raw, place)
        result = EngineCoreOutput(
            self._take_known(entry),
            entry.take("new_token_ids", list_of(count)),
            entry.take("finish_reason", optional(_finish_reason)),
        )
        entry.end()
        return result

    # ---- observations ----------------------------------------------------------------------------

    def _read_observation(self, fields: Fields) -> Observation:
        entry = fields.take("observation", Fields)
        seen = Observation(
            running=self._known(entry.take("running", list_of(text))),
            waiting=self._known(entry.take("waiting", list_of(text))),
            requests=self._known(entry.take("requests", dict_of(self._read_request))),
            num_free_blocks=entry.take("num_free_blocks", whole),
            free_block_ids=entry.take("free_block_ids", list_of(whole)),
            ref_cnt=entry.take("ref_cnt", _ref_cnt),
            cached_block_ids=entry.take("cached_block_ids", list_of(whole)),
            finished_req_ids=self._known(entry.take("finished_req_ids", list_of(text))),
        )
        entry.end()
        return seen

    def _read_request(self, raw: Any, place: str) -> RequestObservation:
        entry = Fields(raw, place)
        request = RequestObservation(
            status=entry.take("status", _status),
            num_prompt_tokens=entry.take("num_prompt_tokens", whole),
            num_tokens=entry.take("num_tokens", whole),
            num_output_tokens=entry.take("num_output_tokens", whole),
            num_computed_tokens=entry.take("num_computed_tokens", whole),
            num_preemptions=self._take_optional(entry, "num_preemptions"),
            num_output_placeholders=self._take_optional(entry, "num_output_placeholders"),
            num_in_flight_tokens=self._take_optional(entry, "num_in_flight_tokens"),
            block_ids=entry.take("block_ids", list_of(whole)),
        )
        entry.end()
        return request

    def _take_optional(self, entry: Fields, name: str) -> int | None:
        value = entry.take(name, optional(whole))
        self._note_told(f"observation.requests.{name}", value)
        return value

    def _note_told(self, name: str, value: object) -> None:
        """A release has a field or has it not, so it is null everywhere or nowhere."""
        if self.is_told.setdefault(name, value is not None) != (value is not None):
            raise Malformed(f"{name} is null in some places only; write its value, or null in all")

    # ---- names -----------------------------------------------------------------------------------

    def _check_arrival(self, new: NewRequest) -> None:
        name, num_tokens = new.request_id, len(new.prompt_token_ids)
        max_num_tokens = self.config.max_model_len - 1
        if name in self.prompts or any(name in step for step in self.in_flight):
            raise Malformed(f"request {name!r} arrives twice; give each live request its own id")
        if not 0 < num_tokens <= max_num_tokens:
            raise Malformed(
                f"the prompt of {name!r} has {num_tokens} tokens, 1 to {max_num_tokens} fit "
                f"max_model_len={self.config.max_model_len}; change one of them"
            )
        if new.max_tokens < 1:
            raise Malformed(f"max_tokens={new.max_tokens} of {name!r} is below 1; raise it")

    def _take_known(self, entry: Fields) -> str:
        request_id = entry.take("request_id", text)
        self._known([request_id])
        return request_id

    def _known(self, names: Names) -> Names:
        """Passes names on if all of them have arrived."""
        for name in names:
            if name not in self.arrived:
                raise Malformed(f"request {name!r} never arrived; record its add_request, too")
        return names


def _status(value: Any, place: str) -> str:
    name = text(value, place)
    if name not in RequestStatus.__members__:
        known = ", ".join(RequestStatus.__members__)
        raise Malformed(f"{place} {name!r} is unknown; known are {known}")
    return name


def _finished_status(value: Any, place: str) -> RequestStatus:
    status = RequestStatus[_status(value, place)]
    if status not in FINISH_REASON:
        known = ", ".join(RequestStatus(final).name for final in FINISH_REASON)
        raise Malformed(f"{place} {status.name} does not end a request; these do: {known}")
    return status


def _finish_reason(value: Any, place: str) -> str:
    """The reason as a word; it may be written as the number that vLLM gives it."""
    name = text(value, place)
    reason = FINISH_REASON_BY_NUMBER.get(name, name)
    if reason not in FINISH_REASON.values():
        known = ", ".join([*FINISH_REASON_BY_NUMBER, *FINISH_REASON.values()])
        raise Malformed(f"{place} {name!r} is unknown; known are {known}")
    return reason


def _ref_cnt(value: Any, place: str) -> dict[int, int]:
    """Counts by block; the keys of a JSON object are texts."""
    counts = dict_of(whole)(value, place)
    for block_id in counts:
        if not (block_id.isdecimal() and block_id == str(int(block_id))):
            raise Malformed(f"{place} names block {block_id!r}; name blocks by whole numbers")
    return {int(block_id): ref_cnt for block_id, ref_cnt in counts.items()}
