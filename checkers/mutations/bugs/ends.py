"""Bugs at the end of a step or a request: outputs, stops, aborts."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import attrs

from checkers.mutations.registry import mutation
from checkers.planting import Method
from spec.interface import EngineCoreOutput, RequestStatus, StopOrder


@mutation(
    target="impl.scheduler:FastScheduler.update_from_output",
    setting="plain",
    caught_by="outputs_go_to_the_living",
    source="SGLang #34149",
)
def an_aborted_request_gets_output(original: Method) -> Method:
    """A request that was aborted while its step ran is sent an output all the same."""

    def update_from_output(self: Any, output: Any, result: Any) -> Any:
        gone = [name for name in output.num_scheduled_tokens if name not in self.requests]
        results = original(self, output, result)
        for name in gone:
            results.setdefault(0, []).append(EngineCoreOutput(name, []))
        return results

    return update_from_output


@mutation(
    target="impl.scheduler:FastScheduler.add_request",
    setting="stops",
    caught_by="stops_are_in_order",
)
def an_end_of_sequence_of_0_is_none(original: Method) -> Method:
    """A request whose end of sequence is token 0 has none."""

    def add_request(self: Any, new: Any) -> Any:
        return original(self, attrs.evolve(new, eos_token_id=new.eos_token_id or None))

    return add_request


@mutation(
    target="impl.scheduler:FastScheduler.update_from_output",
    setting="stops",
    caught_by="outputs_go_to_the_living",
)
def outputs_go_to_the_first_client(original: Method) -> Method:
    """All outputs are filed under client 0, whoever owns the request."""

    def update_from_output(self: Any, output: Any, result: Any) -> Any:
        results = original(self, output, result)
        sent = [item for outputs in results.values() for item in outputs]
        return {0: sent} if sent else {}

    return update_from_output


@mutation(
    target="impl.lifecycle:check_stop",
    setting="stops",
    caught_by="stops_are_in_order",
    source="vLLM #26317",
)
def min_tokens_comes_before_length(original: Method) -> Method:
    """A request that is too short goes on, though its context is full."""

    def check_stop(request: Any, stop_order: StopOrder) -> RequestStatus | None:
        if request.num_output_tokens < request.min_tokens:
            return None
        status: RequestStatus | None = original(request, stop_order)
        return status

    return check_stop


@mutation(
    target="impl.scheduler:FastScheduler._settle",
    setting="async",
    changes=("deliver_stale_output=false",),
    caught_by="token_counts_follow_the_client",
    source="TRT-LLM #10943",
)
def a_dropped_token_is_kept(original: Method) -> Method:
    """A token of a voided step is dropped, and its request is one token too long all the same."""

    def _settle(self: Any, request: Any, num_scheduled_tokens: int, sampled: list[int]) -> Any:
        is_stale = request.num_stale_output_tokens > 0
        sent = original(self, request, num_scheduled_tokens, sampled)
        if is_stale:
            request.token_ids.extend(sampled)
            request.num_tokens += len(sampled)
        return sent

    return _settle


@mutation(
    target="impl.scheduler:FastScheduler.finish_requests",
    setting="plain",
    caught_by="an_abort_ends_at_once",
)
def an_abort_stops_at_who_has_ended(original: Method) -> Method:
    """Of requests that are aborted together, those named after one that has ended go on."""

    def finish_requests(self: Any, request_ids: Any, finished_status: RequestStatus) -> None:
        original(self, takewhile(self.requests.__contains__, request_ids), finished_status)

    return finish_requests


@mutation(
    target="impl.scheduler:FastScheduler._settle",
    setting="deep-drafts",
    caught_by="stops_are_in_order",
)
def only_the_last_of_a_row_is_a_stop_token(original: Method) -> Method:
    """A stop token among accepted drafts is overlooked, and the text goes on behind it."""

    def _settle(self: Any, request: Any, num_scheduled_tokens: int, sampled: list[int]) -> Any:
        stop_token_ids = request.stop_token_ids
        request.stop_token_ids = stop_token_ids.intersection(sampled[-1:])
        sent = original(self, request, num_scheduled_tokens, sampled)
        request.stop_token_ids = stop_token_ids
        return sent

    return _settle
