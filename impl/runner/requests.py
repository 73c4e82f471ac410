"""What the runner knows of its requests: only what the new/cached diff has told it.

Entry point: `RequestStates.follow`. The runner never asks the scheduler. What is wrong in a diff
therefore shows here: as a `RunnerError` if the step makes no sense, else as wrong data.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from attrs import define, field

from impl.runner.errors import RunnerError
from spec.interface import CachedRequestData, NewRequestData, SchedulerOutput


@define(eq=False)
class RunnerRequest:
    """A request as the runner sees it; compared by identity."""

    request_id: str
    token_ids: list[int]
    """The prompt, and what the runner itself has sampled; so a step may run that was scheduled
    before the token of the one before it was known."""
    block_ids: list[int]
    num_computed_tokens: int
    is_preempted: bool = False
    num_rejected: list[int] = field(factory=list)
    """By step since it was admitted, where drafts were; the scheduler learns of them later."""


class RequestStates:
    """All requests that the runner has been told of, and not yet to forget."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.requests: dict[str, RunnerRequest] = {}

    def __getitem__(self, request_id: str) -> RunnerRequest:
        return self.requests[request_id]

    def follow(self, output: SchedulerOutput) -> None:
        """Brings requests to where they are at the start of a step.

        Raises `RunnerError` if the step cannot be the next one.
        """
        self._forget(output.finished_req_ids)
        self._preempt(output.preempted_req_ids)
        for request_id, new in output.scheduled_new_reqs.items():
            self._add(request_id, new)
        for request_id, cached in output.scheduled_cached_reqs.items():
            request = self._get_known(request_id)
            if cached.resumed:
                self._resume(request, cached)
            else:
                self._go_on(request, cached)
        self._check_scheduled(output)

    # ---- the diff --------------------------------------------------------------------------------

    def _forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            # One that was aborted before it ever ran is named, too.
            self.requests.pop(request_id, None)

    def _preempt(self, request_ids: Iterable[str]) -> None:
        """Lets requests keep their tokens; their blocks are no longer theirs."""
        for request_id in request_ids:
            self._get_known(request_id).is_preempted = True

    def _add(self, request_id: str, new: NewRequestData) -> None:
        """Begins a request, or the next turn of one whose prompt arrives in chunks."""
        known = self.requests.get(request_id)
        num_computed_tokens = new.num_computed_tokens
        if known is not None and (
            list(new.prompt_token_ids[:num_computed_tokens])
            != known.token_ids[:num_computed_tokens]
        ):
            raise RunnerError(
                f"{request_id} is sent as new with {num_computed_tokens} tokens computed, however "
                "the runner knows it with others"
            )
        self.requests[request_id] = RunnerRequest(
            request_id, list(new.prompt_token_ids), list(new.block_ids), num_computed_tokens
        )

    def _resume(self, request: RunnerRequest, cached: CachedRequestData) -> None:
        """Replaces the whole table; prompt and output up to here are computed anew."""
        request.block_ids = list(cached.new_block_ids)
        request.num_computed_tokens = cached.num_computed_tokens
        request.is_preempted = False
        request.num_rejected = []

    def _go_on(self, request: RunnerRequest, cached: CachedRequestData) -> None:
        """Adds new blocks to the table."""
        if request.is_preempted:
            raise RunnerError(
                f"{request.request_id} goes on after its preemption without being resumed"
            )
        self._check_start(request, cached.num_computed_tokens)
        request.block_ids += cached.new_block_ids

    # ---- what a step must be ---------------------------------------------------------------------

    def _get_known(self, request_id: str) -> RunnerRequest:
        if request_id not in self.requests:
            raise RunnerError(f"{request_id} is not sent as new, however the runner never saw it")
        return self.requests[request_id]

    def _check_start(self, request: RunnerRequest, start: int) -> None:
        """Raises unless a request goes on where it is.

        A step may be scheduled before it is known that drafts of the steps before it were rejected.
        """
        starts = accumulate(reversed(request.num_rejected), initial=request.num_computed_tokens)
        if start not in starts:
            raise RunnerError(
                f"{request.request_id} is told to go on at token {start}, "
                f"however the runner has computed {request.num_computed_tokens}"
            )

    def _check_scheduled(self, output: SchedulerOutput) -> None:
        """Raises if the diff and the scheduled tokens do not belong together."""
        told = {*output.scheduled_new_reqs, *output.scheduled_cached_reqs}
        if told != set(output.num_scheduled_tokens):
            raise RunnerError(
                f"the diff names {sorted(told)}, "
                f"however scheduled are {sorted(output.num_scheduled_tokens)}"
            )
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            drafts = output.scheduled_spec_decode_tokens.get(request_id, [])
            request = self.requests[request_id]
            self._check_tokens(request, num_tokens, drafts)
            self._check_blocks(request, num_tokens)

    def _check_tokens(self, request: RunnerRequest, num_tokens: int, drafts: list[int]) -> None:
        num_left = len(request.token_ids) + len(drafts) - request.num_computed_tokens
        if not 0 < num_tokens <= num_left:
            raise RunnerError(
                f"{request.request_id} is to compute {num_tokens} tokens from "
                f"{request.num_computed_tokens} on, however {num_left} are known and drafted"
            )
        if drafts and num_tokens < num_left:
            raise RunnerError(
                f"{request.request_id} is to verify {len(drafts)} drafts, however the step ends "
                f"{num_left - num_tokens} tokens before the last of them"
            )

    def _check_blocks(self, request: RunnerRequest, num_tokens: int) -> None:
        end, num_slots = (
            request.num_computed_tokens + num_tokens,
            len(request.block_ids) * self.block_size,
        )
        if end > num_slots:
            raise RunnerError(
                f"{request.request_id} runs up to token {end}, "
                f"however its block table has {num_slots} slots"
            )
        for block_id in request.block_ids:
            if not 0 < block_id <= self.num_blocks:
                raise RunnerError(
                    f"{request.request_id} holds block {block_id}, "
                    f"however there are the blocks 1 to {self.num_blocks}"
                )
