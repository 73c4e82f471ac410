"""Bugs in pauses, refusals, slots, grammars and resets."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method
from spec.interface import RequestStatus


@mutation(
    target="impl.scheduler:FastScheduler.set_pause_state",
    setting="pauses",
    caught_by="pauses_are_kept",
)
def a_pause_of_all_stops_admission_only(original: Method) -> Method:
    """A pause of everything lets running requests go on."""

    def set_pause_state(self: Any, pause_state: str) -> None:
        original(self, "unpaused" if pause_state == "unpaused" else "paused_new")

    return set_pause_state


@mutation(
    target="impl.scheduler:FastScheduler.set_pause_state",
    setting="pauses",
    caught_by="queues_keep_their_order",
)
def a_pause_preempts(original: Method) -> Method:
    """A pause of everything takes the blocks of whoever runs."""

    def set_pause_state(self: Any, pause_state: str) -> None:
        original(self, pause_state)
        if pause_state == "paused_all":
            self.reset_prefix_cache(reset_running_requests=True)

    return set_pause_state


@mutation(
    target="impl.scheduler:FastScheduler.set_pause_state",
    setting="pauses",
    caught_by="work_is_conserved",
)
def a_pause_has_no_end(original: Method) -> Method:
    """Once admission is paused, it stays so."""

    def set_pause_state(self: Any, pause_state: str) -> None:
        is_ending = pause_state == "unpaused" and self.pause_state == "paused_new"
        original(self, self.pause_state if is_ending else pause_state)

    return set_pause_state


@mutation(
    target="impl.scheduler:FastScheduler._may_outgrow_pool",
    setting="refusals",
    caught_by="what_never_fits_is_refused",
    source="vLLM #39734",
)
def a_request_larger_than_the_pool_waits(original: Method) -> Method:
    """A request that may outgrow the pool is taken, and waits for ever."""

    def _may_outgrow_pool(self: Any, request: Any) -> bool:
        return False

    return _may_outgrow_pool


@mutation(
    target="impl.scheduler:FastScheduler._may_outgrow_pool",
    setting="refusals",
    caught_by="what_never_fits_is_refused",
)
def a_request_that_just_fits_is_refused(original: Method) -> Method:
    """The last token, which is never computed, is given a place, too."""

    def _may_outgrow_pool(self: Any, request: Any) -> bool:
        return bool(request.max_num_tokens > self.config.num_blocks * self.config.block_size)

    return _may_outgrow_pool


@mutation(
    target="impl.slots:Slots.take",
    setting="loras",
    changes=("idle_loras_count=false",),
    caught_by="max_loras_is_kept",
)
def adapters_are_not_counted(original: Method) -> Method:
    """The adapters of a step are counted, but not those that it admits."""

    def take(self: Any, request: Any, *, is_scheduled: bool) -> None:
        original(self, request, is_scheduled=False)

    return take


@mutation(
    target="impl.slots:Slots.take",
    setting="loras-async",
    caught_by="max_loras_is_kept",
)
def an_idle_adapter_gives_its_slot_up(original: Method) -> Method:
    """Whoever sits a step out gives its adapter's slot up, and may go on in the next."""

    def take(self: Any, request: Any, *, is_scheduled: bool) -> None:
        lora_id = request.lora_id
        request.lora_id = lora_id if is_scheduled else 0
        original(self, request, is_scheduled=is_scheduled)
        request.lora_id = lora_id

    return take


@mutation(
    target="impl.lifecycle:make_request",
    setting="loras",
    caught_by="published_blocks_were_written",
    source="vLLM #44701",
)
def adapters_share_blocks(original: Method) -> Method:
    """What a block is found by leaves the adapter out."""

    def make_request(new: Any, max_model_len: int) -> Any:
        request = original(new, max_model_len)
        request.cache_key = request.last_chain = new.cache_salt
        return request

    return make_request


@mutation(
    target="impl.slots:Slots.may_be_partial",
    setting="partial-prefills",
    caught_by="partial_prefills_are_limited",
    source="vLLM #49075",
)
def a_limit_that_nobody_reads(original: Method) -> Method:
    """max_num_partial_prefills has no effect."""

    def may_be_partial(self: Any, request: Any, num_tokens: int) -> bool:
        return True

    return may_be_partial


@mutation(
    target="impl.slots:Slots.may_be_partial",
    setting="partial-prefills",
    caught_by="work_is_conserved",
)
def whole_prompts_count_as_partial(original: Method) -> Method:
    """A prompt that would be computed whole is refused beside one that is computed in part."""

    def may_be_partial(self: Any, request: Any, num_tokens: int) -> bool:
        return bool(original(self, request, 0))

    return may_be_partial


@mutation(
    target="impl.scheduler:FastScheduler._is_ready",
    setting="grammars",
    caught_by="nobody_overtakes",
)
def a_grammar_is_not_waited_for(original: Method) -> Method:
    """A request is admitted before its grammar is compiled."""

    def _is_ready(self: Any, request: Any) -> bool:
        status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        return request.status == status or bool(original(self, request))

    return _is_ready


