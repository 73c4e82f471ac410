"""Bugs in loads of KV from a remote store, and in who waits for them."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method
from spec.interface import RequestStatus

# ---- how a load begins ---------------------------------------------------------------------------


@mutation(
    target="impl.scheduler:FastScheduler._num_blocks_of_prefills",
    setting="remote-kv-pauses",
    changes=("scheduler_reserve_full_isl=false", "block_size=3", "num_blocks=2"),
    caught_by="loads_leave_room_for_prefills",
    source="vLLM #45388",
)
def a_load_takes_what_prompts_need(original: Method) -> Method:
    """A load takes the blocks that others need who are in the middle of their prompts."""

    def _num_blocks_of_prefills(self: Any) -> int:
        return 0

    return _num_blocks_of_prefills


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="remote-kv-pauses",
    changes=("block_size=3", "num_blocks=3"),
    caught_by="somebody_gets_a_token",
    is_rare=True,
)
def two_loads_wait_for_each_other(original: Method) -> Method:
    """Whoever was loaded leaves alone what other loads still need, and those do the same."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        self.num_reserved_blocks = self._num_blocks_of_prefills() if request.block_ids else 0
        return bool(original(self, request, num_tokens, hit))

    return _has_room_for


@mutation(
    target="impl.scheduler:FastScheduler._num_tokens_beside",
    setting="deep-remote-kv-drafts",
    caught_by="loads_leave_room_for_prefills",
    source="vLLM #57104",
)
def a_load_forgets_what_is_written_ahead(original: Method) -> Method:
    """A load begins without the slots that its first step of drafts will need."""

    def _num_tokens_beside(self: Any) -> int:
        return 0

    return _num_tokens_beside


@mutation(
    target="impl.scheduler:FastScheduler._forget_finished_prefills",
    setting="deep-remote-kv",
    caught_by="loads_leave_room_for_prefills",
)
def blocks_are_reserved_for_one_step(original: Method) -> Method:
    """Loads leave alone what a prompt still needs in the step that begins it, and then no more."""

    def _forget_finished_prefills(self: Any) -> None:
        self.inflight_prefills.clear()

    return _forget_finished_prefills


@mutation(
    target="impl.scheduler:FastScheduler._forget_finished_prefills",
    setting="remote-kv-recompute",
    changes=("enable_prefix_caching=true", "with_resets=true", "num_blocks=4"),
    caught_by="loads_leave_room_for_prefills",
)
def outputs_are_recomputed_in_what_is_left(original: Method) -> Method:
    """Loads leave alone what a preempted request needs for its prompt, and not for its outputs."""

    def _forget_finished_prefills(self: Any) -> None:
        original(self)
        self.inflight_prefills = {
            request
            for request in self.inflight_prefills
            if request.status != RequestStatus.RUNNING
            or request.num_computed_tokens < request.num_prompt_tokens
        }

    return _forget_finished_prefills


@mutation(
    target="impl.scheduler:FastScheduler._load_head",
    setting="remote-kv-hits",
    caught_by="loads_leave_room_for_prefills",
)
def a_hit_is_room_for_the_rest_of_a_load(original: Method) -> Method:
    """Free blocks that a load hits are counted once more, for what is computed after it."""

    def _load_head(self: Any, request: Any, end: int, hit: Any) -> bool:
        pool = self.block_pool
        num_whole = pool.compute_num_new_blocks(request, self._num_tokens_of_sequence(request), hit)
        num_lacked = pool.compute_num_new_blocks(request, end, hit) + self._num_blocks_of_prefills()
        if max(num_lacked + hit.num_free_blocks, num_whole) > pool.num_free_blocks:
            return False
        self._next_queue().pop_request()
        self._begin_load(request, end, hit)
        return True

    return _load_head


@mutation(
    target="impl.scheduler:FastScheduler._free_request_blocks",
    setting="remote-kv",
    caught_by="work_is_conserved",
)
def blocks_stay_reserved_for_the_dead(original: Method) -> Method:
    """Whoever is aborted in its prompt keeps loads away for ever."""

    def _free_request_blocks(self: Any, request: Any) -> None:
        inflight_prefills = set(self.inflight_prefills)
        original(self, request)
        self.inflight_prefills = inflight_prefills

    return _free_request_blocks


@mutation(
    target="impl.scheduler:FastScheduler._end_of_load",
    setting="deep-remote-kv",
    caught_by="loads_are_told",
)
def a_block_is_loaded_in_part(original: Method) -> Method:
    """The last tokens that the store holds are loaded, too, though they fill no block."""

    def _end_of_load(self: Any, request: Any, hit: Any) -> int:
        return request.num_remote_tokens if original(self, request, hit) else 0

    return _end_of_load


