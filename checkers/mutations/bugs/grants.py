"""Bugs in budgets, gates and grants: how many tokens a step computes, and who may join it."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method


@mutation(
    target="impl.scheduler:FastScheduler._grant_running",
    setting="deep-first-chunk",
    changes=("max_num_scheduled_tokens=4", "long_prefill_token_threshold=1"),
    caught_by="token_budget_is_kept",
    is_rare=True,
)
def whoever_preempts_takes_all_it_can(original: Method) -> Method:
    """Once a step has preempted, a request gets as much of its gap as there are blocks for."""

    def _grant_running(self: Any, request: Any, num_new_tokens: int, num_new_blocks: int) -> None:
        if self.output.preempted_req_ids:
            pool, start = self.block_pool, request.num_computed_tokens
            num_slots = (len(request.block_ids) + pool.num_free_blocks) * pool.block_size
            num_new_tokens = min(request.num_tokens, num_slots) - start
            num_new_blocks = pool.compute_num_new_blocks(request, start + num_new_tokens)
        original(self, request, num_new_tokens, num_new_blocks)

    return _grant_running


@mutation(
    target="impl.scheduler:FastScheduler._grant",
    setting="plain",
    caught_by="token_budget_is_kept",
    source="mini-sglang #47",
)
def a_grant_costs_nothing(original: Method) -> Method:
    """The tokens that a request is granted are not taken off the budget."""

    def _grant(self: Any, *args: Any) -> Any:
        token_budget = self.token_budget
        new_block_ids = original(self, *args)
        self.token_budget = token_budget
        return new_block_ids

    return _grant


@mutation(
    target="impl.scheduler:FastScheduler._begin_step",
    setting="plain",
    caught_by="input_budget_is_kept",
)
def the_budget_is_one_too_many(original: Method) -> Method:
    """A step may compute one token more than the budget says."""

    def _begin_step(self: Any) -> None:
        original(self)
        self.token_budget += 1

    return _begin_step


@mutation(
    target="impl.scheduler:FastScheduler._has_seat",
    setting="plain",
    caught_by="max_num_seqs_is_kept",
)
def one_seat_too_many(original: Method) -> Method:
    """A request is admitted while max_num_seqs run already."""

    def _has_seat(self: Any) -> bool:
        return bool(len(self.running) <= self.config.max_num_seqs)

    return _has_seat


@mutation(
    target="impl.scheduler:FastScheduler._cap_long_prefill",
    setting="deep-fcfs",
    caught_by="grants_are_maximal",
    source="vLLM #49075",
)
def the_threshold_is_never_read(original: Method) -> Method:
    """long_prefill_token_threshold has no effect."""

    def _cap_long_prefill(self: Any, num_new_tokens: int) -> int:
        return num_new_tokens

    return _cap_long_prefill


@mutation(
    target="impl.scheduler:FastScheduler._admit",
    setting="tiny",
    caught_by="grants_are_maximal",
    source="vllm-ascend #822",
)
def a_resumed_request_recomputes_its_prompt_only(original: Method) -> Method:
    """A request that comes back from a preemption computes its prompt, and not its outputs."""

    def _admit(self: Any, request: Any, start: int, num_new_tokens: int, hit: Any) -> None:
        num_new_tokens = min(num_new_tokens, max(request.num_prompt_tokens - start, 1))
        original(self, request, start, num_new_tokens, hit)

    return _admit


@mutation(
    target="impl.scheduler:FastScheduler._samples_its_last_token",
    setting="async",
    caught_by="grants_are_maximal",
    source="vLLM #27922",
)
def one_step_past_max_tokens(original: Method) -> Method:
    """Under async scheduling a step is scheduled past the one that samples the last token."""

    def _samples_its_last_token(self: Any, request: Any) -> bool:
        return False

    return _samples_its_last_token


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="plain",
    caught_by="admitted_sequences_fit",
)
def the_gate_looks_at_a_chunk(original: Method) -> Method:
    """scheduler_reserve_full_isl is ignored: a request is admitted if its first chunk fits."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        num_blocks = self.block_pool.compute_num_new_blocks(request, num_tokens, hit)
        return bool(num_blocks + hit.num_free_blocks <= self.block_pool.num_free_blocks)

    return _has_room_for


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="gates",
    caught_by="admitted_sequences_fit",
)
def the_watermark_is_ignored(original: Method) -> Method:
    """An admission may take the last free blocks, though others run."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        running, self.running = self.running, []
        has_room = bool(original(self, request, num_tokens, hit))
        self.running = running
        return has_room

    return _has_room_for


@mutation(
    target="impl.scheduler:FastScheduler._num_missing_blocks",
    setting="thrash-reserved",
    caught_by="admitted_sequences_fit",
)
def nothing_is_reserved(original: Method) -> Method:
    """The reserve-aware gate leaves nothing alone for prompts that are not yet computed."""

    def _num_missing_blocks(self: Any, request: Any) -> int:
        return 0

    return _num_missing_blocks


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="prefix",
    caught_by="work_is_conserved",
    source="LMDeploy #4100",
)
def reusable_blocks_are_not_free(original: Method) -> Method:
    """Admission does not count free blocks that can still be found, though they can be evicted."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        pool = self.block_pool
        num_clean_blocks = sum(name not in pool.prefix_cache for name in pool.free_block_queue)
        num_blocks = pool.compute_num_new_blocks(request, num_tokens, hit)
        return num_blocks <= num_clean_blocks and bool(original(self, request, num_tokens, hit))

    return _has_room_for