@mutation(
    target="impl.scheduler:FastScheduler.grammar_ready",
    setting="grammars",
    caught_by="queues_keep_their_order",
)
def a_ready_request_loses_its_place(original: Method) -> Method:
    """A request whose grammar is compiled joins the tail of the queue."""

    def grammar_ready(self: Any, request_id: str) -> None:
        original(self, request_id)
        request = self.requests.get(request_id)
        if request is not None:
            self.waiting.remove_request(request)
            self.waiting.add_request(request)

    return grammar_ready


@mutation(
    target="impl.scheduler:FastScheduler.reset_prefix_cache",
    setting="resets",
    caught_by="a_reset_forgets_all_or_nothing",
)
def a_reset_leaves_content(original: Method) -> Method:
    """A reset preempts whoever runs, and forgets nothing."""

    def reset_prefix_cache(self: Any, reset_running_requests: bool = False) -> bool:
        while reset_running_requests and self.running:
            self.running[-1].drop_stale_output = True
            self._preempt(self.running[-1])
        return bool(self.block_pool.num_free_blocks == self.config.num_blocks)

    return reset_prefix_cache


@mutation(
    target="impl.scheduler:FastScheduler.reset_prefix_cache",
    setting="resets-uncached",
    caught_by="placeholders_count_pending_samples",
)
def a_reset_without_a_cache_preempts_nobody(original: Method) -> Method:
    """Where nothing is cached, a reset of running requests returns at once."""

    def reset_prefix_cache(self: Any, reset_running_requests: bool = False) -> bool:
        if not self.config.enable_prefix_caching:
            return bool(self.block_pool.reset_prefix_cache())
        return bool(original(self, reset_running_requests))

    return reset_prefix_cache


@mutation(
    target="impl.scheduler:FastScheduler.reset_prefix_cache",
    setting="resets",
    caught_by="in_flight_tokens_are_counted",
    source="vLLM #46066",
)
def a_reset_forgets_what_is_in_flight(original: Method) -> Method:
    """A reset takes the steps in flight of whoever ran for valid ones."""

    def reset_prefix_cache(self: Any, reset_running_requests: bool = False) -> bool:
        running = list(self.running) if reset_running_requests else []
        is_reset = bool(original(self, reset_running_requests))
        for request in running:
            request.num_stale_output_tokens = 0
        return is_reset

    return reset_prefix_cache


@mutation(
    target="impl.scheduler:FastScheduler.reset_prefix_cache",
    setting="resets",
    caught_by="victims_keep_only_their_tokens",
    source="vLLM #49860",
)
def placeholders_survive_a_reset(original: Method) -> Method:
    """Whoever is preempted by a reset keeps the placeholders of its voided steps."""

    def reset_prefix_cache(self: Any, reset_running_requests: bool = False) -> bool:
        placeholders = {request: request.num_output_placeholders for request in self.running}
        is_reset = bool(original(self, reset_running_requests))
        for request, num_output_placeholders in placeholders.items():
            request.num_output_placeholders = num_output_placeholders
        return is_reset

    return reset_prefix_cache


@mutation(
    target="impl.scheduler:FastScheduler.grammar_ready",
    setting="grammars",
    caught_by="somebody_gets_a_token",
    source="vllm-ascend #8279",
)
def a_compiled_grammar_goes_unnoticed(original: Method) -> Method:
    """That a grammar is compiled is told to nobody, so its request is never ready."""

    def grammar_ready(self: Any, request_id: str) -> None:
        pass

    return grammar_ready


@mutation(
    target="impl.scheduler:FastScheduler._may_outgrow_pool",
    setting="refusals",
    caught_by="what_never_fits_is_refused",
    source="nano-vllm #274",
)
def only_the_prompt_is_held_against_the_pool(original: Method) -> Method:
    """A request whose prompt fits, and not its outputs, is taken, and preempts itself for ever."""

    def _may_outgrow_pool(self: Any, request: Any) -> bool:
        num_slots = self.config.num_blocks * self.config.block_size
        return bool(request.num_prompt_tokens > num_slots)

    return _may_outgrow_pool


@mutation(
    target="impl.scheduler:FastScheduler._preempt",
    setting="resets",
    caught_by="outputs_go_to_the_living",
)
def a_reset_lets_old_tokens_through(original: Method) -> Method:
    """What was being sampled at a reset is delivered, and sampled again."""

    def _preempt(self: Any, victim: Any) -> None:
        victim.drop_stale_output = False
        original(self, victim)

    return _preempt


@mutation(
    target="impl.scheduler:FastScheduler._drops_stale_output",
    setting="resets",
    changes=("max_in_flight=3",),
    caught_by="outputs_go_to_the_living",
    source="vLLM #47900",
)
def a_reset_drops_one_token_only(original: Method) -> Method:
    """Of several steps in flight at a reset only the first one's token is dropped."""

    def _drops_stale_output(self: Any, request: Any) -> bool:
        is_dropped = bool(original(self, request))
        request.drop_stale_output = False
        return is_dropped

    return _drops_stale_output


@mutation(
    target="impl.scheduler:FastScheduler.grammar_ready",
    setting="grammars",
    caught_by="engine_raises",
)
def a_grammar_needs_its_request(original: Method) -> Method:
    """A grammar is compiled after its request was aborted, and the engine dies."""

    def grammar_ready(self: Any, request_id: str) -> None:
        original(self, self.requests[request_id].request_id)

    return grammar_ready
