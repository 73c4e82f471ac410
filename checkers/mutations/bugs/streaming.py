"""Bugs in what becomes of a resumable request between its turns."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method


@mutation(
    target="impl.scheduler:FastScheduler._end_turn",
    setting="streaming",
    caught_by="a_turn_ends_at_its_last_token",
)
def a_turn_ends_with_its_blocks_free(original: Method) -> Method:
    """Whoever has ended a turn gives its blocks back, and still counts their tokens as computed."""

    def _end_turn(self: Any, request: Any, num_trimmed_tokens: int) -> None:
        self.block_pool.free(request)
        original(self, request, num_trimmed_tokens)

    return _end_turn


@mutation(
    target="impl.lifecycle:end_turn",
    setting="streaming",
    caught_by="a_turn_ends_at_its_last_token",
)
def what_is_in_flight_counts_after_a_turn(original: Method) -> Method:
    """KV of the discarded token, which a step in flight computes, counts as that of the next."""

    def end_turn(request: Any, num_trimmed_tokens: int) -> None:
        num_computed_tokens = request.num_computed_tokens - num_trimmed_tokens
        original(request, num_trimmed_tokens)
        request.num_computed_tokens = num_computed_tokens

    return end_turn


@mutation(
    target="impl.lifecycle:end_turn",
    setting="deep-streaming-drafts",
    caught_by="a_turn_ends_at_its_last_token",
)
def accepted_drafts_beyond_the_stop_are_kept(original: Method) -> Method:
    """A turn ends among accepted drafts, and those after the one that stops it count, too."""

    def end_turn(request: Any, num_trimmed_tokens: int) -> None:
        original(request, 0)

    return end_turn


@mutation(
    target="impl.lifecycle:end_turn",
    setting="streaming",
    caught_by="outputs_go_to_the_living",
)
def a_turn_is_answered_by_the_one_before(original: Method) -> Method:
    """What steps in flight sample after the end of a turn is delivered all the same."""

    def end_turn(request: Any, num_trimmed_tokens: int) -> None:
        original(request, num_trimmed_tokens)
        request.drop_stale_output = False

    return end_turn


@mutation(
    target="impl.lifecycle:end_turn",
    setting="streaming",
    caught_by="in_flight_tokens_are_counted",
)
def nothing_is_stale_after_a_turn(original: Method) -> Method:
    """Steps in flight at the end of a turn are taken for those of the next one."""

    def end_turn(request: Any, num_trimmed_tokens: int) -> None:
        original(request, num_trimmed_tokens)
        request.num_stale_output_tokens = 0

    return end_turn


@mutation(
    target="impl.lifecycle:begin_turn",
    setting="streaming",
    caught_by="token_counts_follow_the_client",
)
def the_last_token_is_not_discarded(original: Method) -> Method:
    """The token that ended a turn becomes prompt with the others."""

    def begin_turn(request: Any, update: Any, max_model_len: int) -> None:
        request.token_ids.append(0)
        original(request, update, max_model_len)

    return begin_turn


@mutation(
    target="impl.lifecycle:begin_turn",
    setting="streaming",
    caught_by="grants_are_maximal",
)
def a_chunk_goes_on_counting_the_old_answer(original: Method) -> Method:
    """max_tokens of a chunk counts from the prompt that arrived first."""

    def begin_turn(request: Any, update: Any, max_model_len: int) -> None:
        num_prompt_tokens = request.num_prompt_tokens
        original(request, update, max_model_len)
        request.max_num_tokens = min(num_prompt_tokens + update.max_tokens, max_model_len)
        request.check_stop_from = request.max_num_tokens

    return begin_turn


@mutation(
    target="impl.lifecycle:begin_turn",
    setting="streaming-prefix",
    caught_by="diff_is_sufficient",
)
def the_worker_is_sent_the_first_prompt_again(original: Method) -> Method:
    """Whoever goes on with a chunk is sent as new with the prompt that it arrived with."""

    def begin_turn(request: Any, update: Any, max_model_len: int) -> None:
        prompt_token_ids = request.prompt_token_ids
        original(request, update, max_model_len)
        request.prompt_token_ids = (*prompt_token_ids, *update.prompt_token_ids)

    return begin_turn


@mutation(
    target="impl.scheduler:FastScheduler.streaming_update",
    setting="streaming",
    caught_by="who_waits_for_input_keeps_all",
)
def a_chunk_begins_from_the_front(original: Method) -> Method:
    """Whoever has waited for a chunk forgets what it has computed."""

    def streaming_update(self: Any, request_id: str, update: Any) -> None:
        original(self, request_id, update)
        request = self.requests.get(request_id)
        if request is not None and request.status.name == "WAITING":
            request.num_computed_tokens = 0

    return streaming_update


@mutation(
    target="impl.scheduler:FastScheduler._has_seat",
    setting="streaming-seats",
    caught_by="who_waits_for_input_keeps_its_seat",
)
def who_waits_for_input_loses_its_seat(original: Method) -> Method:
    """Only those who run count for max_num_seqs, so the worker has more states than it can hold."""

    def _has_seat(self: Any) -> bool:
        return bool(len(self.running) < self.config.max_num_seqs)

    return _has_seat


@mutation(
    target="impl.scheduler:FastScheduler._finish",
    setting="streaming",
    caught_by="work_is_conserved",
)
def a_closed_request_keeps_its_seat(original: Method) -> Method:
    """Whoever is ended while it waits for a chunk is counted as waiting for ever."""

    def _finish(self: Any, request: Any, status: Any) -> None:
        num_parked = self.num_waiting_for_streaming_input
        original(self, request, status)
        self.num_waiting_for_streaming_input = num_parked

    return _finish


@mutation(
    target="impl.scheduler:FastScheduler._is_ready",
    setting="streaming",
    caught_by="nobody_overtakes",
)
def who_waits_for_input_is_scheduled(original: Method) -> Method:
    """A request is admitted though no chunk has followed: its last token is computed after all."""

    def _is_ready(self: Any, request: Any) -> bool:
        is_parked = request.status.name == "WAITING_FOR_STREAMING_REQ"
        return is_parked or bool(original(self, request))

    return _is_ready


@mutation(
    target="impl.scheduler:FastScheduler.streaming_update",
    setting="streaming",
    caught_by="requests_are_conserved",
)
def a_close_that_comes_early_is_lost(original: Method) -> Method:
    """Whoever is closed while it runs goes on waiting for a chunk."""

    def streaming_update(self: Any, request_id: str, update: Any) -> None:
        request = self.requests.get(request_id)
        is_parked = request is not None and request.status.name == "WAITING_FOR_STREAMING_REQ"
        if update is not None or is_parked:
            original(self, request_id, update)

    return streaming_update


@mutation(
    target="impl.scheduler:FastScheduler.streaming_update",
    setting="streaming",
    caught_by="who_waits_for_input_keeps_all",
)
def a_chunk_is_given_a_place_of_its_own(original: Method) -> Method:
    """Whoever has waited for a chunk gets another last block, without the KV of the one before."""

    def streaming_update(self: Any, request_id: str, update: Any) -> None:
        original(self, request_id, update)
        request = self.requests.get(request_id)
        if request is not None and request.status.name == "WAITING":
            move_last_block(self.block_pool, request)

    return streaming_update


@mutation(
    target="impl.scheduler:FastScheduler.streaming_update",
    setting="streaming",
    caught_by="a_chunk_is_for_one_request",
)
def a_chunk_moves_somebody_elses_block(original: Method) -> Method:
    """To make room for a chunk the last block of whoever runs is moved, and its KV is not."""

    def streaming_update(self: Any, request_id: str, update: Any) -> None:
        original(self, request_id, update)
        if update is not None and self.running:
            move_last_block(self.block_pool, self.running[-1])

    return streaming_update


def move_last_block(block_pool: Any, request: Any) -> None:
    """Exchanges the last block of a request for a free one, if there are both."""
    if request.block_ids and block_pool.num_free_blocks > 0:
        moved = request.block_ids.pop()
        request.block_ids += block_pool.get_new_blocks(1)
        block_pool.free_blocks([moved])


@mutation(
    target="impl.scheduler:FastScheduler.streaming_update",
    setting="streaming",
    caught_by="queues_keep_their_order",
)
def a_chunk_cuts_into_the_answer(original: Method) -> Method:
    """A chunk that arrives early ends the turn that it should wait for."""

    def streaming_update(self: Any, request_id: str, update: Any) -> None:
        request = self.requests.get(request_id)
        is_early = request is not None and request.status.name == "RUNNING"
        if is_early and update is not None and request.num_output_tokens > 0:
            self._handle_stopped_request(request, request.status, 0)
            self._close_gaps()
        original(self, request_id, update)

    return streaming_update


@mutation(
    target="impl.scheduler:FastScheduler._handle_stopped_request",
    setting="streaming",
    caught_by="requests_are_conserved",
)
def a_turn_is_taken_for_the_end(original: Method) -> Method:
    """A resumable request ends with its first turn, and its chunks are for nobody."""

    def _handle_stopped_request(self: Any, request: Any, status: Any, num_trimmed: int) -> None:
        self._finish(request, status)

    return _handle_stopped_request


@mutation(
    target="impl.lifecycle:begin_turn",
    setting="streaming-repetition",
    caught_by="stops_are_in_order",
)
def repetition_is_looked_for_in_one_turn_only(original: Method) -> Method:
    """An answer that a chunk has begun is tested for its length alone."""

    def begin_turn(request: Any, update: Any, max_model_len: int) -> None:
        original(request, update, max_model_len)
        request.check_stop_from = request.max_num_tokens

    return begin_turn


@mutation(
    target="impl.lifecycle:begin_turn",
    setting="streaming-blocks",
    caught_by="grants_are_maximal",
)
def a_turn_is_planned_as_the_one_before(original: Method) -> Method:
    """Up to where one token in a step is due is not worked out again once a chunk has come."""

    def begin_turn(request: Any, update: Any, max_model_len: int) -> None:
        decode_until = request.decode_until
        original(request, update, max_model_len)
        request.decode_until = decode_until

    return begin_turn
