"""Our own engine, made for speed: a request that only decodes costs little per step.

Entry point: `FastScheduler`. Most requests of most steps compute the one token that was sampled
last. Whether that can go wrong is worked out when a request's blocks change, and kept in its
`decode_until`: below it, a step of one token meets no cap, needs no block and publishes none.
`_schedule_decodes` runs through such requests in one loop; all others take the long way,
`_schedule_next_running`. With speculative decoding a step of one token is rare, so there all do.
"""

from __future__ import annotations

from impl.block_pool import NO_HIT, CacheHit
from impl.remote_kv import RemoteKV
from impl.request import Request, observe_request
from impl.slots import Slots
from spec.interface import (
    CachedRequestData,
    NewRequestData,
    Observation,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
)


class FastScheduler(RemoteKV):
    """The default engine that is checked."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._begin_step()

    # ---- what may happen to a scheduler ----------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decides what one step computes: running requests first, then the head of waiting."""
        self._begin_step()
        self._schedule_running()
        if self.config.same_step_prefix_hits:
            self._publish_granted()
        if not self.output.preempted_req_ids:
            self._schedule_waiting()
        self._publish_granted()
        return self._end_step()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forgets all published content, unless a block is held; returns whether it did.

        With `reset_running_requests` all running requests are preempted first. They may run again
        at once, so what their steps in flight sample is dropped.
        """
        while reset_running_requests and self.running:
            self.running[-1].drop_stale_output = True
            self._preempt(self.running[-1])
        return self.block_pool.reset_prefix_cache()

    def observe(self) -> Observation:
        """Shows the state between two calls."""
        pool = self.block_pool
        cached_block_ids = pool.prefix_cache.get_block_ids()
        return Observation(
            running=[request.request_id for request in self.running],
            waiting=[item.request_id for item in (*self.kv_holding_waiting, *self.waiting)],
            requests={name: observe_request(request) for name, request in self.requests.items()},
            num_free_blocks=pool.num_free_blocks,
            free_block_ids=pool.free_block_queue.to_list(),
            ref_cnt={block_id: count for block_id, count in enumerate(pool.ref_cnt) if count > 0},
            cached_block_ids=cached_block_ids,
            finished_req_ids=list(self.finished_req_ids),
            block_contents={name: pool.prefix_cache.get_content(name) for name in cached_block_ids},
            retained=self._observe_retained(),
            deferred_loads={
                name: self._num_steps_to(fence) for name, (fence, _) in self.deferred_loads.items()
            },
        )

    # ---- pass 1: running requests ----------------------------------------------------------------

    def _begin_step(self) -> None:
        config = self.config
        self.output = SchedulerOutput()
        # What draft slots cost, too.
        self.input_budget = config.max_num_batched_tokens
        # Both budgets of the config in one: whatever is granted or taken back counts on both.
        self.token_budget = min(config.max_num_scheduled_tokens, config.max_num_batched_tokens)
        if self.pause_state == "paused_all":
            self.token_budget = 0
        # The cursor of pass 1: who is looked at next.
        self.req_index = 0
        # Granted in this step on the long way, and not yet published, in order.
        self.granted: list[Request] = []
        # Free blocks that admission leaves alone (reserve-aware gate only).
        self.num_reserved_blocks = 0
        self.slots = Slots(config)
        # Of the running requests: whether any is granted something, and in the middle of a prompt.
        self.is_anybody_granted = False
        self.is_prefill_scheduled = False
        self.long_prefill_token_threshold = config.long_prefill_token_threshold
        num_waiting = len(self.kv_holding_waiting) + len(self.waiting)
        if config.threshold_spares_lone_request and len(self.running) + num_waiting <= 1:
            self.long_prefill_token_threshold = 0

    def _schedule_running(self) -> None:
        """Pass 1: gives every running request what it needs, as far as the budget goes."""
        self._schedule_decodes()
        while self.req_index < len(self.running) and self.token_budget > 0:
            if not self._schedule_next_running():
                return
            self._schedule_decodes()

    def _schedule_decodes(self) -> None:
        """Schedules requests from the cursor on, up to the first that does more than decode.

        For one token and no block, this is all that the long way comes to.
        """
        if self.config.num_speculative_tokens > 0:
            return
        running, is_async = self.running, self.config.async_scheduling
        num_scheduled_tokens = self.output.num_scheduled_tokens
        scheduled_cached_reqs = self.output.scheduled_cached_reqs
        num_scheduled_before = len(num_scheduled_tokens)
        start = self.req_index
        for index in range(start, min(len(running), start + self.token_budget)):
            request = running[index]
            num_computed_tokens = request.num_computed_tokens
            gap = request.num_tokens + request.num_output_placeholders - num_computed_tokens
            if gap != 1 or num_computed_tokens >= request.decode_until:
                break
            request_id = request.request_id
            num_scheduled_tokens[request_id] = 1
            scheduled_cached_reqs[request_id] = CachedRequestData(False, [], num_computed_tokens)
            request.num_computed_tokens = num_computed_tokens + 1
            request.num_in_flight_tokens += 1
            if is_async:
                request.num_output_placeholders += 1
        num_decodes = len(num_scheduled_tokens) - num_scheduled_before
        self.req_index += num_decodes
        self.token_budget -= num_decodes

    def _schedule_next_running(self) -> bool:
        """Schedules the request at the cursor, whatever it needs; returns whether pass 1 goes on.

        A request that cannot move is skipped and holds nobody up.
        """
        request = self.running[self.req_index]
        num_new_tokens = self._compute_num_new_tokens(request)
        if num_new_tokens > 0:
            num_tokens = self._num_tokens_to_hold(request.num_computed_tokens + num_new_tokens)
            num_new_blocks = self.block_pool.compute_num_new_blocks(request, num_tokens)
            if not self._make_room_for(request, num_new_blocks):
                # If it made room for itself, the cursor points at the request after it already.
                is_victim = request.status == RequestStatus.PREEMPTED
                return is_victim and self.config.continue_after_self_preemption
            self._grant_running(request, num_new_tokens, num_new_blocks)
        self.req_index += 1
        return True

    def _compute_num_new_tokens(self, request: Request) -> int:
        """The gap between what is known, guessed or being sampled and what is computed, capped."""
        num_placeholders = request.num_output_placeholders
        num_tokens_with_spec = request.num_tokens + len(request.draft_token_ids)
        if num_placeholders > 0 and self._samples_its_last_token(request):
            return 0
        return min(
            self._cap_long_prefill(
                num_tokens_with_spec + num_placeholders - request.num_computed_tokens
            ),
            self._tokens_left(),
            # The token to be sampled must still find a place.
            self.config.max_model_len - 1 - request.num_computed_tokens,
        )

    def _tokens_left(self) -> int:
        """What one request more may get of the tighter budget."""
        if self.config.num_draft_slots == 0:
            return self.token_budget
        return min(self.token_budget, self.input_budget - self.config.num_draft_slots)

    def _samples_its_last_token(self, request: Request) -> bool:
        """Whether the latest step in flight samples the last token that `max_tokens` allows."""
        num_tokens = request.num_computed_tokens + 2 - request.num_output_placeholders
        return self.config.stop_at_max_tokens_in_flight and num_tokens >= request.max_num_tokens

    def _cap_long_prefill(self, num_new_tokens: int) -> int:
        threshold = self.long_prefill_token_threshold
        return min(num_new_tokens, threshold) if threshold > 0 else num_new_tokens

    def _make_room_for(self, request: Request, num_new_blocks: int) -> bool:
        """Preempts until `request` finds its blocks; False if it had to go itself.

        Or if the blocks of a victim would not be free at once. The token count stays what it was,
        so what a victim gives back may go to waste.
        """
        while num_new_blocks > self.block_pool.num_free_blocks:
            victim = self._choose_victim()
            num_planned = self.output.num_scheduled_tokens.get(victim.request_id, 0)
            if not self._can_be_freed(victim, num_planned):
                return False
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _choose_victim(self) -> Request:
        """The last to be served: FCFS the last; priority the first greatest (priority, arrival)."""
        if self.config.policy == "priority":
            return max(self.running, key=lambda request: request.rank[:2])
        return self.running[-1]

    def _preempt(self, victim: Request) -> None:
        """Takes everything from a running request but its tokens; it goes to the head of waiting.

        Its blocks are free at once, also with steps in flight, unless they are kept back: those are
        void, and their output is stale. If it is dropped, so is all that comes back until it has.
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
        victim.draft_token_ids = []
        victim.is_prefill_chunk = False
        victim.num_preemptions += 1
        self.waiting.prepend_request(victim)
        self.output.preempted_req_ids.append(victim.request_id)

    def _leave_running(self, victim: Request) -> None:
        """Closes the gap in `running`; the cursor stays on its request (dialects differ)."""
        index = len(self.running) - 1
        if self.running[index] is not victim:
            index = self.running.index(victim)
        del self.running[index]
        if index < self.req_index and self._cursor_follows(victim):
            self.req_index -= 1

    def _cursor_follows(self, victim: Request) -> bool:
        rule = self.config.cursor_follows_victim
        if rule == "scheduled":
            return victim.request_id in self.output.num_scheduled_tokens
        return rule == "always"

    def _take_back(self, victim: Request) -> None:
        """Removes a victim from the step's output, if it is there; the budget gets its tokens."""
        num_scheduled_tokens = self.output.num_scheduled_tokens.pop(victim.request_id, 0)
        if num_scheduled_tokens:
            self.token_budget += num_scheduled_tokens
            self.input_budget += num_scheduled_tokens + self.config.num_draft_slots
            self.output.scheduled_spec_decode_tokens.pop(victim.request_id, None)
            victim.num_in_flight_tokens -= num_scheduled_tokens
            del self.output.scheduled_cached_reqs[victim.request_id]

    def _grant_running(self, request: Request, num_new_tokens: int, num_new_blocks: int) -> None:
        """Schedules a running request, and tells the worker the new blocks only.

        Publishes what earlier steps promised, but not this chunk: until pass 1 is over it may be
        taken back.
        """
        num_computed_tokens = request.num_computed_tokens
        self.is_prefill_scheduled |= request.is_prefill_chunk
        if request.draft_token_ids:
            self._schedule_drafts(request, num_computed_tokens + num_new_tokens)
        new_block_ids = self._grant(request, num_new_tokens, num_new_blocks, NO_HIT)
        self.block_pool.cache_full_blocks(request, num_computed_tokens)
        if self.config.publish_at_grant:
            self.block_pool.cache_full_blocks(request, request.num_computed_tokens)
        self.output.scheduled_cached_reqs[request.request_id] = CachedRequestData(
            False, new_block_ids, num_computed_tokens
        )

    def _schedule_drafts(self, request: Request, num_tokens: int) -> None:
        """Lets the step verify the drafts among the first `num_tokens` tokens; forgets the others.

        Guesses are for one step only: whatever it samples, the next ones follow on that.
        """
        num_drafts = num_tokens - request.num_tokens - request.num_output_placeholders
        if num_drafts > 0:
            drafts = request.draft_token_ids[:num_drafts]
            self.output.scheduled_spec_decode_tokens[request.request_id] = drafts
        request.draft_token_ids = []

    # ---- pass 2: the heads of the waiting queues -------------------------------------------------

    def _schedule_waiting(self) -> None:
        """Pass 2: admits the head of the queue that is next, until a gate stops it.

        One that is not ready or lacks a slot is set aside and put back; one that does not fit stops
        admission, so that small requests never overtake a large one (head-of-line blocking).
        """
        if self.config.reserve_admitted_prefills:
            self.num_reserved_blocks = sum(map(self._num_missing_blocks, self.running))
        if self.slots.is_limited:
            self._count_slots()
        self.is_anybody_granted = bool(self.output.num_scheduled_tokens)
        skipped: list[Request] = []
        while (queue := self._next_queue()) and self._tokens_left() > 0 and self._has_seat():
            head = queue.peek_request()
            self._promote_loaded(head)
            if not self._is_ready(head) or not self.slots.has_slot(head):
                skipped.append(queue.pop_request())
            elif not self._admit_head():
                break
            elif self.config.load_kv_async and self._is_waiting_for_kv(head):
                skipped.append(head)
        for request in reversed(skipped):
            self._queue_of(request).prepend_request(request)

    def _count_slots(self) -> None:
        for request in self.running:
            is_scheduled = request.request_id in self.output.num_scheduled_tokens
            self.slots.take(request, is_scheduled=is_scheduled)

    def _admit_head(self) -> bool:
        """Admits the head of the queue that is next if it fits; a refusal changes nothing."""
        request = self._next_queue().peek_request()
        # Whoever holds blocks has been looked up before.
        hit = NO_HIT if request.block_ids else self.block_pool.find_longest_cache_hit(request)
        end_of_load = self._end_of_load(request, hit)
        if end_of_load > 0:
            return self._load_head(request, end_of_load, hit)
        num_computed_tokens = request.num_computed_tokens
        num_computed_tokens += len(hit.block_ids) * self.config.block_size
        num_new_tokens = self._cap_long_prefill(request.num_tokens - num_computed_tokens)
        if not self._may_be_cut(num_new_tokens):
            return False
        num_padding = self._compute_num_padding(request, num_computed_tokens)
        if num_padding > 0 and not self._may_be_padded(num_padding):
            return False
        num_new_tokens = min(num_new_tokens, self._tokens_left()) + num_padding
        num_tokens = num_computed_tokens + num_new_tokens
        if not self.slots.may_be_partial(request, num_tokens):
            return False
        if not self._has_room_for(request, num_tokens, hit):
            return False
        if num_padding > 0:
            self.output.scheduled_spec_decode_tokens[request.request_id] = [-1] * num_padding
        self._admit(request, num_computed_tokens, num_new_tokens, hit)
        return True

    def _load_head(self, request: Request, end: int, hit: CacheHit) -> bool:
        """Begins a load for the head of the queue, beside the step, if it fits; it goes on waiting.

        A load cannot be preempted, so it leaves alone what unfinished prefills and loads need.
        """
        pool = self.block_pool
        num_blocks = pool.compute_num_new_blocks(request, end, hit) + self._num_blocks_of_prefills()
        if self.config.scheduler_reserve_full_isl:
            num_tokens = self._num_tokens_of_sequence(request)
            num_whole = pool.compute_num_new_blocks(request, num_tokens, hit)
            num_blocks = max(num_blocks, num_whole + self.num_reserved_blocks)
        num_blocks += hit.num_free_blocks
        num_blocks += self.config.num_watermark_blocks if self.running else 0
        if num_blocks > pool.num_free_blocks:
            return False
        self._next_queue().pop_request()
        self._begin_load(request, end, hit)
        return True

    def _has_seat(self) -> bool:
        """Gate: fewer than `max_num_seqs` requests run, or wait for a chunk and keep their seat."""
        num_seats = len(self.running) + self.num_waiting_for_streaming_input
        return num_seats < self.config.max_num_seqs

    def _is_ready(self, request: Request) -> bool:
        """Gate: its grammar is compiled, its KV and input are there, no voided step is in flight.

        The token of such a step would be sampled twice, unless it is dropped.
        """
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return False
        if self.config.load_kv_async and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            return False
        if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            return False
        if request.drop_stale_output:
            return True
        return request.num_stale_output_tokens == 0 or not self.config.wait_for_stale_output

    def _may_be_cut(self, num_new_tokens: int) -> bool:
        """Gate: prompts may be computed in chunks, or this one fits the budget whole."""
        return self.config.enable_chunked_prefill or num_new_tokens <= self._tokens_left()

    def _compute_num_padding(self, request: Request, num_computed_tokens: int) -> int:
        """Draft slots for an admission of one token, so that all requests of a step are alike.

        None while a prompt is computed, or for all there is of one alone, or without room.
        """
        num_drafts = self.config.num_speculative_tokens
        if num_drafts == 0 or request.num_tokens - num_computed_tokens != 1:
            return 0
        is_alone = num_computed_tokens == 0 and not self.is_anybody_granted
        has_room = request.num_tokens + num_drafts < self.config.max_model_len
        may_pad = self.config.pad_admitted_decodes and has_room
        return num_drafts if may_pad and not is_alone and not self.is_prefill_scheduled else 0

    def _may_be_padded(self, num_padding: int) -> bool:
        """Gate: the padding fits the budgets whole, beside the one token."""
        return num_padding < self._tokens_left()

    def _num_tokens_at_admission(self, request: Request, num_tokens: int) -> int:
        """So many tokens, and what is written ahead of them where an admission is given that."""
        if self.config.lookahead_at_admission or request.block_ids:
            return self._num_tokens_to_hold(num_tokens)
        return num_tokens

    def _has_room_for(self, request: Request, num_tokens: int, hit: CacheHit) -> bool:
        """Gate: the first `num_tokens` (whole-sequence gate: all, too) fit in the free blocks."""
        num_tokens = self._num_tokens_at_admission(request, num_tokens)
        if self.config.scheduler_reserve_full_isl:
            num_tokens = max(num_tokens, self._num_tokens_of_sequence(request))
        num_tokens = min(num_tokens, self.config.max_model_len)
        num_blocks = self.block_pool.compute_num_new_blocks(request, num_tokens, hit)
        # Adopting a hit block that nobody holds uses up a free block.
        num_blocks += hit.num_free_blocks
        if self.running:
            num_blocks += self.config.num_watermark_blocks
        return num_blocks + self.num_reserved_blocks <= self.block_pool.num_free_blocks

    def _num_tokens_of_sequence(self, request: Request) -> int:
        """All tokens that it knows; where they are reserved, those written ahead of them, too."""
        num_tokens = request.num_tokens
        if self.config.reserve_admitted_prefills:
            num_tokens += self.config.num_lookahead_tokens
        return min(num_tokens, self.config.max_model_len)

    def _num_missing_blocks(self, request: Request) -> int:
        """Blocks that a running request still needs for its whole sequence."""
        num_tokens = self._num_tokens_of_sequence(request)
        return self.block_pool.compute_num_new_blocks(request, num_tokens)

    def _admit(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int, hit: CacheHit
    ) -> None:
        """Moves the head of the queue to the tail of `running`; the worker gets its whole table."""
        is_resumed = request.status == RequestStatus.PREEMPTED
        self.running.append(self._next_queue().pop_request())
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_computed_tokens
        num_tokens = num_computed_tokens + num_new_tokens
        num_tokens = self._num_tokens_at_admission(request, num_tokens)
        num_new_blocks = self.block_pool.compute_num_new_blocks(request, num_tokens, hit)
        self._grant(request, num_new_tokens, num_new_blocks, hit)
        if self.config.load_kv_async and request.num_computed_tokens < request.num_tokens:
            self.inflight_prefills.add(request)
        if self.config.same_step_prefix_hits:
            self._publish_granted()
        if self.config.reserve_admitted_prefills:
            self.num_reserved_blocks += self._num_missing_blocks(request)
        if self.slots.is_limited:
            self.slots.take(request, is_scheduled=True)
        if is_resumed:
            self.output.scheduled_cached_reqs[request.request_id] = CachedRequestData(
                True, list(request.block_ids), num_computed_tokens
            )
        else:
            self.output.scheduled_new_reqs[request.request_id] = NewRequestData(
                request.prompt_token_ids, num_computed_tokens, list(request.block_ids)
            )

    # ---- effects shared by both passes -----------------------------------------------------------

    def _grant(
        self, request: Request, num_new_tokens: int, num_new_blocks: int, hit: CacheHit
    ) -> list[int]:
        """Schedules tokens of a running request and gives it blocks; returns the new ones."""
        self.output.num_scheduled_tokens[request.request_id] = num_new_tokens
        self.token_budget -= num_new_tokens
        self.input_budget -= num_new_tokens + self.config.num_draft_slots
        self.granted.append(request)
        self._advance(request, num_new_tokens)
        return self.block_pool.allocate(request, num_new_blocks, hit)

    def _advance(self, request: Request, num_new_tokens: int) -> None:
        """Counts what is promised as computed, so that the next step can be planned at once."""
        request.num_computed_tokens += num_new_tokens
        request.num_in_flight_tokens += num_new_tokens
        num_known_tokens = request.num_tokens + request.num_output_placeholders
        if self.config.num_speculative_tokens > 0:
            request.is_prefill_chunk = request.num_computed_tokens < num_known_tokens
        if self.config.async_scheduling and request.num_computed_tokens >= num_known_tokens:
            drafts = self.output.scheduled_spec_decode_tokens.get(request.request_id, ())
            request.num_output_placeholders += 1 + len(drafts)
            request.draft_token_ids = [-1] * self.config.num_speculative_tokens

    def _forget_unscheduled_drafts(self) -> None:
        """Async scheduling: the worker drafts for those in the step, and for nobody else."""
        for request in self.running:
            if request.request_id not in self.output.num_scheduled_tokens:
                request.draft_token_ids = []

    def _publish_granted(self) -> None:
        """Publishes what this step computes, once nothing can take it back."""
        for request in self.granted:
            # One that was taken back has nothing computed.
            self.block_pool.cache_full_blocks(request, request.num_computed_tokens)
        self.granted.clear()

    # ---- the end of a step -----------------------------------------------------------------------

    def _end_step(self) -> SchedulerOutput:
        """Hands the output out; `finished_req_ids` goes with it, once, even if the step is idle."""
        if self.forgets_drafts:
            self._forget_unscheduled_drafts()
        output = self.output
        self._note_planned(output)
        if self.config.load_kv_async:
            self._tell_loads(output)
            self._forget_finished_prefills()
        output.finished_req_ids = self.finished_req_ids
        output.new_block_ids_to_zero = self.block_pool.take_new_block_ids()
        self.finished_req_ids = []
        self.output = SchedulerOutput()
        return output