@mutation(
    target="impl.scheduler:FastScheduler._make_room_for",
    setting="plain",
    caught_by="nobody_is_preempted_for_nothing",
)
def somebody_is_preempted_for_nothing(original: Method) -> Method:
    """A request that takes the last free blocks preempts somebody all the same."""

    def _make_room_for(self: Any, request: Any, num_new_blocks: int) -> bool:
        if 0 < num_new_blocks == self.block_pool.num_free_blocks:
            num_new_blocks += 1
        return bool(original(self, request, num_new_blocks))

    return _make_room_for


@mutation(
    target="impl.scheduler:FastScheduler._schedule_next_running",
    setting="priority",
    caught_by="same_as_spec",
    source="vLLM #26765",
)
def a_self_preemption_ends_the_pass(original: Method) -> Method:
    """Once a request has preempted itself, those behind it get nothing.

    Only lockstep sees it: what a preemption leaves of a budget may go to waste, and engines differ
    on how much does.
    """

    def _schedule_next_running(self: Any) -> bool:
        request = self.running[self.req_index]
        return bool(original(self)) and request.request_id not in self.output.preempted_req_ids

    return _schedule_next_running


@mutation(
    target="impl.scheduler:FastScheduler._take_back",
    setting="take-back",
    caught_by="same_as_spec",
    source="vLLM #23347",
)
def the_budget_of_a_victim_is_lost(original: Method) -> Method:
    """What a victim had been granted in this step does not return to the budget.

    Only lockstep sees it: what a preemption leaves of a budget may go to waste, and engines differ
    on how much does.
    """

    def _take_back(self: Any, victim: Any) -> None:
        token_budget = self.token_budget
        original(self, victim)
        self.token_budget = token_budget

    return _take_back


@mutation(
    target="impl.scheduler:FastScheduler._has_seat",
    setting="async",
    caught_by="max_num_seqs_is_kept",
    source="nano-vllm #265",
)
def seats_count_who_is_scheduled(original: Method) -> Method:
    """A request that runs and is not scheduled in this step takes no seat."""

    def _has_seat(self: Any) -> bool:
        return bool(len(self.output.num_scheduled_tokens) < self.config.max_num_seqs)

    return _has_seat


@mutation(
    target="impl.scheduler:FastScheduler._has_seat",
    setting="plain",
    caught_by="max_num_seqs_is_kept",
    source="vllm-ascend #822",
)
def seats_count_who_is_new(original: Method) -> Method:
    """Only those that this very step has admitted take a seat."""

    def _has_seat(self: Any) -> bool:
        return bool(len(self.output.scheduled_new_reqs) < self.config.max_num_seqs)

    return _has_seat


