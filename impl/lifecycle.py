"""What happens to the requests of our engine outside of planning: arrivals, results, ends.

Entry point: `RequestLifecycle`, the half of the engine that `impl.scheduler` plans on.
"""

from __future__ import annotations

from collections.abc import Iterable

from impl.deferred_frees import DeferredFrees
from impl.request import Rank, Request, make_request
from impl.request_queue import RequestQueue, make_request_queue
from impl.stop import check_stop
from impl.streaming import begin_turn, end_turn
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


class RequestLifecycle(DeferredFrees):
    """Who is alive, who waits and who runs; every event but planning."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        # Every live request, in the order of arrival.
        self.requests: dict[str, Request] = {}
        self.waiting = make_request_queue(config.policy)
        # Those who wait and hold KV; they are served first.
        self.kv_holding_waiting = make_request_queue(config.policy)
        self.running: list[Request] = []
        # Finished since the last `schedule`, in order; the next one tells the worker.
        self.finished_req_ids: list[str] = []
        self.pause_state: PauseState = "unpaused"
        # Streaming input: they wait for a chunk, and keep their seats.
        self.num_waiting_for_streaming_input = 0
        self.forgets_drafts = (
            config.async_scheduling
            and config.num_speculative_tokens > 0
            and not config.keep_unscheduled_drafts
        )
        self.publishes_verified_drafts = (
            config.publish_verified_drafts and config.num_speculative_tokens > 0
        )

    # ---- what may happen to a scheduler ----------------------------------------------------------

    def add_request(self, new: NewRequest) -> EngineCoreOutput | None:
        """Puts a request into the waiting queue; one that is refused is answered at once."""
        request = make_request(new, self.config.max_model_len)
        if self.config.reject_too_large and self._may_outgrow_pool(request):
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
        requests, sampled = self.requests, result.sampled_token_ids
        drafts = output.scheduled_spec_decode_tokens
        num_finished = len(self.finished_req_ids)
        for request_id, num_scheduled_tokens in output.num_scheduled_tokens.items():
            request = requests.get(request_id)
            if request is None:
                continue  # It was aborted, or has stopped, while the step was in flight.
            if request_id in drafts:
                self._roll_back(request, len(drafts[request_id]), len(sampled[request_id]))
            sent = self._settle(request, num_scheduled_tokens, sampled[request_id])
            if sent is None:
                continue
            if request.client_index in results:
                results[request.client_index].append(sent)
            else:
                results[request.client_index] = [sent]
        if len(self.finished_req_ids) > num_finished:
            self._close_gaps()
        return results

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """Ends requests from outside, whatever they are doing; unknown ids are ignored."""
        for request_id in request_ids:
            if request_id in self.requests:
                self._finish(self.requests[request_id], finished_status)
        self._close_gaps()

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Stops planning, or goes on with it; running requests keep all that they have."""
        self.pause_state = pause_state

    def grammar_ready(self, request_id: str) -> None:
        """Lets a request whose grammar is compiled be admitted; unknown ids are ignored."""
        request = self.requests.get(request_id)
        if request and request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            request.status = RequestStatus.WAITING

    def streaming_update(self, request_id: str, update: StreamingUpdate | None) -> None:
        """Takes the next chunk of a resumable request, now or later, or closes it with None."""
        request = self.requests.get(request_id)
        if request is None:
            return
        if request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
            request.streaming_queue.append(update)
        elif update is None:
            self._finish(request, RequestStatus.FINISHED_ABORTED)
        else:
            self._begin_turn(request, update)
            self._queue_of(request).update_rank(request, _rank_of(request, update))

    def update_draft_token_ids(self, draft_token_ids: dict[str, list[int]]) -> None:
        """Takes the drafts for the next step; nobody in the middle of its prompt has any."""
        for request_id, token_ids in draft_token_ids.items():
            request = self.requests.get(request_id)
            if request is not None:
                is_running = request.status == RequestStatus.RUNNING
                may_draft = is_running and not request.is_prefill_chunk
                request.draft_token_ids = list(token_ids) if may_draft else []

    # ---- who waits where -------------------------------------------------------------------------

    def _queue_of(self, request: Request) -> RequestQueue:
        """Returns the queue that a request waits in, which depends on whether it holds KV."""
        return self.kv_holding_waiting if request.block_ids else self.waiting

    def _enqueue_waiting_request(self, request: Request) -> None:
        """Lets a request wait."""
        self._queue_of(request).add_request(request)

    def _next_queue(self) -> RequestQueue:
        """Returns the queue that is served next; in a pause of admission only those who hold KV."""
        if self.kv_holding_waiting or self.pause_state != "unpaused":
            return self.kv_holding_waiting
        return self.waiting

    def _leave_waiting(self, request: Request) -> None:
        """Takes a request out of its queue; it may have lost its KV since it joined."""
        is_holding = request in self.kv_holding_waiting
        (self.kv_holding_waiting if is_holding else self.waiting).remove_request(request)

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
        self, request: Request, num_scheduled_tokens: int, sampled_token_ids: list[int]
    ) -> EngineCoreOutput | None:
        """Takes a request's part of a step out of flight and delivers its tokens.

        In the middle of a prompt nothing is sampled, and nothing is reported.
        """
        request.num_in_flight_tokens -= num_scheduled_tokens
        is_stale = request.num_stale_output_tokens > 0
        if is_stale:
            request.num_stale_output_tokens -= num_scheduled_tokens
            if self._drops_stale_output(request):
                return None
        if not sampled_token_ids:
            return None
        new_token_ids: list[int] = []
        status = None
        for token_id in sampled_token_ids:
            request.token_ids.append(token_id)
            request.num_tokens += 1
            new_token_ids.append(token_id)
            if request.num_tokens >= request.check_stop_from or token_id in request.stop_token_ids:
                status = check_stop(request, self.config.stop_order)
                if status is not None:
                    break
        # Stale tokens touch no counter of what is computed, and publish nothing. Accepted drafts
        # beyond the one that stops a request are not its tokens.
        num_trimmed = len(sampled_token_ids) - len(new_token_ids)
        if request.num_output_placeholders > 0 and not is_stale:
            self._fill_placeholders(request, len(sampled_token_ids), num_trimmed)
        elif self.publishes_verified_drafts and not is_stale:
            self._publish_settled(request, num_trimmed)
        if status is None:
            return EngineCoreOutput(request.request_id, new_token_ids)
        self._handle_stopped_request(request, status, 0 if is_stale else num_trimmed)
        return EngineCoreOutput(request.request_id, new_token_ids, FINISH_REASON[status])

    def _handle_stopped_request(
        self, request: Request, status: RequestStatus, num_trimmed_tokens: int
    ) -> None:
        """Ends a request; of a resumable one that is not closed only its turn."""
        queue = request.streaming_queue
        if not request.resumable or (queue and queue[0] is None):
            self._finish(request, status)
        else:
            self._end_turn(request, num_trimmed_tokens)

    def _end_turn(self, request: Request, num_trimmed_tokens: int) -> None:
        """Lets a resumable request wait for its next chunk, or go on with one that is there."""
        if request.status == RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self._leave_waiting(request)
        end_turn(request, num_trimmed_tokens)
        self.num_waiting_for_streaming_input += 1
        update = request.streaming_queue.popleft() if request.streaming_queue else None
        if update is not None:
            self._begin_turn(request, update)
            request.rank = _rank_of(request, update)
        self._enqueue_waiting_request(request)

    def _begin_turn(self, request: Request, update: StreamingUpdate) -> None:
        self.num_waiting_for_streaming_input -= 1
        begin_turn(request, update, self.config.max_model_len)

    def _drops_stale_output(self, request: Request) -> bool:
        """Whether what a voided step sampled is dropped; the last such step ends that."""
        is_dropped = request.drop_stale_output or not self.config.deliver_stale_output
        if request.drop_stale_output and request.num_stale_output_tokens == 0:
            request.drop_stale_output = False
        return is_dropped

    def _fill_placeholders(
        self, request: Request, num_sampled_tokens: int, num_trimmed_tokens: int
    ) -> None:
        """Counts sampled tokens as known, so that their blocks can be published."""
        request.num_output_placeholders -= num_sampled_tokens
        self._publish_settled(request, num_trimmed_tokens)

    def _publish_settled(self, request: Request, num_trimmed_tokens: int) -> None:
        """Publishes what steps that have returned computed of a request's tokens."""
        num_tokens = request.num_computed_tokens - request.num_in_flight_tokens
        if num_tokens > request.decode_until:  # Else nothing new is full.
            self.block_pool.cache_full_blocks(request, num_tokens - num_trimmed_tokens)

    def _finish(self, request: Request, status: RequestStatus) -> None:
        """Ends a request; its blocks return to the pool, unless somebody still writes them.

        It leaves `running` later, in `_close_gaps`, once for all that end together.
        """
        if request.status != RequestStatus.RUNNING:
            self._leave_waiting(request)
        if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            self.num_waiting_for_streaming_input -= 1
        self._free_request_blocks(request)
        request.status = status
        del self.requests[request.request_id]
        self.finished_req_ids.append(request.request_id)

    def _close_gaps(self) -> None:
        """Lets the requests that have ended leave `running`."""
        self.running = [
            request for request in self.running if request.status == RequestStatus.RUNNING
        ]

    # ---- sizes --------------------------------------------------------------------------------

    def _may_outgrow_pool(self, request: Request) -> bool:
        """Whether a request may need more blocks than there are; its last token takes no slot."""
        num_slots = self.config.num_blocks * self.config.block_size
        num_tokens = request.max_num_tokens - 1
        if num_tokens > request.num_prompt_tokens:  # Else no drafts follow on a sampled token.
            num_drafts = self.config.num_speculative_tokens
            num_tokens = min(num_tokens + num_drafts, self.config.max_model_len - 1)
        num_tokens = self._num_tokens_to_hold(num_tokens)
        return num_tokens > num_slots

    def _num_tokens_to_hold(self, num_tokens: int) -> int:
        """So many tokens, and those that a drafter writes ahead of them."""
        if self.config.num_lookahead_tokens == 0:
            return num_tokens
        return min(num_tokens + self.config.num_lookahead_tokens, self.config.max_model_len)


def _rank_of(request: Request, update: StreamingUpdate) -> Rank:
    """The rank that a request has from a chunk on."""
    priority, _, request_id = request.rank
    return priority, update.arrival_time, request_id
