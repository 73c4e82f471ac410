"""Bugs in queues and preemption: who is next, who has to go, and what a victim keeps."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method
from spec.interface import RequestStatus


@mutation(
    target="impl.scheduler:FastScheduler._admit_head",
    setting="plain",
    caught_by="nobody_overtakes",
)
def a_small_request_overtakes(original: Method) -> Method:
    """If the head of the queue is refused, the one behind it is tried."""

    def _admit_head(self: Any) -> bool:
        if original(self):
            return True
        head = self.waiting.pop_request()
        is_admitted = bool(self.waiting) and bool(original(self))
        self.waiting.prepend_request(head)
        return is_admitted

    return _admit_head


@mutation(
    target="impl.scheduler:FastScheduler.schedule",
    setting="deep-priority-prefix",
    caught_by="no_admission_after_preemption",
)
def a_step_preempts_and_admits(original: Method) -> Method:
    """A step that has preempted somebody admits others, though not its victims."""

    def schedule(self: Any) -> Any:
        self._begin_step()
        self._schedule_running()
        self._publish_granted()
        head = next(iter(self.waiting), None)
        if head is not None and head.request_id not in self.output.preempted_req_ids:
            self._schedule_waiting()
        self._publish_granted()
        return self._end_step()

    return schedule


@mutation(
    target="impl.scheduler:FastScheduler._admit",
    setting="tiny",
    caught_by="requests_are_conserved",
)
def a_resumed_request_gets_lost(original: Method) -> Method:
    """A resumed request keeps the status PREEMPTED, so it leaves with the next that finishes."""

    def _admit(self: Any, request: Any, *args: Any) -> None:
        status = request.status
        original(self, request, *args)
        if status == RequestStatus.PREEMPTED:
            request.status = status

    return _admit


@mutation(
    target="impl.scheduler:FastScheduler._finish",
    setting="plain",
    caught_by="requests_are_conserved",
)
def a_finished_request_stays_in_the_books(original: Method) -> Method:
    """A request that stops by itself is never forgotten."""

    def _finish(self: Any, request: Any, status: RequestStatus) -> None:
        original(self, request, status)
        if status != RequestStatus.FINISHED_ABORTED:
            self.requests[request.request_id] = request

    return _finish


@mutation(
    target="impl.request_queue:FCFSRequestQueue.prepend_request",
    setting="plain",
    caught_by="queues_keep_their_order",
)
def a_victim_joins_the_tail(original: Method) -> Method:
    """A preempted request goes to the tail of the queue."""

    def prepend_request(self: Any, request: Any) -> None:
        self.add_request(request)

    return prepend_request


@mutation(
    target="impl.scheduler:FastScheduler._choose_victim",
    setting="plain",
    caught_by="victims_are_the_last_served",
)
def the_first_is_preempted(original: Method) -> Method:
    """The victim is the request that has run for longest."""

    def _choose_victim(self: Any) -> Any:
        return self.running[0]

    return _choose_victim


@mutation(
    target="impl.scheduler:FastScheduler._choose_victim",
    setting="deep-first-chunk",
    caught_by="victims_are_the_last_served",
)
def the_last_but_one_is_preempted(original: Method) -> Method:
    """Where three run, the one in the middle has to go."""

    def _choose_victim(self: Any) -> Any:
        return self.running[-2 if len(self.running) == 3 else -1]

    return _choose_victim


@mutation(
    target="impl.scheduler:FastScheduler._preempt",
    setting="async",
    changes=("wait_for_stale_output=false",),
    caught_by="victims_keep_only_their_tokens",
    source="vLLM #48245",
)
def placeholders_survive_a_preemption(original: Method) -> Method:
    """A preempted request keeps the placeholders of its voided steps."""

    def _preempt(self: Any, victim: Any) -> None:
        num_output_placeholders = victim.num_output_placeholders
        original(self, victim)
        victim.num_output_placeholders = num_output_placeholders

    return _preempt


@mutation(
    target="impl.scheduler:FastScheduler._take_back",
    setting="publish-corrected",
    caught_by="victims_keep_only_their_tokens",
    source="vLLM #23347",
)
def a_victim_stays_scheduled(original: Method) -> Method:
    """A victim that was scheduled already is not taken out of the step."""

    def _take_back(self: Any, victim: Any) -> None:
        pass

    return _take_back


@mutation(
    target="impl.scheduler:FastScheduler._preempt",
    setting="plain",
    caught_by="victims_keep_only_their_tokens",
)
def a_victim_still_counts_as_computed(original: Method) -> Method:
    """A preempted request keeps num_computed_tokens, though its blocks are gone."""

    def _preempt(self: Any, victim: Any) -> None:
        num_computed_tokens = victim.num_computed_tokens
        original(self, victim)
        victim.num_computed_tokens = num_computed_tokens

    return _preempt


@mutation(
    target="impl.scheduler:FastScheduler.finish_requests",
    setting="async",
    changes=("wait_for_stale_output=false",),
    caught_by="an_abort_ends_at_once",
)
def an_abort_voids_the_step_of_others(original: Method) -> Method:
    """An abort drops the placeholders of everybody who has one, as if no token were to come."""

    def finish_requests(self: Any, request_ids: list[str], finished_status: RequestStatus) -> None:
        original(self, request_ids, finished_status)
        for request in self.running:
            if request.num_output_placeholders == 1:
                request.num_output_placeholders = 0

    return finish_requests


@mutation(
    target="impl.scheduler:FastScheduler.finish_requests",
    setting="plain",
    caught_by="an_abort_ends_at_once",
)
def an_abort_spares_whoever_waits(original: Method) -> Method:
    """An abort of a request that waits is ignored."""

    def finish_requests(self: Any, request_ids: list[str], finished_status: RequestStatus) -> None:
        running = [request.request_id for request in self.running]
        original(self, [name for name in request_ids if name in running], finished_status)

    return finish_requests


@mutation(
    target="impl.scheduler:FastScheduler._make_room_for",
    setting="tiny",
    caught_by="requests_are_conserved",
    source="inference-sim #183",
)
def whoever_fails_at_the_end_gets_lost(original: Method) -> Method:
    """A request that has to go before its last token is in no queue any more."""

    def _make_room_for(self: Any, request: Any, num_new_blocks: int) -> bool:
        has_room = bool(original(self, request, num_new_blocks))
        if not has_room and request.num_tokens + 1 == request.max_num_tokens:
            self.waiting.remove_request(request)
        return has_room

    return _make_room_for


@mutation(
    target="impl.scheduler:FastScheduler._make_room_for",
    setting="plain",
    caught_by="engine_raises",
    source="inference-sim #293",
)
def a_request_is_not_its_own_victim(original: Method) -> Method:
    """A request that has preempted itself goes on looking for victims, though nobody runs."""

    def _make_room_for(self: Any, request: Any, num_new_blocks: int) -> bool:
        while num_new_blocks > self.block_pool.num_free_blocks or request not in self.running:
            self._preempt(self._choose_victim())
        return True

    return _make_room_for


@mutation(
    target="impl.scheduler:FastScheduler._take_back",
    setting="publish-corrected",
    caught_by="diff_is_sufficient",
    source="vLLM #23316",
)
def a_victim_stays_in_the_diff(original: Method) -> Method:
    """The worker is told the new blocks of a victim that was taken out of the step."""

    def _take_back(self: Any, victim: Any) -> None:
        scheduled = self.output.scheduled_cached_reqs.get(victim.request_id)
        original(self, victim)
        if scheduled is not None:
            self.output.scheduled_cached_reqs[victim.request_id] = scheduled

    return _take_back


@mutation(
    target="impl.scheduler:FastScheduler.finish_requests",
    setting="plain",
    caught_by="requests_are_conserved",
    source="vLLM #33377",
)
def an_aborted_request_finishes_again(original: Method) -> Method:
    """A request that is aborted while its step runs stays in the books, and finishes with it."""

    def finish_requests(self: Any, request_ids: list[str], finished_status: RequestStatus) -> None:
        in_flight = [
            request
            for request in map(self.requests.get, request_ids)
            if request is not None and request.num_in_flight_tokens > 0
        ]
        original(self, request_ids, finished_status)
        self.requests.update({request.request_id: request for request in in_flight})

    return finish_requests


@mutation(
    target="impl.scheduler:FastScheduler.finish_requests",
    setting="plain",
    caught_by="an_abort_ends_at_once",
    source="vLLM #26400",
)
def an_abort_spares_what_is_in_flight(original: Method) -> Method:
    """An abort of a request whose step runs does nothing, and the step ends as usual."""

    def finish_requests(self: Any, request_ids: list[str], finished_status: RequestStatus) -> None:
        idle = [name for name, item in self.requests.items() if item.num_in_flight_tokens == 0]
        original(self, [name for name in request_ids if name in idle], finished_status)

    return finish_requests


@mutation(
    target="impl.scheduler:FastScheduler._schedule_waiting",
    setting="grammars",
    caught_by="requests_are_conserved",
    source="vllm-ascend #10559",
)
def whoever_is_not_ready_is_parked_for_ever(original: Method) -> Method:
    """A request that is passed over goes to a second queue, which nobody looks into."""

    def _schedule_waiting(self: Any) -> None:
        original(self)
        for request in list(self.waiting):
            if not self._is_ready(request):
                self.waiting.remove_request(request)

    return _schedule_waiting
