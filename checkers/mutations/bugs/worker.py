"""Bugs in what the worker is told."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method
from spec.interface import RequestStatus


@mutation(
    target="impl.scheduler:FastScheduler._admit",
    setting="prefix",
    caught_by="diff_is_sufficient",
    source="vllm-ascend #2714",
)
def a_new_request_is_sent_without_its_hit_blocks(original: Method) -> Method:
    """The worker is told the new blocks of a new request, and not those that it hit."""

    def _admit(self: Any, request: Any, start: int, num_new_tokens: int, hit: Any) -> None:
        original(self, request, start, num_new_tokens, hit)
        new = self.output.scheduled_new_reqs.get(request.request_id)
        if new is not None:
            new.block_ids = new.block_ids[len(hit.block_ids) :]

    return _admit


@mutation(
    target="impl.scheduler:FastScheduler._admit",
    setting="tiny",
    caught_by="steps_read_what_was_written",
    source="nano-vllm #145",
)
def a_resumed_request_computes_its_last_token_only(original: Method) -> Method:
    """A request that comes back from a preemption goes on as if its blocks still held its KV."""

    def _admit(self: Any, request: Any, start: int, num_new_tokens: int, hit: Any) -> None:
        if request.status == RequestStatus.PREEMPTED:
            start, num_new_tokens = request.num_tokens - 1, 1
        original(self, request, start, num_new_tokens, hit)

    return _admit


@mutation(
    target="impl.scheduler:FastScheduler._end_step",
    setting="plain",
    caught_by="finished_ids_are_told_once",
)
def finished_ids_are_told_again(original: Method) -> Method:
    """The worker is told in every step who has finished since the start."""

    def _end_step(self: Any) -> Any:
        output = original(self)
        self.finished_req_ids = list(output.finished_req_ids)
        return output

    return _end_step


@mutation(
    target="impl.scheduler:FastScheduler._end_step",
    setting="pauses",
    caught_by="finished_ids_are_told_once",
    source="vLLM #6266",
)
def an_idle_step_swallows_finished_ids(original: Method) -> Method:
    """A step that computes nothing does not name who has finished, and forgets them."""

    def _end_step(self: Any) -> Any:
        output = original(self)
        if not output.num_scheduled_tokens:
            output.finished_req_ids = []
        return output

    return _end_step
