"""Bugs in speculative decoding: which drafts are verified, and what becomes of rejected ones."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method


@mutation(
    target="impl.scheduler:FastScheduler._roll_back",
    setting="speculative",
    caught_by="rejected_drafts_are_rolled_back",
)
def rejected_drafts_count_as_computed(original: Method) -> Method:
    """What was computed for rejected drafts still counts."""

    def _roll_back(self: Any, request: Any, num_drafts: int, num_sampled: int) -> None:
        pass

    return _roll_back


@mutation(
    target="impl.scheduler:FastScheduler._roll_back",
    setting="speculative",
    caught_by="rejected_drafts_are_rolled_back",
)
def an_accepted_draft_is_computed_again(original: Method) -> Method:
    """A row of tokens counts as accepted drafts only up to one before its end."""

    def _roll_back(self: Any, request: Any, num_drafts: int, num_sampled: int) -> None:
        original(self, request, num_drafts, max(num_sampled - 1, 1))

    return _roll_back


@mutation(
    target="impl.scheduler:FastScheduler._roll_back",
    setting="speculative-async",
    caught_by="counters_are_monotone",
    source="vLLM #48245",
)
def drafts_of_a_voided_step_are_rolled_back(original: Method) -> Method:
    """Rejected drafts are taken back though a preemption has taken back everything."""

    def _roll_back(self: Any, request: Any, num_drafts: int, num_sampled: int) -> None:
        num_stale, request.num_stale_output_tokens = request.num_stale_output_tokens, 0
        original(self, request, num_drafts, num_sampled)
        request.num_stale_output_tokens = num_stale

    return _roll_back


@mutation(
    target="impl.scheduler:FastScheduler._roll_back",
    setting="speculative-async",
    caught_by="placeholders_count_pending_samples",
)
def rejected_drafts_keep_their_placeholders(original: Method) -> Method:
    """Rejected drafts go on being counted as tokens that are sampled."""

    def _roll_back(self: Any, request: Any, num_drafts: int, num_sampled: int) -> None:
        num_placeholders = request.num_output_placeholders
        original(self, request, num_drafts, num_sampled)
        request.num_output_placeholders = num_placeholders

    return _roll_back


@mutation(
    target="impl.scheduler:FastScheduler._samples_its_last_token",
    setting="speculative-async",
    caught_by="grants_are_maximal",
    source="vLLM #29542",
)
def drafts_in_flight_count_as_accepted(original: Method) -> Method:
    """A request rests because drafts in flight, if they are right, reach max_tokens."""

    def _samples_its_last_token(self: Any, request: Any) -> bool:
        return bool(request.num_computed_tokens + 1 >= request.max_num_tokens)

    return _samples_its_last_token


@mutation(
    target="impl.scheduler:FastScheduler._preempt",
    setting="speculative",
    caught_by="drafts_are_for_the_next_step",
    source="vLLM #30916, LMDeploy #4564",
)
def drafts_survive_a_preemption(original: Method) -> Method:
    """A preempted request keeps its drafts, and has them verified once it is back."""

    def _preempt(self: Any, victim: Any) -> None:
        draft_token_ids = victim.draft_token_ids
        original(self, victim)
        victim.draft_token_ids = draft_token_ids

    return _preempt


@mutation(
    target="impl.scheduler:FastScheduler._forget_unscheduled_drafts",
    setting="speculative-async",
    changes=("max_num_batched_tokens=3",),
    caught_by="drafts_are_for_the_next_step",
    source="vLLM #46899",
)
def drafts_survive_a_step_without_their_request(original: Method) -> Method:
    """A request that sits a step out has drafts that no worker knows."""

    def _forget_unscheduled_drafts(self: Any) -> None:
        pass

    return _forget_unscheduled_drafts


@mutation(
    target="impl.scheduler:FastScheduler.update_draft_token_ids",
    setting="speculative",
    caught_by="drafts_are_for_the_next_step",
)
def drafts_follow_on_a_part_of_a_prompt(original: Method) -> Method:
    """A request in the middle of its prompt is given drafts."""

    def update_draft_token_ids(self: Any, draft_token_ids: dict[str, list[int]]) -> None:
        for request_id in draft_token_ids.keys() & self.requests.keys():
            self.requests[request_id].is_prefill_chunk = False
        original(self, draft_token_ids)

    return update_draft_token_ids


@mutation(
    target="impl.scheduler:FastScheduler._schedule_drafts",
    setting="speculative",
    caught_by="scheduled_drafts_are_the_requests_own",
)
def drafts_are_verified_backwards(original: Method) -> Method:
    """The last draft is verified first, as if it followed on the last token."""

    def _schedule_drafts(self: Any, request: Any, num_tokens: int) -> None:
        request.draft_token_ids = request.draft_token_ids[::-1]
        original(self, request, num_tokens)

    return _schedule_drafts


@mutation(
    target="impl.scheduler:FastScheduler._take_back",
    setting="speculative",
    changes=(
        "max_num_batched_tokens=4",
        "max_num_seqs=3",
        "max_live_requests=4",
        "max_model_len=8",
        "num_blocks=6",
        "num_lookahead_tokens=2",
        "num_draft_slots=0",
        "enable_prefix_caching=false",
    ),
    caught_by="scheduled_drafts_are_the_requests_own",
    source="vLLM #28558",
)
def drafts_of_a_victim_stay_scheduled(original: Method) -> Method:
    """The drafts of a victim that is taken out of the step stay in it."""

    def _take_back(self: Any, victim: Any) -> None:
        drafts = self.output.scheduled_spec_decode_tokens
        self.output.scheduled_spec_decode_tokens = dict(drafts)
        original(self, victim)
        self.output.scheduled_spec_decode_tokens = drafts

    return _take_back


@mutation(
    target="impl.scheduler:FastScheduler._num_tokens_to_hold",
    setting="speculative",
    changes=("num_blocks=24", "num_lookahead_tokens=3"),
    caught_by="blocks_are_given_as_needed",
    source="vLLM #10730",
)
def a_drafter_writes_beyond_the_context(original: Method) -> Method:
    """Slots to write ahead are given beyond max_model_len, too."""

    def _num_tokens_to_hold(self: Any, num_tokens: int) -> int:
        return num_tokens + int(self.config.num_lookahead_tokens)

    return _num_tokens_to_hold


@mutation(
    target="impl.scheduler:FastScheduler._num_tokens_to_hold",
    setting="speculative-async",
    caught_by="blocks_are_given_as_needed",
)
def a_drafter_has_nowhere_to_write(original: Method) -> Method:
    """A request is given blocks for its tokens only."""

    def _num_tokens_to_hold(self: Any, num_tokens: int) -> int:
        return num_tokens

    return _num_tokens_to_hold


@mutation(
    target="impl.scheduler:FastScheduler._tokens_left",
    setting="speculative",
    caught_by="input_budget_is_kept",
)
def draft_slots_are_not_reserved(original: Method) -> Method:
    """A request may get the tokens that its own draft slots need."""

    def _tokens_left(self: Any) -> int:
        return int(min(self.token_budget, self.input_budget))

    return _tokens_left


@mutation(
    target="impl.scheduler:FastScheduler._grant_running",
    setting="speculative",
    changes=(
        "max_num_batched_tokens=6",
        "max_num_seqs=3",
        "max_live_requests=3",
        "max_model_len=8",
        "block_size=3",
        "num_blocks=5",
        "num_lookahead_tokens=0",
    ),
    caught_by="input_budget_is_kept",
    is_rare=True,
)
def draft_slots_are_free_after_a_preemption(original: Method) -> Method:
    """Once a step has preempted, draft slots are no longer taken off the input budget."""

    def _grant_running(self: Any, request: Any, num_new_tokens: int, num_new_blocks: int) -> None:
        original(self, request, num_new_tokens, num_new_blocks)
        if self.output.preempted_req_ids:
            self.input_budget += self.config.num_draft_slots

    return _grant_running


@mutation(
    target="impl.scheduler:FastScheduler._settle",
    setting="speculative",
    caught_by="published_blocks_were_written",
)
def a_block_is_published_with_a_rejected_draft(original: Method) -> Method:
    """Blocks are published once their tokens are known, though the last one is not yet computed."""

    def _settle(self: Any, request: Any, *args: Any) -> Any:
        sent = original(self, request, *args)
        if request.request_id in self.requests and request.block_ids:
            num_slots = len(request.block_ids) * self.config.block_size
            self.block_pool.cache_full_blocks(request, min(request.num_tokens, num_slots))
        return sent

    return _settle


@mutation(
    target="impl.scheduler:FastScheduler._roll_back",
    setting="speculative-async",
    changes=("num_blocks=5", "num_speculative_tokens=1"),
    caught_by="counters_are_monotone",
    source="vLLM #28473",
)
def an_empty_row_accepts_one_draft_less_than_none(original: Method) -> Method:
    """Where a step samples nothing, one token less than none counts as accepted."""

    def _roll_back(self: Any, request: Any, num_drafts: int, num_sampled: int) -> None:
        original(self, request, num_drafts, num_sampled)
        if num_sampled == 0:
            request.num_computed_tokens -= num_drafts + 1

    return _roll_back
