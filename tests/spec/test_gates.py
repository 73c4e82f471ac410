"""Which gate refuses the head of the queue: what is read off from outside is what the spec did."""

from __future__ import annotations

import pytest
from hypothesis import given

from spec.actions import Schedule
from spec.block_pool import CacheHit
from spec.gates import cap_long_prefill, find_refusing_gate, num_reserved_blocks, tokens_left
from spec.interface import SchedulerConfig, SchedulerOutput
from spec.request import Request
from spec.scheduler import ReferenceScheduler
from tests.spec.support import configs, make_config, make_request, without_loads
from tests.spec.transitions import Story, make_run, seeds, walk

MEMORY_GATES = {"free_blocks", "whole_sequence", "watermark", "reserve"}
HIT_GATES = {"padding", "whole_prompt_budget", "partial_prefills", *MEMORY_GATES}
"""Gates that look at what a prefix hit leaves to do."""
SKIPPING_GATES = {"stale_output", "grammar", "loras", "long_prefills"}
"""Gates that pass a request over; the first of those who are named from outside is the head's."""


class Confessing(ReferenceScheduler):
    """A scheduler that notes which gate ended admission in the last step."""

    stopped_by: str | None = "empty_queue"

    def schedule(self) -> SchedulerOutput:
        """Schedules a step."""
        self.stopped_by = "empty_queue"
        return super().schedule()

    def _may_admit(self) -> bool:
        reason = "token_budget" if self.token_budget <= 0 else "input_budget"
        reason = "preemption" if self.output.preempted_req_ids else reason
        return self._note(reason, super()._may_admit())

    def _has_seat(self) -> bool:
        return self._note("max_num_seqs", super()._has_seat())

    def _is_ready(self, request: Request) -> bool:
        is_ready = super()._is_ready(request)
        return self._note("skipped", is_ready)

    def _has_slot(self, request: Request) -> bool:
        return self._note("skipped", super()._has_slot(request))

    def _may_be_partial(self, request: Request, num_tokens: int) -> bool:
        return self._note("partial_prefills", super()._may_be_partial(request, num_tokens))

    def _may_be_padded(self, num_padding: int) -> bool:
        return self._note("padding", super()._may_be_padded(num_padding))

    def _may_be_cut(self, num_new_tokens: int) -> bool:
        return self._note("whole_prompt_budget", super()._may_be_cut(num_new_tokens))

    def _has_room_for(self, request: Request, num_tokens: int, hit: CacheHit) -> bool:
        has_room = super()._has_room_for(request, num_tokens, hit)
        return self._note(self._memory_gate(request, num_tokens, hit), has_room)

    def _memory_gate(self, request: Request, num_tokens: int, hit: CacheHit) -> str:
        """The first thing that a request asks too much room for, if it is refused at all."""
        num_free = self.block_pool.num_free_blocks
        num_tokens = self._num_tokens_to_hold(request, num_tokens)
        if self._num_blocks_to_take(request, num_tokens, hit) > num_free:
            return "free_blocks"
        num_blocks = self._num_blocks_to_take(request, num_tokens, hit)
        if self.config.scheduler_reserve_full_isl:
            num_tokens = max(num_tokens, self._num_tokens_of_sequence(request))
            num_blocks = self._num_blocks_to_take(request, num_tokens, hit)
            if num_blocks > num_free:
                return "whole_sequence"
        if self.running and num_blocks + self.config.num_watermark_blocks > num_free:
            return "watermark"
        return "reserve"

    def _note(self, gate: str, is_passed: bool) -> bool:
        if not is_passed:
            self.stopped_by = gate
        return is_passed


class Lazy(Confessing):
    """Admits nobody in every other step; whom it could have admitted, no gate has stopped."""

    is_lazy = False

    def schedule(self) -> SchedulerOutput:
        """Schedules a step."""
        self.is_lazy = not self.is_lazy
        return super().schedule()

    def _admit(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int, hit: CacheHit
    ) -> None:
        if self.is_lazy:
            self.stopped_by = None
        else:
            super()._admit(request, num_computed_tokens, num_new_tokens, hit)

    def _admit_next_waiting(self) -> bool:
        return super()._admit_next_waiting() and self.stopped_by is not None