@mutation(
    target="impl.scheduler:FastScheduler._begin_load",
    setting="remote-kv",
    caught_by="loads_are_told",
)
def a_load_is_told_the_whole_table(original: Method) -> Method:
    """A load behind a prefix hit goes to the blocks of the hit, which others read."""

    def _begin_load(self: Any, request: Any, end: int, hit: Any) -> None:
        original(self, request, end, hit)
        _, load = self.deferred_loads[request.request_id]
        load.block_ids = list(request.block_ids)

    return _begin_load


@mutation(
    target="impl.scheduler:FastScheduler._begin_load",
    setting="deep-remote-kv",
    caught_by="loads_are_told",
)
def the_blocks_of_a_load_are_told_sorted(original: Method) -> Method:
    """The blocks of a load are named by their ids, and not in the order of its tokens."""

    def _begin_load(self: Any, request: Any, end: int, hit: Any) -> None:
        original(self, request, end, hit)
        self.deferred_loads[request.request_id][1].block_ids.sort()

    return _begin_load


@mutation(
    target="impl.scheduler:FastScheduler._begin_load",
    setting="remote-kv",
    caught_by="published_blocks_were_written",
)
def a_load_is_published_before_it_arrives(original: Method) -> Method:
    """Others may hit the blocks of a load as soon as it begins."""

    def _begin_load(self: Any, request: Any, end: int, hit: Any) -> None:
        original(self, request, end, hit)
        self.block_pool.cache_full_blocks(request, end)

    return _begin_load


@mutation(
    target="impl.block_pool:BlockPool.leave_unzeroed",
    setting="remote-kv",
    caught_by="what_is_loaded_is_not_zeroed",
)
def what_is_loaded_is_zeroed(original: Method) -> Method:
    """The step zeroes the blocks of a load, before it writes there or afterwards."""

    def leave_unzeroed(self: Any, num_blocks: int) -> None:
        pass

    return leave_unzeroed


@mutation(
    target="impl.scheduler:FastScheduler._tell_loads",
    setting="deferred-frees",
    caught_by="loads_begin_when_they_may",
)
def a_load_does_not_wait_for_steps(original: Method) -> Method:
    """A load begins while a step in flight still reads what its blocks held before."""

    def _tell_loads(self: Any, output: Any) -> None:
        self.deferred_loads = {name: (0, load) for name, (_, load) in self.deferred_loads.items()}
        original(self, output)

    return _tell_loads


@mutation(
    target="impl.scheduler:FastScheduler._tell_loads",
    setting="deferred-frees",
    caught_by="loads_are_told",
)
def a_load_that_has_to_wait_is_lost(original: Method) -> Method:
    """A load that cannot begin in the step of its admission never does."""

    def _tell_loads(self: Any, output: Any) -> None:
        original(self, output)
        self.deferred_loads.clear()

    return _tell_loads


# ---- how it ends ---------------------------------------------------------------------------------


@mutation(
    target="impl.scheduler:FastScheduler.finish_recving",
    setting="remote-kv",
    changes=("enable_prefix_caching=false",),
    caught_by="loaded_tokens_are_counted",
)
def a_load_that_failed_counts_as_whole(original: Method) -> Method:
    """What did not arrive of a load counts as computed."""

    def finish_recving(self: Any, request_id: str, num_valid_tokens: int) -> None:
        request = self.requests.get(request_id)
        original(self, request_id, request.num_computed_tokens if request else 0)

    return finish_recving


@mutation(
    target="impl.scheduler:FastScheduler.finish_recving",
    setting="remote-kv-pauses",
    caught_by="loaded_tokens_are_counted",
)
def the_last_block_of_a_load_is_computed_again(original: Method) -> Method:
    """The last block that has arrived is taken for the first one that has not."""

    def finish_recving(self: Any, request_id: str, num_valid_tokens: int) -> None:
        num_blocks = num_valid_tokens // self.config.block_size
        if num_blocks > 1:
            num_blocks -= 1
        original(self, request_id, num_blocks * self.config.block_size)

    return finish_recving


@mutation(
    target="impl.scheduler:FastScheduler._promote_loaded",
    setting="remote-kv",
    caught_by="scheduled_requests_run",
    source="vLLM #30320",
)
def a_full_load_leaves_nothing_to_compute(original: Method) -> Method:
    """A prompt that was loaded whole is scheduled with no token at all."""

    def _promote_loaded(self: Any, request: Any) -> None:
        num_loaded_tokens = request.num_computed_tokens
        has_ended = request.request_id in self.finished_recving
        original(self, request)
        if has_ended:
            request.num_computed_tokens = num_loaded_tokens

    return _promote_loaded