@mutation(
    target="impl.scheduler:FastScheduler._has_seat",
    setting="plain",
    caught_by="work_is_conserved",
    source="LMDeploy #4532",
)
def decodes_shut_the_door(original: Method) -> Method:
    """Nobody is admitted while somebody runs."""

    def _has_seat(self: Any) -> bool:
        return bool(original(self)) and not self.output.scheduled_cached_reqs

    return _has_seat


@mutation(
    target="impl.scheduler:FastScheduler._schedule_running",
    setting="plain",
    caught_by="scheduled_requests_run",
    source="inference-sim #349",
)
def a_victim_is_visited_all_the_same(original: Method) -> Method:
    """Pass 1 goes through a copy of the queue, and gives blocks to those that it has preempted."""

    def _schedule_running(self: Any) -> None:
        for request in list(self.running):
            num_new_tokens = self._compute_num_new_tokens(request)
            if num_new_tokens <= 0:
                continue
            num_tokens = request.num_computed_tokens + num_new_tokens
            num_new_blocks = self.block_pool.compute_num_new_blocks(request, num_tokens)
            if num_new_blocks > self.block_pool.num_free_blocks:
                self._preempt(self._choose_victim())
            if num_new_blocks <= self.block_pool.num_free_blocks:
                self._grant_running(request, num_new_tokens, num_new_blocks)

    return _schedule_running


@mutation(
    target="impl.scheduler:FastScheduler._schedule_next_running",
    setting="plain",
    caught_by="grants_are_maximal",
    source="SGLang #14872",
)
def nobody_is_preempted(original: Method) -> Method:
    """A request that finds no blocks is passed over, and nobody makes room for it."""

    def _schedule_next_running(self: Any) -> bool:
        request = self.running[self.req_index]
        num_tokens = request.num_computed_tokens + self._compute_num_new_tokens(request)
        num_new_blocks = self.block_pool.compute_num_new_blocks(request, num_tokens)
        if num_new_blocks <= self.block_pool.num_free_blocks:
            return bool(original(self))
        self.req_index += 1
        return True

    return _schedule_next_running


@mutation(
    target="impl.scheduler:FastScheduler._num_tokens_of_sequence",
    setting="reserved-drafts",
    caught_by="admitted_sequences_fit",
)
def the_reserve_forgets_what_is_written_ahead(original: Method) -> Method:
    """What a drafter writes ahead of an admitted prompt is not left free for it."""

    def _num_tokens_of_sequence(self: Any, request: Any) -> int:
        return int(min(request.num_tokens, self.config.max_model_len))

    return _num_tokens_of_sequence


@mutation(
    target="impl.scheduler:FastScheduler._may_be_cut",
    setting="whole-prompts",
    caught_by="same_as_spec",
)
def a_hit_does_not_count_where_prompts_are_whole(original: Method) -> Method:
    """A prompt is refused that the budget holds but for what is found of it."""

    def _may_be_cut(self: Any, num_new_tokens: int) -> bool:
        return bool(original(self, self._next_queue().peek_request().num_tokens))

    return _may_be_cut


@mutation(
    target="impl.scheduler:FastScheduler._may_be_cut",
    setting="whole-prompts-again",
    caught_by="same_as_spec",
)
def only_the_prompt_must_be_whole(original: Method) -> Method:
    """Whoever was preempted is computed again in chunks as soon as the prompt alone would fit."""

    def _may_be_cut(self: Any, num_new_tokens: int) -> bool:
        num_prompt_tokens = self._next_queue().peek_request().num_prompt_tokens
        return bool(original(self, min(num_new_tokens, num_prompt_tokens)))

    return _may_be_cut


@mutation(
    target="impl.scheduler:FastScheduler._load_head",
    setting="reserved-loads",
    caught_by="loads_leave_room_for_prefills",
)
def a_load_takes_what_is_reserved(original: Method) -> Method:
    """The reserve-aware gate leaves alone what admitted prompts need, unless a load begins."""

    def _load_head(self: Any, request: Any, end: int, hit: Any) -> bool:
        num_reserved_blocks, self.num_reserved_blocks = self.num_reserved_blocks, 0
        has_begun = bool(original(self, request, end, hit))
        self.num_reserved_blocks = num_reserved_blocks
        return has_begun

    return _load_head
