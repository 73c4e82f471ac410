"""What happens to the requests of our engine outside of planning: arrivals, results, ends.

Entry point: `RequestLifecycle`, the half of the engine that `impl.scheduler` plans on.
"""

from __future__ import annotations

from collections.abc import Iterable

from impl.block_pool import BlockPool
from impl.request import Request, make_request
from impl.request_queue import make_request_queue
from impl.stop import check_stop
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
)


class RequestLifecycle:
    """Who is alive, who waits and who runs; every event but planning."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.block_pool = BlockPool(config)
        # Every live request, in the order of arrival.
        self.requests: dict[str, Request] = {}
        self.waiting = make_request_queue(config.policy)
        self.running: list[Request] = []
        # Finished since the last `schedule`, in order; the next one tells the worker.
        self.finished_req_ids: list[str] = []
        self.pause_state: PauseState = "unpaused"

    # ---- what may happen to a scheduler ----------------------------------------------------------

    def add_request(self, new: NewRequest) -> EngineCoreOutput | None:
        """Puts a request into the waiting queue; one that is refused is answered at once."""
        request = make_request(new, self.config.max_model_len)
        if self.config.reject_too_large and self._may_outgrow_pool(request):
            return EngineCoreOutput(request.request_id, [], REFUSED)
        self.requests[request.request_id] = request
        self.waiting.add_request(request)
        return None

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """Settles a step: appends the sampled tokens, stops requests, reports to each client."""
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

    def update_draft_token_ids(self, draft_token_ids: dict[str, list[int]]) -> None:
        """Takes the drafts for the next step; nobody in the middle of its prompt has any."""
        for request_id, token_ids in draft_token_ids.items():
            request = self.requests.get(request_id)
            if request is not None:
                is_running = request.status == RequestStatus.RUNNING
                may_draft = is_running and not request.is_prefill_chunk
                request.draft_token_ids = list(token_ids) if may_draft else []

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
            if not self.config.deliver_stale_output:
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
        # Stale tokens touch no counter of what is computed, and publish nothing.
        if request.num_output_placeholders > 0 and not is_stale:
            self._fill_placeholders(request, len(sampled_token_ids))
        if status is None:
            return EngineCoreOutput(request.request_id, new_token_ids)
        self._finish(request, status)
        return EngineCoreOutput(request.request_id, new_token_ids, FINISH_REASON[status])

    def _fill_placeholders(self, request: Request, num_sampled_tokens: int) -> None:
        """Counts sampled tokens as known, so that their blocks can be published."""
        request.num_output_placeholders -= num_sampled_tokens
        num_tokens = request.num_computed_tokens - request.num_in_flight_tokens
        if num_tokens > request.decode_until:  # Else nothing new is full.
            self.block_pool.cache_full_blocks(request, num_tokens)

    def _finish(self, request: Request, status: RequestStatus) -> None:
        """Ends a request; its blocks return to the pool at once.

        It leaves `running` later, in `_close_gaps`, once for all that end together.
        """
        if request.status != RequestStatus.RUNNING:
            self.waiting.remove_request(request)
        request.status = status
        self.block_pool.free(request)
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
        if self.config.num_speculative_tokens > 0:
            num_tokens += self.config.num_speculative_tokens
            num_tokens = self._num_tokens_to_hold(min(num_tokens, self.config.max_model_len - 1))
        return num_tokens > num_slots

    def _num_tokens_to_hold(self, num_tokens: int) -> int:
        """So many tokens, and those that a drafter writes ahead of them."""
        if self.config.num_lookahead_tokens == 0:
            return num_tokens
        return min(num_tokens + self.config.num_lookahead_tokens, self.config.max_model_len)
