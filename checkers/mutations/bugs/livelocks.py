"""Bugs that keep somebody waiting: in one step, or for ever."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method


@mutation(
    target="impl.scheduler:FastScheduler._preempt",
    setting="deep-first-chunk",
    caught_by="the_oldest_gains_a_token",
)
def a_preemption_robs_the_first(original: Method) -> Method:
    """Whoever preempts takes the tokens of the first to run as well, unless it took a block."""

    def _preempt(self: Any, victim: Any) -> None:
        original(self, victim)
        first = next(iter(self.running), victim)
        granted = self.output.scheduled_cached_reqs.get(first.request_id)
        if granted is not None and not granted.new_block_ids:
            num_scheduled_tokens = self.output.num_scheduled_tokens[first.request_id]
            self._take_back(first)
            first.num_computed_tokens -= num_scheduled_tokens

    return _preempt


# ---- for ever: found as a lasso, whatever else notices -------------------------------------------


@mutation(
    target="impl.scheduler:FastScheduler._choose_victim",
    setting="take-back",
    changes=(
        "policy=fcfs",
        "num_blocks=4",
        "max_num_batched_tokens=3",
        "long_prefill_token_threshold=2",
        "max_live_requests=2",
    ),
    caught_by="somebody_gets_a_token",
    is_rare=True,
)
def the_longest_running_is_preempted(original: Method) -> Method:
    """The first to run makes room, so two prompts take each other's blocks for ever."""

    def _choose_victim(self: Any) -> Any:
        return self.running[0]

    return _choose_victim


@mutation(
    target="impl.scheduler:FastScheduler._has_room_for",
    setting="gates",
    caught_by="somebody_gets_a_token",
    is_rare=True,
)
def the_watermark_binds_a_lone_request(original: Method) -> Method:
    """The watermark is kept free while nobody runs, too, so a prompt that needs it never starts."""

    def _has_room_for(self: Any, request: Any, num_tokens: int, hit: Any) -> bool:
        running, self.running = self.running, [request]
        has_room = bool(original(self, request, num_tokens, hit))
        self.running = running
        return has_room

    return _has_room_for


@mutation(
    target="impl.scheduler:FastScheduler._preempt",
    setting="tiny",
    caught_by="somebody_gets_a_token",
    is_rare=True,
)
def a_victim_keeps_its_blocks(original: Method) -> Method:
    """A preempted request loses its table, and its blocks stay counted, so nobody gets them."""

    def _preempt(self: Any, victim: Any) -> None:
        victim.block_ids = []
        original(self, victim)

    return _preempt


@mutation(
    target="impl.scheduler:FastScheduler._settle",
    setting="async",
    caught_by="somebody_gets_a_token",
    is_rare=True,
)
def stale_output_is_awaited_for_ever(original: Method) -> Method:
    """Output of a voided step is not counted off, so its request is not ready any more."""

    def _settle(self: Any, request: Any, *args: Any) -> Any:
        num_stale_output_tokens = request.num_stale_output_tokens
        sent = original(self, request, *args)
        request.num_stale_output_tokens = num_stale_output_tokens
        return sent

    return _settle
