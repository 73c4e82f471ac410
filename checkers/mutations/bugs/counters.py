"""Bugs in the counters of a request."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method


@mutation(
    target="impl.scheduler:FastScheduler._settle",
    setting="plain",
    caught_by="counters_are_monotone",
)
def a_plain_token_counts_as_a_rejected_draft(original: Method) -> Method:
    """Settling a step takes back the last computed token, as if a draft had been rejected."""

    def _settle(self: Any, request: Any, num_scheduled_tokens: int, sampled: list[int]) -> Any:
        sent = original(self, request, num_scheduled_tokens, sampled)
        if request.num_computed_tokens % self.config.block_size == 0 < request.num_computed_tokens:
            request.num_computed_tokens -= 1
        return sent

    return _settle


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="prefix",
    caught_by="counters_are_monotone",
)
def a_refused_request_keeps_its_hit(original: Method) -> Method:
    """The hit of a request that is refused counts as computed, though it holds no block."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        has_room = bool(original(self, request, num_tokens, hit))
        if not has_room:
            request.num_computed_tokens = len(hit.block_ids) * self.config.block_size
        return has_room

    return _has_room_for


@mutation(
    target="impl.scheduler:FastScheduler._preempt",
    setting="plain",
    caught_by="preemptions_are_counted",
)
def a_preemption_counts_twice(original: Method) -> Method:
    """num_preemptions grows by two for each preemption."""

    def _preempt(self: Any, victim: Any) -> None:
        original(self, victim)
        victim.num_preemptions += 1

    return _preempt


@mutation(
    target="impl.scheduler:FastScheduler._preempt",
    setting="tiny",
    caught_by="token_counts_follow_the_client",
    source="vllm-ascend #11334",
)
def outputs_become_prompt(original: Method) -> Method:
    """A preempted request takes the tokens that it has produced for a part of its prompt."""

    def _preempt(self: Any, victim: Any) -> None:
        original(self, victim)
        victim.num_prompt_tokens = victim.num_tokens

    return _preempt


@mutation(
    target="impl.scheduler:FastScheduler._fill_placeholders",
    setting="deep-async",
    changes=("wait_for_stale_output=false",),
    caught_by="computed_is_within_tokens",
    is_rare=True,
)
def one_result_fills_all_placeholders(original: Method) -> Method:
    """A sampled token fills the placeholders of all steps in flight, not of its own only."""

    def _fill_placeholders(self: Any, request: Any, num_sampled: int, num_trimmed: int) -> None:
        original(self, request, request.num_output_placeholders, num_trimmed)

    return _fill_placeholders


@mutation(
    target="impl.scheduler:FastScheduler._advance",
    setting="async",
    caught_by="placeholders_count_pending_samples",
)
def a_first_token_has_no_placeholder(original: Method) -> Method:
    """The step that completes a prompt leaves no placeholder for the token it samples."""

    def _advance(self: Any, request: Any, num_new_tokens: int) -> None:
        num_output_placeholders = request.num_output_placeholders
        original(self, request, num_new_tokens)
        if request.num_tokens == request.num_prompt_tokens:
            request.num_output_placeholders = num_output_placeholders

    return _advance


@mutation(
    target="impl.scheduler:FastScheduler._settle",
    setting="plain",
    changes=("num_blocks=24",),
    caught_by="in_flight_tokens_are_counted",
    source="tt-xla #5664",
)
def a_chunk_stays_in_flight(original: Method) -> Method:
    """A chunk that is not the last of its prompt never leaves num_in_flight_tokens."""

    def _settle(self: Any, request: Any, num_scheduled_tokens: int, sampled: list[int]) -> Any:
        sent = original(self, request, num_scheduled_tokens, sampled)
        if not sampled:
            request.num_in_flight_tokens += num_scheduled_tokens
        return sent

    return _settle


@mutation(
    target="impl.scheduler:FastScheduler._admit",
    setting="deep-prefix",
    changes=("num_blocks=24",),
    caught_by="computed_is_within_tokens",
    source="nano-vllm #210, xLLM #1898",
)
def the_hit_is_not_subtracted(original: Method) -> Method:
    """What a request has to compute is worked out before its hit is known."""

    def _admit(self: Any, request: Any, start: int, num_new_tokens: int, hit: Any) -> None:
        num_new_tokens = min(request.num_tokens, self.token_budget)
        original(self, request, start, num_new_tokens, hit)

    return _admit