def allowed_gates(config: SchedulerConfig, scheduler: Confessing) -> set[str | None]:
    """What may be named from outside after a step that ended as it did."""
    if not scheduler.waiting.items:
        return {"empty_queue"}
    stopped_by = scheduler.stopped_by
    if stopped_by == "skipped":  # Who came last may have taken the last seat.
        return SKIPPING_GATES if scheduler._has_seat() else {"max_num_seqs"}
    # Neither the hit is visible, nor whether who has resumed has computed all known tokens.
    may_pad = config.pad_admitted_decodes and config.num_speculative_tokens > 0
    if (config.enable_prefix_caching or may_pad) and stopped_by in {None, *HIT_GATES}:
        return {stopped_by, *HIT_GATES}
    return {stopped_by}


@pytest.mark.parametrize("make_scheduler", [Confessing, Lazy])
@given(config=configs(), seed=seeds)
def test_the_gate_is_the_one_that_the_spec_closed(
    make_scheduler: type[Confessing], config: SchedulerConfig, seed: int
) -> None:
    """In any run the gate named from outside is the one at which the specification stopped.

    None is named exactly if nothing but laziness did. Where a prefix hit counts, one that may
    refuse is named, too, since the hit is not visible.
    """
    # A load has gates of its own.
    config = without_loads(config)
    scheduler = make_scheduler(config)
    for seen in walk(make_run(config, scheduler), seed):
        if isinstance(seen.action, Schedule):
            assert find_refusing_gate(config, seen) in allowed_gates(config, scheduler)


def test_a_gate_is_looked_for_once() -> None:
    """What was found is kept, since an invariant and a dozen witnesses ask."""
    story = Story(make_config(), make_request("A", 3))
    seen = story.schedule()
    assert "empty_queue" == find_refusing_gate(make_config(), seen)
    seen.after.waiting.append("A")
    assert "empty_queue" == find_refusing_gate(make_config(), seen)


def test_only_a_step_refuses() -> None:
    """After any other action nobody is refused, whoever waits."""
    story = Story(make_config())
    assert "empty_queue" == find_refusing_gate(make_config(), story.add(make_request("A", 3)))


@pytest.mark.parametrize(
    ("spares_lone", "num_requests", "expected"),
    [(True, 1, 9), (True, 2, 3), (False, 1, 3), (False, 2, 3)],
)
def test_the_threshold_may_spare_a_lone_request(
    spares_lone: bool, num_requests: int, expected: int
) -> None:
    """The long-prefill threshold cuts a grant, but in some dialects not that of a lone request."""
    config = make_config(long_prefill_token_threshold=3, threshold_spares_lone_request=spares_lone)
    story = Story(config, *[make_request(name, 9) for name in "AB"[:num_requests]])
    assert expected == cap_long_prefill(config, story.seen, 9)
    assert 2 == cap_long_prefill(config, story.seen, 2)


def test_without_a_threshold_nothing_is_cut() -> None:
    """A threshold of 0 is none."""
    story = Story(make_config(), make_request("A", 9), make_request("B", 9))
    assert 9 == cap_long_prefill(make_config(), story.seen, 9)


def test_the_reserve_is_what_running_requests_still_need() -> None:
    """The reserve-aware gate counts blocks for known tokens that are not yet held."""
    config = make_config(reserve_admitted_prefills=True, max_num_batched_tokens=5)
    story = Story(config, make_request("A", 10))
    story.schedule()
    assert 1 == num_reserved_blocks(config, story.seen, ["A"])
    assert 0 == num_reserved_blocks(config, story.seen, [])
    assert 0 == num_reserved_blocks(make_config(), story.seen, ["A"])


def test_the_tighter_budget_counts() -> None:
    """What a step has left is left of the smaller of its two budgets."""
    config = make_config(max_num_batched_tokens=16, max_num_scheduled_tokens=10)
    story = Story(config, make_request("A", 7))
    output = story.schedule().outcome.output
    assert output is not None
    assert 3 == tokens_left(config, output)