@mutation(
    target="impl.scheduler:FastScheduler._admit_head",
    setting="remote-kv-pauses",
    changes=("scheduler_reserve_full_isl=false", "block_size=3", "num_blocks=2"),
    caught_by="loaded_tokens_are_counted",
    source="vLLM #18631",
)
def what_is_loaded_is_lost_by_a_refusal(original: Method) -> Method:
    """How much was loaded is known to one step only, so it is lost if that one admits nobody."""

    def _admit_head(self: Any) -> bool:
        head = self._next_queue().peek_request()
        is_admitted = bool(original(self))
        if not is_admitted and head.block_ids:
            head.num_computed_tokens = 0
        return is_admitted

    return _admit_head


@mutation(
    target="impl.scheduler:FastScheduler._forget_lost",
    setting="remote-kv",
    caught_by="work_is_conserved",
)
def blocks_stay_reserved_for_who_lost_its_load(original: Method) -> Method:
    """Whoever asks the store again must leave free what it needs itself, for ever if need be."""

    def _forget_lost(self: Any, request: Any) -> None:
        original(self, request)
        self.inflight_prefills.add(request)

    return _forget_lost


@mutation(
    target="impl.scheduler:FastScheduler._forget_lost",
    setting="remote-kv",
    caught_by="new_blocks_are_zeroed",
)
def a_load_that_brought_nothing_keeps_its_blocks(original: Method) -> Method:
    """A request whose load has failed holds the blocks of it, and computes nothing."""

    def _forget_lost(self: Any, request: Any) -> None:
        pass

    return _forget_lost


@mutation(
    target="impl.block_pool:BlockPool.zero",
    setting="remote-kv",
    caught_by="what_is_loaded_is_not_zeroed",
)
def what_did_not_arrive_is_not_zeroed(original: Method) -> Method:
    """Blocks that a load left unwritten are computed into as they are."""

    def zero(self: Any, block_ids: Any) -> None:
        pass

    return zero


@mutation(
    target="impl.scheduler:FastScheduler._promote_loaded",
    setting="remote-kv-pauses",
    caught_by="diff_is_sufficient",
    is_rare=True,
)
def a_preempted_request_is_loaded_as_new(original: Method) -> Method:
    """Whoever is loaded again after a preemption is sent as new to a worker that knows it."""

    def _promote_loaded(self: Any, request: Any) -> None:
        original(self, request)
        if request.status.name == "PREEMPTED":
            request.status = type(request.status).WAITING

    return _promote_loaded


@mutation(
    target="impl.scheduler:FastScheduler._promote_loaded",
    setting="remote-kv-pauses",
    caught_by="somebody_gets_a_token",
    source="vllm-ascend #8279",
    is_rare=True,
)
def a_load_is_never_over(original: Method) -> Method:
    """That a load has ended is noted, and nobody looks, so its request waits for ever."""

    def _promote_loaded(self: Any, request: Any) -> None:
        pass

    return _promote_loaded


@mutation(
    target="impl.scheduler:FastScheduler._is_ready",
    setting="remote-kv",
    changes=("enable_prefix_caching=false",),
    caught_by="nobody_overtakes",
)
def who_is_loaded_is_admitted(original: Method) -> Method:
    """A request runs on KV that has not arrived yet."""

    def _is_ready(self: Any, request: Any) -> bool:
        return self._is_waiting_for_kv(request) or bool(original(self, request))

    return _is_ready


# ---- ends while a load writes --------------------------------------------------------------------


@mutation(
    target="impl.scheduler:FastScheduler._free_request_blocks",
    setting="remote-kv",
    caught_by="blocks_are_kept_back_while_written",
    source="vLLM #32255",
)
def an_abort_frees_what_a_load_writes(original: Method) -> Method:
    """Blocks of an aborted request are handed out while a transfer writes there."""

    def _free_request_blocks(self: Any, request: Any) -> None:
        self.deferred_loads.pop(request.request_id, None)
        self.inflight_prefills.discard(request)
        self.block_pool.free(request)

    return _free_request_blocks


@mutation(
    target="impl.scheduler:FastScheduler.finish_recving",
    setting="remote-kv",
    caught_by="engine_raises",
    source="vLLM #46240",
)
def the_end_of_a_load_needs_its_request(original: Method) -> Method:
    """A load that ends after its request has looks for it, and the engine dies."""

    def finish_recving(self: Any, request_id: str, num_valid_tokens: int) -> None:
        original(self, self.requests[request_id].request_id, num_valid_tokens)

    return finish_recving


@mutation(
    target="impl.scheduler:FastScheduler.finish_recving",
    setting="remote-kv",
    caught_by="blocks_are_kept_back_while_written",
)
def the_end_of_an_abandoned_load_is_ignored(original: Method) -> Method:
    """Blocks of who has ended are never free, since the end of its load is for nobody."""

    def finish_recving(self: Any, request_id: str, num_valid_tokens: int) -> None:
        if request_id in self.requests:
            original(self, request_id, num_valid_tokens)

    return finish_recving


