"""The parts of recorded events: what an engine answered, and how it looked afterwards.

Entry point: `PartReader`, on which `checkers.recorded_events` reads whole events. A part that a
file may leave out is taken as not told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from checkers.strict_json import (
    Fields,
    Malformed,
    count,
    dict_of,
    flag,
    list_of,
    optional,
    text,
    whole,
)
from spec.interface import (
    FINISH_REASON,
    REFUSED,
    BlockContent,
    CachedRequestData,
    EngineCoreOutput,
    KVLoad,
    NewRequestData,
    Observation,
    RequestObservation,
    RequestStatus,
    RetainedBlocks,
    SchedulerConfig,
    SchedulerOutput,
)

OPTIONAL = (
    "observation.block_contents",
    "observation.requests.num_draft_tokens",
    "observation.requests.num_stale_output_tokens",
    "output.new_block_ids_to_zero",
)
"""What a file may leave out; then everywhere."""
WITHOUT_VICTIMS = {"vllm 0.11.0"}
"""Releases whose output does not name the victims; their recordings hold an empty list."""
FINISH_REASON_BY_NUMBER = {"0": "stop", "1": "length", "2": "abort"}

T = TypeVar("T")
Names = TypeVar("Names", bound=Iterable[str])


class PartReader:
    """Reads parts of events, and knows what the events before them said."""

    def __init__(self, config: SchedulerConfig, engine: str) -> None:
        self.config = config
        self.engine = engine
        # Every id that ever arrived: an output that names another is a fault of the file.
        self.arrived: set[str] = set()
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.running: list[str] = []
        # For each field that may be null or left out: whether it is told.
        self.is_told: dict[str, bool] = {}

    @property
    def absent_fields(self) -> tuple[str, ...]:
        """What the events read so far do not tell."""
        untold = [name for name, is_told in self.is_told.items() if not is_told]
        return tuple(sorted({*untold, *[n for n in OPTIONAL if n not in self.is_told]}))

    # ---- answers ---------------------------------------------------------------------------------

    def _read_output(self, answer: Fields, seen: Observation) -> SchedulerOutput:
        output = SchedulerOutput(
            num_scheduled_tokens=self._known(answer.take("num_scheduled_tokens", dict_of(whole))),
            scheduled_new_reqs=self._read_new(answer),
            scheduled_cached_reqs=self._read_cached(answer),
            preempted_req_ids=self._read_victims(answer, seen),
            scheduled_spec_decode_tokens=self._known(
                answer.take_if_there("scheduled_spec_decode_tokens", dict_of(list_of(whole))) or {}
            ),
            finished_req_ids=self._known(answer.take("finished_req_ids", list_of(text))),
            kv_loads=self._known(answer.take_if_there("kv_loads", dict_of(_kv_load)) or {}),
            new_block_ids_to_zero=answer.take_if_there("new_block_ids_to_zero", list_of(whole)),
        )
        self._note_told("output.new_block_ids_to_zero", output.new_block_ids_to_zero)
        answer.end()
        return output

    def _read_new(self, answer: Fields) -> dict[str, NewRequestData]:
        new: dict[str, NewRequestData] = {}
        for entry in answer.take("new", list_of(Fields)):
            request_id = self._take_once(entry, new)
            num_prompt_tokens = entry.take("num_prompt_tokens", whole)
            prompt_token_ids = entry.take_if_there("prompt_token_ids", list_of(count))
            new[request_id] = NewRequestData(
                self._make_prompt(request_id, num_prompt_tokens, prompt_token_ids),
                entry.take("num_computed_tokens", whole),
                entry.take("block_ids", list_of(whole)),
            )
            entry.end()
        return new

    def _make_prompt(
        self, request_id: str, num_prompt_tokens: int, told: list[int] | None
    ) -> tuple[int, ...]:
        """The prompt that arrived, or as told; a meaningless one if its length is another."""
        prompt = self.prompts.get(request_id, ()) if told is None else tuple(told)
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

    def _read_results(self, fields: Fields) -> dict[int, list[EngineCoreOutput]]:
        """What each client is sent; without its number it is the first."""
        results: dict[int, list[EngineCoreOutput]] = {}
        for client_index, output in fields.take("outputs", list_of(self._read_result)):
            results.setdefault(client_index, []).append(output)
        return results

    def _read_result(self, raw: Any, place: str) -> tuple[int, EngineCoreOutput]:
        entry = Fields(raw, place)
        client_index = entry.take_if_there("client_index", count) or 0
        return client_index, self._read_sent(entry)

    def _read_refusal(self, raw: Any, place: str) -> EngineCoreOutput:
        return self._read_sent(Fields(raw, place))

    def _read_sent(self, entry: Fields) -> EngineCoreOutput:
        sent = EngineCoreOutput(
            self._take_known(entry),
            entry.take("new_token_ids", list_of(count)),
            entry.take("finish_reason", optional(_finish_reason)),
        )
        entry.end()
        if sent.finish_reason is not None:
            self.prompts.pop(sent.request_id, None)
        return sent

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
            block_contents=entry.take_if_there("block_contents", _block_contents),
            retained=entry.take_if_there("retained", list_of(self._read_retained)) or [],
            deferred_loads=self._known(entry.take_if_there("deferred_loads", dict_of(whole)) or {}),
        )
        self._note_told("observation.block_contents", seen.block_contents)
        entry.end()
        return seen

    def _read_request(self, raw: Any, place: str) -> RequestObservation:
        entry = Fields(raw, place)
        request = RequestObservation(
            status=entry.take("status", read_status),
            num_prompt_tokens=entry.take("num_prompt_tokens", whole),
            num_tokens=entry.take("num_tokens", whole),
            num_output_tokens=entry.take("num_output_tokens", whole),
            num_computed_tokens=entry.take("num_computed_tokens", whole),
            num_preemptions=self._take_optional(entry, "num_preemptions"),
            num_output_placeholders=self._take_optional(entry, "num_output_placeholders"),
            num_in_flight_tokens=self._take_optional(entry, "num_in_flight_tokens"),
            block_ids=entry.take("block_ids", list_of(whole)),
            num_stale_output_tokens=entry.take_if_there("num_stale_output_tokens", whole),
            num_draft_tokens=entry.take_if_there("num_draft_tokens", whole),
        )
        for name in ("num_stale_output_tokens", "num_draft_tokens"):
            self._note_told(f"observation.requests.{name}", getattr(request, name))
        entry.end()
        return request

    def _read_retained(self, raw: Any, place: str) -> RetainedBlocks:
        entry = Fields(raw, place)
        retained = RetainedBlocks(
            block_ids=entry.take("block_ids", list_of(whole)),
            num_steps=entry.take("num_steps", whole),
            request_id=entry.take("request_id", optional(text)),
        )
        if retained.request_id is not None:
            self._known([retained.request_id])
        entry.end()
        return retained

    def _take_optional(self, entry: Fields, name: str) -> int | None:
        value = entry.take(name, optional(whole))
        self._note_told(f"observation.requests.{name}", value)
        return value

    def _note_told(self, name: str, value: object) -> None:
        """A release has a field or has it not, so it is null everywhere or nowhere."""
        if self.is_told.setdefault(name, value is not None) != (value is not None):
            raise Malformed(f"{name} is null in some places only; write its value, or null in all")

    # ---- names -----------------------------------------------------------------------------------

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


def read_status(value: Any, place: str) -> str:
    """The name of a status."""
    name = text(value, place)
    if name not in RequestStatus.__members__:
        known = ", ".join(RequestStatus.__members__)
        raise Malformed(f"{place} {name!r} is unknown; known are {known}")
    return name


def _finish_reason(value: Any, place: str) -> str:
    """The reason as a word; it may be written as the number that vLLM gives it."""
    name = text(value, place)
    reason = FINISH_REASON_BY_NUMBER.get(name, name)
    reasons = [*FINISH_REASON.values(), REFUSED]
    if reason not in reasons:
        known = ", ".join([*FINISH_REASON_BY_NUMBER, *reasons])
        raise Malformed(f"{place} {name!r} is unknown; known are {known}")
    return reason


def _kv_load(value: Any, place: str) -> KVLoad:
    entry = Fields(value, place)
    load = KVLoad(
        block_ids=entry.take("block_ids", list_of(whole)),
        start=entry.take("start", whole),
        end=entry.take("end", whole),
    )
    entry.end()
    return load


def _ref_cnt(value: Any, place: str) -> dict[int, int]:
    return _by_block(dict_of(whole)(value, place), place)


def _block_contents(value: Any, place: str) -> dict[int, BlockContent]:
    return _by_block(dict_of(_block_content)(value, place), place)


def _block_content(value: Any, place: str) -> BlockContent:
    entry = Fields(value, place)
    cache_key = entry.take("cache_key", optional(text))
    token_ids = entry.take("token_ids", list_of(count))
    entry.end()
    return cache_key, tuple(token_ids)


def _by_block(values: dict[str, T], place: str) -> dict[int, T]:
    """Values by block; the keys of a JSON object are texts."""
    for block_id in values:
        if not (block_id.isdecimal() and block_id == str(int(block_id))):
            raise Malformed(f"{place} names block {block_id!r}; name blocks by whole numbers")
    return {int(block_id): value for block_id, value in values.items()}
