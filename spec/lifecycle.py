"""What happens to requests outside of planning: they arrive, become ready, get tokens, and end.

Entry point: `RequestLifecycle`, the half of the reference scheduler that `spec.scheduler` plans on.

Source: vllm/v1/core/sched/scheduler.py: add_request, finish_requests, update_from_output,
update_draft_token_ids, set_pause_state.
"""

from __future__ import annotations

from collections.abc import Iterable

from spec.block_pool import CountedBlockPool
from spec.deferred_frees import DeferredFrees
from spec.interface import (
    FINISH_REASON,
    REFUSED,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    PauseState,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
    StreamingUpdate,
)
from spec.request import Request
from spec.request_queue import RequestQueue, make_request_queue
from spec.slots import may_outgrow_pool
from spec.stop import check_stop
from spec.streaming import begin_turn, end_turn


class RequestLifecycle(DeferredFrees):
    """Who is alive, who waits and who runs; every event but planning."""

    def __init__(self, config: SchedulerConfig, block_pool: CountedBlockPool | None = None) -> None:
        super().__init__(config, block_pool)
        # Every live request, in the order of arrival.
        self.requests: dict[str, Request] = {}
        self.waiting = make_request_queue(config.policy)
        # Those who wait and hold KV: served before the others, so that what they hold is not kept
        # from those behind whom they would stand.
        self.kv_holding_waiting = make_request_queue(config.policy)
        self.running: list[Request] = []
        # Finished since the last `schedule`, in order; the next one tells the worker.
        self.finished_req_ids: list[str] = []
        self.pause_state: PauseState = "unpaused"
        # Streaming input: they wait for a chunk, and keep their seats.
        self.num_waiting_for_streaming_input = 0

    # ---- what may happen to a scheduler ----------------------------------------------------------

    def add_request(self, new: NewRequest) -> EngineCoreOutput | None:
        """Puts a request into the waiting queue; one that is refused is answered at once."""
        request = Request(new)
        if self.config.reject_too_large and may_outgrow_pool(self.config, request):
            return EngineCoreOutput(request.request_id, [], REFUSED)
        self.requests[request.request_id] = request
        self._enqueue_waiting_request(request)
        return None

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """Settles a step: appends the sampled tokens, stops requests, reports to each client."""
        self._note_returned(output)
        results: dict[int, list[EngineCoreOutput]] = {}
        for request_id, num_scheduled_tokens in output.num_scheduled_tokens.items():
            # Else it was aborted, or has stopped, while the step was in flight.
            if request_id in self.requests:
                if request_id in output.scheduled_spec_decode_tokens:
                    self._roll_back(
                        self.requests[request_id],
                        len(output.scheduled_spec_decode_tokens[request_id]),
                        len(result.sampled_token_ids[request_id]),
                    )
                self._settle(
                    self.requests[request_id],
                    num_scheduled_tokens,
                    result.sampled_token_ids[request_id],
                    results,
                )
        return results

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """Ends requests from outside, whatever they are doing; unknown ids are ignored."""
        for request_id in request_ids:
            if request_id in self.requests:
                self._finish(self.requests[request_id], finished_status)

    def update_draft_token_ids(self, draft_token_ids: dict[str, list[int]]) -> None:
        """Takes the drafts for the next step.

        They follow on a sampled token, so whoever is in the middle of its prompt has none; ids of
        the dead are ignored.
        """
        for request_id, token_ids in draft_token_ids.items():
            if request_id in self.requests:
                request = self.requests[request_id]
                if request.status == RequestStatus.RUNNING and not request.is_prefill_chunk:
                    request.set_drafts(token_ids)
                else:
                    request.set_drafts([])

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Stops planning, or goes on with it; running requests keep all that they have."""
        self.pause_state = pause_state

    def grammar_ready(self, request_id: str) -> None:
        """Lets a request whose grammar is compiled be admitted; unknown ids are ignored."""
        if request_id in self.requests:
            request = self.requests[request_id]
            if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
                request.status = RequestStatus.WAITING

    def streaming_update(self, request_id: str, update: StreamingUpdate | None) -> None:
        """Takes the next chunk of a resumable request, or closes it with None.

        One that has not answered the chunk before takes it later; unknown ids are ignored.
        """
        if request_id in self.requests:
            request = self.requests[request_id]
            if request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
                request.streaming_queue = (*request.streaming_queue, update)
            elif update is None:
                self._finish(request, RequestStatus.FINISHED_ABORTED)
            else:
                self._begin_turn(request, update)
                self._queue_of(request).update_rank(request)

    # ---- who waits where -------------------------------------------------------------------------

    def _queue_of(self, request: Request) -> RequestQueue:
        """Returns the queue that a request waits in: one for those who hold KV, one for the others.

        Source: vllm/v1/core/sched/scheduler.py: _holds_kv_blocks.
        """
        if request.num_blocks > 0:
            return self.kv_holding_waiting
        return self.waiting

    def _enqueue_waiting_request(self, request: Request) -> None:
        """Lets a request wait."""
        self._queue_of(request).add_request(request)

    def _next_queue(self) -> RequestQueue:
        """Returns the queue that is served next; in a pause of admission only those who hold KV."""
        if self.kv_holding_waiting.is_empty() and self.pause_state == "unpaused":
            return self.waiting
        return self.kv_holding_waiting

    def _leave_waiting(self, request: Request) -> None:
        """Takes a request out of its queue; it may have lost its KV since it joined."""
        if request in self.kv_holding_waiting.items:
            self.kv_holding_waiting.remove_request(request)
        else:
            self.waiting.remove_request(request)

    # ---- after a step ----------------------------------------------------------------------------

    def _roll_back(self, request: Request, num_draft_tokens: int, num_sampled_tokens: int) -> None:
        """Takes back what was computed for drafts that were rejected.

        What is sampled are the accepted drafts and one token more. If nothing is, the step says
        nothing of them; and a preemption has taken back all that a voided step had computed.
        """
        if num_sampled_tokens == 0 or request.num_stale_output_tokens > 0:
            return
        num_rejected = num_draft_tokens + 1 - num_sampled_tokens
        request.num_computed_tokens -= num_rejected
        if request.num_output_placeholders > 0:
            request.num_output_placeholders -= num_rejected

    def _settle(
        self,
        request: Request,
        num_scheduled_tokens: int,
        sampled_token_ids: list[int],
        results: dict[int, list[EngineCoreOutput]],
    ) -> None:
        """Takes a request's part of a step out of flight and delivers its tokens.

        In the middle of a prompt nothing is sampled, and nothing is reported.
        """
        request.num_in_flight_tokens -= num_scheduled_tokens
        is_stale = request.num_stale_output_tokens > 0
        is_dropped = is_stale and (
            request.drop_stale_output or not self.config.deliver_stale_output
        )
        if is_stale:
            request.num_stale_output_tokens -= num_scheduled_tokens
            if request.drop_stale_output and request.num_stale_output_tokens == 0:
                request.drop_stale_output = False
        if len(sampled_token_ids) > 0 and not is_dropped:
            result = self._deliver(request, sampled_token_ids, is_stale)
            results.setdefault(request.client_index, []).append(result)

    def _deliver(
        self, request: Request, sampled_token_ids: list[int], is_stale: bool
    ) -> EngineCoreOutput:
        """Appends the sampled tokens up to the one that stops the request.

        Stale tokens are appended as well, and may finish the request while it waits; they touch no
        counter of what is computed, and publish nothing.
        """
        status = request.status
        new_token_ids: list[int] = []
        for token_id in sampled_token_ids:
            if status == request.status:
                request.append_output_token(token_id)
                new_token_ids.append(token_id)
                status = check_stop(request, token_id, self.config)
        if not is_stale:
            # Accepted drafts beyond the one that stops it are not its tokens.
            self._count_as_known(
                request, len(sampled_token_ids), len(sampled_token_ids) - len(new_token_ids)
            )
        if status != request.status:
            num_trimmed_tokens = 0 if is_stale else len(sampled_token_ids) - len(new_token_ids)
            self._handle_stopped_request(request, status, num_trimmed_tokens)
        return EngineCoreOutput(request.request_id, new_token_ids, FINISH_REASON.get(status))

    def _count_as_known(
        self, request: Request, num_sampled_tokens: int, num_trimmed_tokens: int
    ) -> None:
        """Fills placeholders, and publishes what is known to be right now that drafts are verified.

        Without either, the next grant publishes it.
        """
        has_placeholders = request.num_output_placeholders > 0
        if has_placeholders:
            request.num_output_placeholders -= num_sampled_tokens
        if has_placeholders or (
            self.config.num_speculative_tokens > 0 and self.config.publish_verified_drafts
        ):
            num_tokens = request.num_computed_tokens - request.num_in_flight_tokens
            self._publish(request, num_tokens - num_trimmed_tokens)

    def _handle_stopped_request(
        self, request: Request, status: int, num_trimmed_tokens: int
    ) -> None:
        """Ends a request; of a resumable one that is not closed only its turn."""
        if request.resumable and request.streaming_queue[:1] != (None,):
            self._end_turn(request, num_trimmed_tokens)
        else:
            self._finish(request, status)

    def _end_turn(self, request: Request, num_trimmed_tokens: int) -> None:
        """Lets a resumable request wait for its next chunk, or go on with one that is there."""
        self._leave_queue(request)
        end_turn(request, num_trimmed_tokens)
        self.num_waiting_for_streaming_input += 1
        for update in request.streaming_queue[:1]:
            request.streaming_queue = request.streaming_queue[1:]
            assert update is not None, "a request that is closed ends instead"
            self._begin_turn(request, update)
        self._enqueue_waiting_request(request)

    def _begin_turn(self, request: Request, update: StreamingUpdate) -> None:
        self.num_waiting_for_streaming_input -= 1
        begin_turn(request, update)

    def _leave_queue(self, request: Request) -> None:
        """Takes a request out of the queue that its status says."""
        if request.status == RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self._leave_waiting(request)

    def _finish(self, request: Request, status: int) -> None:
        """Ends a request: it leaves its queue, and its blocks return to the pool.

        At once, unless somebody may still write them.
        """
        self._leave_queue(request)
        if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            self.num_waiting_for_streaming_input -= 1
        self._free_request_blocks(request)
        request.status = status
        del self.requests[request.request_id]
        self.finished_req_ids.append(request.request_id)

    def _publish(self, request: Request, num_tokens: int) -> None:
        """Makes the full blocks of the first `num_tokens` tokens findable, as far as known."""
        self.block_pool.cache_full_blocks(request, min(num_tokens, request.num_tokens))