@mutation(
    target="impl.scheduler:FastScheduler._is_loading",
    setting="remote-kv",
    caught_by="blocks_are_kept_back_while_written",
    source="vLLM #32255",
)
def an_abort_waits_for_a_load_that_is_over(original: Method) -> Method:
    """Blocks of who is aborted before it is looked at again wait for a second end of its load."""

    def _is_loading(self: Any, request: Any) -> bool:
        return self._is_waiting_for_kv(request) and request.request_id not in self.deferred_loads

    return _is_loading


@mutation(
    target="impl.scheduler:FastScheduler._is_loading",
    setting="deferred-frees",
    changes=("num_blocks=6",),
    caught_by="blocks_are_kept_back_while_written",
)
def an_abort_waits_for_a_load_that_never_began(original: Method) -> Method:
    """Blocks of a load that was deferred wait for its end, of which nobody will tell."""

    def _is_loading(self: Any, request: Any) -> bool:
        return self._is_waiting_for_kv(request) and request.request_id not in self.finished_recving

    return _is_loading


# ---- who holds KV and waits ----------------------------------------------------------------------


@mutation(
    target="impl.scheduler:FastScheduler._queue_of",
    setting="remote-kv",
    caught_by="whoever_holds_kv_is_first",
)
def whoever_holds_kv_waits_with_the_others(original: Method) -> Method:
    """There is one queue for all, so others come before those who hold blocks."""

    def _queue_of(self: Any, request: Any) -> Any:
        return self.waiting

    return _queue_of


@mutation(
    target="impl.scheduler:FastScheduler._next_queue",
    setting="remote-kv-pauses",
    caught_by="somebody_gets_a_token",
    source="vllm-ascend #10559",
    is_rare=True,
)
def the_second_queue_is_not_looked_into(original: Method) -> Method:
    """Whoever holds KV waits in a queue that is not looked into, so it is never admitted."""

    def _next_queue(self: Any) -> Any:
        return self.waiting if self.pause_state == "unpaused" else original(self)

    return _next_queue


@mutation(
    target="impl.scheduler:FastScheduler._next_queue",
    setting="remote-kv-pauses",
    caught_by="pauses_are_kept",
)
def a_pause_admits_all_behind_who_holds_kv(original: Method) -> Method:
    """While admission is paused, requests without KV are admitted behind those who have some."""

    def _next_queue(self: Any) -> Any:
        is_paused = self.pause_state != "unpaused" and not self.output.num_scheduled_tokens
        return original(self) if self.kv_holding_waiting or is_paused else self.waiting

    return _next_queue


@mutation(
    target="impl.scheduler:FastScheduler._schedule_waiting",
    setting="remote-kv-pauses",
    caught_by="work_is_conserved",
)
def a_pause_keeps_whoever_holds_kv(original: Method) -> Method:
    """While admission is paused, blocks that were loaded are held by requests that cannot run."""

    def _schedule_waiting(self: Any) -> None:
        if self.pause_state != "paused_new":
            original(self)

    return _schedule_waiting


@mutation(
    target="impl.scheduler:FastScheduler._has_seat",
    setting="remote-kv",
    caught_by="work_is_conserved",
    source="vLLM #42568",
)
def a_load_takes_a_seat(original: Method) -> Method:
    """Requests that are loaded count for max_num_seqs, though they do not run."""

    def _has_seat(self: Any) -> bool:
        num_loading = len([r for r in self.requests.values() if self._is_waiting_for_kv(r)])
        return bool(len(self.running) + num_loading < self.config.max_num_seqs)

    return _has_seat


@mutation(
    target="impl.scheduler:FastScheduler._end_of_load",
    setting="remote-kv-pauses",
    caught_by="same_as_spec",
)
def nothing_is_loaded_again(original: Method) -> Method:
    """Whoever was preempted computes all of its prompt, though the store still holds it."""

    def _end_of_load(self: Any, request: Any, hit: Any) -> int:
        return 0 if request.num_preemptions else original(self, request, hit)

    return _end_of_load


@mutation(
    target="impl.scheduler:FastScheduler._num_blocks_of_prefills",
    setting="remote-kv-drafts",
    caught_by="loads_leave_room_for_prefills",
)
def what_is_beside_a_prefill_ends_with_the_context(original: Method) -> Method:
    """A step of drafts counts for a prefill only as far as max_model_len."""

    def _num_blocks_of_prefills(self: Any) -> int:
        num_beside = self._num_tokens_beside()
        lacked = [
            self.block_pool.compute_num_new_blocks(
                request, min(request.num_tokens + num_beside, self.config.max_model_len)
            )
            for request in self.inflight_prefills
        ]
        return int(self.block_pool.num_blocks_for(num_beside) + sum(lacked))

    return _num_blocks_of_prefills
