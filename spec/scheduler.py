"""The reference scheduler. START HERE.

`schedule` decides what one step computes; `update_from_output`, in `spec.lifecycle`, settles what
it produced. Every loop of `schedule` is `while self._rule(): pass`; a *rule* does one thing to one
request and returns whether to look again. Effects (grant, preempt, admit, finish) are methods of
their own, so that a monitor can wrap them, and everything is written on plain integers, so that a
proof can run the same code on symbols.

Source: vllm/v1/core/sched/scheduler.py: schedule, _update_after_schedule; the details that
recordings forced on us stand at each rule.
"""

from __future__ import annotations

from spec.block_pool import NO_HIT, CacheHit, CountedBlockPool, cdiv
from spec.interface import (
    CachedRequestData,
    NewRequestData,
    Observation,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.observe import observe
from spec.padding import compute_num_padding
from spec.remote_kv import RemoteKV, num_blocks_of_prefills
from spec.request import Request, is_served_after
from spec.slots import has_partial_prefill_slot, has_slot


class ReferenceScheduler(RemoteKV):
    """What is right: one scheduling step, written to be read."""

    def __init__(self, config: SchedulerConfig, block_pool: CountedBlockPool | None = None) -> None:
        super().__init__(config, block_pool)
        self._begin_step()

    # ---- what may happen to a scheduler ----------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decides what one step computes: running requests first, then the head of waiting."""
        self._begin_step()
        while self._schedule_next_running():
            pass
        if self.config.same_step_prefix_hits:
            self._publish_step()
        while self._admit_next_waiting():
            pass
        while self._put_back_next_skipped():
            pass
        if not self.config.same_step_prefix_hits:
            self._publish_step()
        for request in self.running:
            self._advance(request)
        return self._end_step()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forgets all published content, unless a block is held; returns whether it did.

        With `reset_running_requests` all running requests are preempted first, so none is; what
        steps in flight compute for them is void, and dropped, since they may run again at once.
        """
        while reset_running_requests and self._preempt_last_running():
            pass
        return self.block_pool.reset_prefix_cache()

    def observe(self) -> Observation:
        """Shows the state between two calls."""
        return observe(self)

    # ---- pass 1: running requests ----------------------------------------------------------------

    def _begin_step(self) -> None:
        config = self.config
        self.output = SchedulerOutput()
        self.token_budget = config.max_num_scheduled_tokens
        if self.pause_state == "paused_all":
            self.token_budget = 0
        self.input_budget = config.max_num_batched_tokens
        # The cursor of pass 1: who is looked at next.
        self.req_index = 0
        # Requests that were skipped, set aside until admission is over.
        self.skipped: list[Request] = []
        self.long_prefill_token_threshold = config.long_prefill_token_threshold
        if config.threshold_spares_lone_request and (
            len(self.running) + len(self.kv_holding_waiting.items) + len(self.waiting.items) <= 1
        ):
            self.long_prefill_token_threshold = 0

    def _schedule_next_running(self) -> bool:
        """Schedules the next running request; one that cannot move is skipped and holds nobody up.

        The token count is not computed again after a preemption, so what a victim gives back may go
        to waste.
        """
        if self.req_index >= len(self.running) or self.token_budget <= 0:
            return False
        request = self.running[self.req_index]
        num_new_tokens = self._compute_num_new_tokens(request)
        if num_new_tokens <= 0:
            self.req_index += 1
            return True
        while self._preempt_next_for(request, num_new_tokens):
            pass
        if request.status == RequestStatus.PREEMPTED:
            # It made room for itself last; the cursor already points at the request after it.
            return self.config.continue_after_self_preemption
        if self.config.defer_block_free and self._lacks_blocks(request, num_new_tokens):
            return False
        self._grant_running(request, num_new_tokens)
        self.req_index += 1
        return True

    def _compute_num_new_tokens(self, request: Request) -> int:
        """The gap between what is known, guessed or being sampled and what is computed, capped."""
        if self._samples_its_last_token(request):
            return 0
        gap = (
            request.num_tokens_with_spec
            + request.num_output_placeholders
            - request.num_computed_tokens
        )
        return min(
            self._cap_long_prefill(gap),
            self.token_budget,
            self.input_budget - self.config.num_draft_slots,
            # The token to be sampled must still find a place.
            self.config.max_model_len - 1 - request.num_computed_tokens,
        )

    def _samples_its_last_token(self, request: Request) -> bool:
        """Whether a step in flight samples the last token that `max_tokens` allows.

        Drafts in flight count as rejected: they are computed, and have placeholders.
        """
        return (
            self.config.stop_at_max_tokens_in_flight
            and request.num_output_placeholders > 0
            and request.num_computed_tokens + 2 - request.num_output_placeholders
            >= request.num_prompt_tokens + request.max_tokens
        )

    def _cap_long_prefill(self, num_new_tokens: int) -> int:
        if self.long_prefill_token_threshold > 0:
            return min(num_new_tokens, self.long_prefill_token_threshold)
        return num_new_tokens

    def _preempt_next_for(self, request: Request, num_new_tokens: int) -> bool:
        """Preempts one request if `request` lacks blocks; hitting `request` itself ends it.

        So does a victim whose blocks would not be free at once.
        """
        if not self._lacks_blocks(request, num_new_tokens):
            return False
        victim = self._choose_victim()
        if not self._can_be_freed(victim):
            return False
        self._preempt(victim)
        return request.status == RequestStatus.RUNNING

    def _lacks_blocks(self, request: Request, num_new_tokens: int) -> bool:
        """Whether too few blocks are free for so many tokens more of a running request."""
        num_tokens = self._num_tokens_to_hold(request, request.num_computed_tokens + num_new_tokens)
        num_blocks = self._num_blocks_to_take(request, num_tokens, NO_HIT)
        return num_blocks > self.block_pool.num_free_blocks

    def _choose_victim(self) -> Request:
        """The last to be served: the last running, or the first of greatest priority value."""
        if self.config.policy != "priority":
            return self.running[-1]
        self.victim = self.running[0]
        for request in self.running:
            self._compare_to_victim(request)
        return self.victim

    def _compare_to_victim(self, request: Request) -> None:
        if is_served_after(request, self.victim):
            self.victim = request

    def _preempt(self, victim: Request) -> None:
        """Takes everything from a running request but its tokens; it then waits at the head.

        Its blocks are free at once, also with steps in flight, unless they are kept back: those are
        void, and their output is stale. Once such output is dropped, its tokens are sampled again
        by steps that may be in flight by now; so whatever comes back until then is dropped, too.
        """
        self._leave_running(victim)
        self._take_back(victim)
        self._free_request_blocks(victim)
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_output_placeholders = 0
        if victim.drop_stale_output:
            victim.drop_stale_output = victim.num_in_flight_tokens > 0
        victim.num_stale_output_tokens = victim.num_in_flight_tokens
        victim.set_drafts([])
        victim.is_prefill_chunk = False
        victim.num_preemptions += 1
        self.waiting.prepend_request(victim)
        self.output.preempted_req_ids.append(victim.request_id)

    def _preempt_last_running(self) -> bool:
        """Preempts the last running request, to drop its stale output; False if nobody runs."""
        if len(self.running) == 0:
            return False
        victim = self.running[-1]
        victim.drop_stale_output = True
        self._preempt(victim)
        return True

    def _leave_running(self, victim: Request) -> None:
        """Closes the gap in `running`; the cursor stays on its request (dialects differ)."""
        index = self.running.index(victim)
        del self.running[index]
        rule = self.config.cursor_follows_victim
        if index < self.req_index and (
            rule == "always"
            or (rule == "scheduled" and victim.request_id in self.output.num_scheduled_tokens)
        ):
            self.req_index -= 1

    def _take_back(self, victim: Request) -> None:
        """Removes a victim that this step has already scheduled from it; restores both budgets."""
        if victim.request_id in self.output.num_scheduled_tokens:
            num_scheduled_tokens = self.output.num_scheduled_tokens.pop(victim.request_id)
            self.token_budget += num_scheduled_tokens
            self.input_budget += num_scheduled_tokens + self.config.num_draft_slots
            del self.output.scheduled_cached_reqs[victim.request_id]
            if victim.request_id in self.output.scheduled_spec_decode_tokens:
                del self.output.scheduled_spec_decode_tokens[victim.request_id]

    def _grant_running(self, request: Request, num_new_tokens: int) -> None:
        """Schedules a running request, and tells the worker the new blocks only.

        Publishes what earlier steps promised, but not this chunk: until pass 1 is over it may be
        taken back.
        """
        num_computed_tokens = request.num_computed_tokens
        new_block_ids = self._grant(request, num_new_tokens, NO_HIT)
        if self.config.publish_at_grant:
            self._publish(request, num_computed_tokens + num_new_tokens)
        else:
            self._publish(request, num_computed_tokens)
        self.output.scheduled_cached_reqs[request.request_id] = CachedRequestData(
            False, new_block_ids, num_computed_tokens
        )
        if request.num_draft_tokens > 0:
            self._schedule_drafts(request, num_computed_tokens + num_new_tokens)

    def _schedule_drafts(self, request: Request, num_tokens: int) -> None:
        """Lets the step verify the drafts among the first `num_tokens` tokens; forgets the others.

        Guesses are for one step only: whatever it samples, the next ones follow on that.
        """
        num_drafts = num_tokens - request.num_tokens - request.num_output_placeholders
        if num_drafts > 0:
            self.output.scheduled_spec_decode_tokens[request.request_id] = request.draft_token_ids[
                :num_drafts
            ]
        request.set_drafts([])

    # ---- pass 2: the heads of the waiting queues -------------------------------------------------

    def _admit_next_waiting(self) -> bool:
        """Admits the head of the queue that is next; False when admission is over for this step.

        A request that is not ready, or lacks a slot, is skipped; one that does not fit stops
        admission, so that small requests never overtake a large one (head-of-line blocking).
        """
        queue = self._next_queue()
        if not self._may_admit() or queue.is_empty() or not self._has_seat():
            return False
        request = queue.peek_request()
        self._promote_loaded(request)
        if not (self._is_ready(request) and self._has_slot(request)):
            self.skipped.append(queue.pop_request())
            return True
        hit = self._find_hit(request)
        if self._end_of_load(request, hit) > 0:
            return self._load_next_waiting(request, hit)
        num_computed_tokens = request.num_computed_tokens + hit.num_blocks * self.config.block_size
        num_new_tokens = self._cap_long_prefill(request.num_tokens - num_computed_tokens)
        if not self._may_be_cut(num_new_tokens):
            return False
        num_padding = compute_num_padding(
            self.config, request, num_computed_tokens, self.running, self.output
        )
        if not self._may_be_padded(num_padding):
            return False
        num_new_tokens = num_padding + min(
            num_new_tokens, self.token_budget, self.input_budget - self.config.num_draft_slots
        )
        if not self._may_be_partial(request, num_computed_tokens + num_new_tokens):
            return False
        if not self._has_room_for(request, num_computed_tokens + num_new_tokens, hit):
            return False
        self._admit(request, num_computed_tokens, num_new_tokens, hit)
        if num_padding > 0:
            self.output.scheduled_spec_decode_tokens[request.request_id] = [-1] * num_padding
        return True

    def _find_hit(self, request: Request) -> CacheHit:
        """Looks a request up in the prefix cache, unless it holds KV already.

        At each attempt again, since a refused admission changes nothing.
        """
        if request.num_blocks > 0:
            return NO_HIT
        return self.block_pool.find_longest_cache_hit(request)

    def _load_next_waiting(self, request: Request, hit: CacheHit) -> bool:
        """Begins a load for the head of the queue, which takes no part in the step; if it fits."""
        end = self._end_of_load(request, hit)
        if not self._has_room_to_load(request, end, hit):
            return False
        self.skipped.append(self._next_queue().pop_request())
        self._begin_load(request, end, hit)
        return True

    def _may_admit(self) -> bool:
        """Gate: budget left, and nobody preempted in this step, not even by itself.

        While all is paused there is no budget.
        """
        return (
            len(self.output.preempted_req_ids) == 0
            and self.token_budget > 0
            and self.input_budget > self.config.num_draft_slots
        )

    def _has_seat(self) -> bool:
        """Gate: fewer than `max_num_seqs` requests run, or wait for a chunk and keep their seat."""
        num_seats = len(self.running) + self.num_waiting_for_streaming_input
        return num_seats < self.config.max_num_seqs

    def _is_ready(self, request: Request) -> bool:
        """Gate: its grammar is compiled, its KV and input are there, no voided step is in flight.

        The token of such a step would be sampled twice, unless it is dropped.
        """
        if self.config.load_kv_async and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            return False
        if request.resumable and request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            return False
        return request.status != RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR and (
            request.drop_stale_output
            or request.num_stale_output_tokens == 0
            or not self.config.wait_for_stale_output
        )

    def _has_slot(self, request: Request) -> bool:
        """Gate: the step has a slot left for its adapter, and one for its prompt if it is long."""
        return has_slot(self.config, request, self.running, self.output)

    def _may_be_padded(self, num_padding: int) -> bool:
        """Gate: the padding, if there is any, fits the budgets whole, beside the one token."""
        return num_padding == 0 or num_padding < min(
            self.token_budget, self.input_budget - self.config.num_draft_slots
        )

    def _may_be_partial(self, request: Request, num_tokens: int) -> bool:
        """Gate: its whole prompt is computed, or a slot is left for one more that is not."""
        return has_partial_prefill_slot(self.config, request, num_tokens, self.running, self.output)

    def _may_be_cut(self, num_new_tokens: int) -> bool:
        """Gate: prompts may be computed in chunks, or this one fits the budget whole."""
        return self.config.enable_chunked_prefill or (
            num_new_tokens <= self.token_budget
            and num_new_tokens <= self.input_budget - self.config.num_draft_slots
        )

    def _has_room_for(self, request: Request, num_tokens: int, hit: CacheHit) -> bool:
        """Gate: the first `num_tokens`, and those written ahead, fit in the free blocks.

        With the whole-sequence gate all known tokens must fit, too.
        """
        num_tokens = self._num_tokens_to_hold(request, num_tokens)
        if self.config.scheduler_reserve_full_isl:
            num_tokens = max(num_tokens, self._num_tokens_of_sequence(request))
        num_blocks = self._num_blocks_to_take(
            request, min(num_tokens, self.config.max_model_len), hit
        )
        if len(self.running) > 0:
            num_blocks += self.config.num_watermark_blocks
        return num_blocks + self._num_reserved_blocks() <= self.block_pool.num_free_blocks

    def _has_room_to_load(self, request: Request, end: int, hit: CacheHit) -> bool:
        """Gate: the first `end` tokens fit beside what unfinished prefills still need.

        With the whole-sequence gate all known tokens must fit, too.
        """
        num_blocks = self._num_blocks_to_take(request, end, hit)
        num_blocks += num_blocks_of_prefills(self.config, self.requests)
        if self.config.scheduler_reserve_full_isl:
            num_tokens = self._num_tokens_of_sequence(request)
            num_whole_blocks = self._num_blocks_to_take(request, num_tokens, hit)
            num_blocks = max(num_blocks, num_whole_blocks + self._num_reserved_blocks())
        if len(self.running) > 0:
            num_blocks += self.config.num_watermark_blocks
        return num_blocks <= self.block_pool.num_free_blocks

    def _num_tokens_of_sequence(self, request: Request) -> int:
        """All known tokens; where the gate reserves, those written ahead of them, too.

        Each chunk of a prompt is written ahead of, so without them the last one might not fit.
        """
        num_tokens = request.num_tokens
        if self.config.reserve_admitted_prefills:
            num_tokens += self.config.num_lookahead_tokens
        return min(num_tokens, self.config.max_model_len)

    def _num_reserved_blocks(self) -> int:
        """Free blocks that running requests still need for all of theirs (reserve-aware gate)."""
        self.num_reserved_blocks = 0
        if self.config.reserve_admitted_prefills:
            for request in self.running:
                self._reserve(request)
        return self.num_reserved_blocks

    def _reserve(self, request: Request) -> None:
        num_tokens = self._num_tokens_of_sequence(request)
        self.num_reserved_blocks += self._num_blocks_to_take(request, num_tokens, NO_HIT)

    def _admit(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int, hit: CacheHit
    ) -> None:
        """Moves the head of the queue to the tail of `running`; the worker gets its whole table."""
        is_resumed = request.status == RequestStatus.PREEMPTED
        self.running.append(self._next_queue().pop_request())
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_computed_tokens
        self._grant(request, num_new_tokens, hit)
        if self.config.load_kv_async and num_computed_tokens + num_new_tokens < request.num_tokens:
            request.is_prefill_chunk = True
        if self.config.same_step_prefix_hits:
            self._publish_scheduled(request)
        if is_resumed:
            self.output.scheduled_cached_reqs[request.request_id] = CachedRequestData(
                True, request.block_ids, num_computed_tokens
            )
        else:
            self.output.scheduled_new_reqs[request.request_id] = NewRequestData(
                request.token_ids, num_computed_tokens, request.block_ids
            )

    def _put_back_next_skipped(self) -> bool:
        """Puts the skipped requests back to the heads of their queues, in their order."""
        if len(self.skipped) == 0:
            return False
        request = self.skipped.pop()
        self._queue_of(request).prepend_request(request)
        return True

    # ---- effects shared by both passes, and by other calls ---------------------------------------

    def _num_blocks_to_take(self, request: Request, num_tokens: int, hit: CacheHit) -> int:
        """Free blocks used up if `request` adopts `hit` and then holds `num_tokens` tokens."""
        num_required_blocks = cdiv(num_tokens, self.config.block_size)
        return (
            max(num_required_blocks - request.num_blocks - hit.num_blocks, 0) + hit.num_free_blocks
        )

    def _num_tokens_to_hold(self, request: Request, num_tokens: int) -> int:
        """How many tokens have slots in a step up to `num_tokens`, those written ahead included.

        In some dialects nothing is written ahead at an admission.
        """
        if self.config.num_lookahead_tokens == 0 or (
            request.num_blocks == 0 and not self.config.lookahead_at_admission
        ):
            return num_tokens
        return min(num_tokens + self.config.num_lookahead_tokens, self.config.max_model_len)

    def _grant(self, request: Request, num_new_tokens: int, hit: CacheHit) -> list[int]:
        """Schedules tokens of a running request and gives it their blocks; returns the new ones."""
        num_tokens = self._num_tokens_to_hold(request, request.num_computed_tokens + num_new_tokens)
        num_blocks = self._num_blocks_to_take(request, num_tokens, hit) - hit.num_free_blocks
        self.output.num_scheduled_tokens[request.request_id] = num_new_tokens
        self.token_budget -= num_new_tokens
        self.input_budget -= num_new_tokens + self.config.num_draft_slots
        return self.block_pool.allocate(request, hit, num_blocks)

    def _publish_step(self) -> None:
        for request in self.running:
            self._publish_scheduled(request)

    def _publish_scheduled(self, request: Request) -> None:
        """Publishes what this step computes, once nothing can take it back."""
        if request.request_id in self.output.num_scheduled_tokens:
            num_scheduled_tokens = self.output.num_scheduled_tokens[request.request_id]
            self._publish(request, request.num_computed_tokens + num_scheduled_tokens)

    # ---- the end of a step -----------------------------------------------------------------------

    def _advance(self, request: Request) -> None:
        """Counts what the step promises as computed, so the next step can be planned at once."""
        if request.request_id not in self.output.num_scheduled_tokens:
            if not self.config.keep_unscheduled_drafts:
                self._draft_ahead(request, 0)
            return
        num_scheduled_tokens = self.output.num_scheduled_tokens[request.request_id]
        request.num_computed_tokens += num_scheduled_tokens
        request.num_in_flight_tokens += num_scheduled_tokens
        if self.config.num_speculative_tokens > 0 or self.config.load_kv_async:
            request.is_prefill_chunk = (
                request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
            )
        if self.config.async_scheduling and (
            request.num_computed_tokens >= request.num_tokens + request.num_output_placeholders
        ):
            request.num_output_placeholders += 1 + self._num_scheduled_drafts(request)
            self._draft_ahead(request, self.config.num_speculative_tokens)

    def _num_scheduled_drafts(self, request: Request) -> int:
        if request.request_id in self.output.scheduled_spec_decode_tokens:
            return len(self.output.scheduled_spec_decode_tokens[request.request_id])
        return 0

    def _draft_ahead(self, request: Request, num_draft_tokens: int) -> None:
        """Async scheduling: the worker drafts for whoever samples in this step, and nobody else.

        Which tokens it guesses is not told, so -1 stands for each.
        """
        if self.config.num_speculative_tokens > 0 and self.config.async_scheduling:
            request.set_drafts([-1] * num_draft_tokens)

    def _end_step(self) -> SchedulerOutput:
        """Hands the output out; `finished_req_ids` goes with it, once, even if the step is idle."""
        output = self.output
        self._note_planned(output)
        if self.config.load_kv_async:
            self._tell_loads(output)
        output.finished_req_ids = self.finished_req_ids
        output.new_block_ids_to_zero = self.block_pool.take_new_block_ids()
        self.finished_req_ids = []
        self.output = SchedulerOutput()
        return output
