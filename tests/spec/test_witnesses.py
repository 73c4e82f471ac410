"""Each witness is seen where its rule says, and nowhere near it.

A situation is a short run; every witness that its last action shows is listed, and no other is.
"""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given

import spec.witnesses  # noqa: F401, importing it registers the witnesses
from spec.actions import Schedule
from spec.block_pool import BlockPool
from spec.interface import RepetitionDetection, RequestStatus, SchedulerConfig, SchedulerOutput
from spec.registry import WITNESSES
from spec.request import Request
from spec.scheduler import ReferenceScheduler
from spec.transition import Transition
from tests.spec import (
    situations_of_controls,  # noqa: F401, importing it lists its situations
    situations_of_drafts,  # noqa: F401, importing it lists its situations
    situations_of_loads,  # noqa: F401, importing it lists its situations
    situations_of_streaming,  # noqa: F401, importing it lists its situations
)
from tests.spec.situations import SITUATIONS, Situation, shows
from tests.spec.support import configs, make_config, make_request
from tests.spec.transitions import Story, make_run, seeds, walk


def sightings(config: SchedulerConfig, seen: Transition) -> set[str]:
    """The witnesses of an action."""
    return {
        name
        for name, witness in WITNESSES.items()
        if type(seen.action) in witness.on and witness.is_seen(config, seen)
    }


# ---- preemption ----------------------------------------------------------------------------------


@shows()
def a_first_step() -> tuple[SchedulerConfig, Transition]:
    """A request is admitted, and nobody else is there."""
    config = make_config()
    return config, Story(config, make_request("A", 5)).schedule()


@shows("preemption")
def one_preempts_another() -> tuple[SchedulerConfig, Transition]:
    """A needs a third block, and takes one of B's two."""
    config = make_config(num_blocks=4)
    story = Story(config, make_request("A", 8), make_request("B", 7))
    story.run(1)
    return config, story.schedule()


@shows("preemption", "self_preemption")
def one_preempts_itself() -> tuple[SchedulerConfig, Transition]:
    """B needs a third block and is served last, so all of its blocks become free."""
    config = make_config(num_blocks=4)
    story = Story(config, make_request("A", 7), make_request("B", 8))
    story.run(1)
    return config, story.schedule()


@shows("preemption", "refused_by_preemption")
def a_preemption_holds_others_up() -> tuple[SchedulerConfig, Transition]:
    """C would fit into the block that is left of B's, but a step that preempts admits nobody."""
    config = make_config(num_blocks=4)
    story = Story(config, make_request("A", 8), make_request("B", 7))
    story.run(1)
    story.add(make_request("C", 3))
    return config, story.schedule()


@shows("resumption")
def a_victim_comes_back() -> tuple[SchedulerConfig, Transition]:
    """B is admitted again once A has finished."""
    config = make_config(num_blocks=4)
    story = Story(config, make_request("A", 8, max_tokens=2), make_request("B", 7))
    story.run(2)
    return config, story.schedule()


@shows("preemption", "victim_before_the_cursor")
def a_scheduled_victim() -> tuple[SchedulerConfig, Transition]:
    """A is scheduled already when B, who outranks it, needs a block."""
    config = make_config(num_blocks=3, policy="priority")
    story = Story(config, make_request("A", 6, priority=1))
    story.run(1)
    story.add(make_request("B", 4, priority=0))
    story.run(1)
    return config, story.schedule()


@shows("preemption")
def a_victim_behind_the_cursor() -> tuple[SchedulerConfig, Transition]:
    """A outranks B and stands before it, so B has not been looked at when it has to go."""
    config = make_config(num_blocks=3, policy="priority")
    story = Story(config, make_request("A", 4, priority=0), make_request("B", 6, priority=1))
    story.run(1)
    return config, story.schedule()


# ---- prompts and the prefix cache ----------------------------------------------------------------


@shows("chunked_prefill")
def a_first_chunk() -> tuple[SchedulerConfig, Transition]:
    """The budget holds a part of the prompt."""
    config = make_config(max_num_batched_tokens=8)
    return config, Story(config, make_request("A", 9)).schedule()


@shows()
def a_last_chunk() -> tuple[SchedulerConfig, Transition]:
    """The rest of the prompt is computed, so a token is sampled."""
    config = make_config(max_num_batched_tokens=8)
    story = Story(config, make_request("A", 9))
    story.run(1)
    return config, story.schedule()


def second_prompt(
    first: tuple[int, ...], second: tuple[int, ...], first_ends: bool, **changes: Any
) -> tuple[SchedulerConfig, Transition]:
    """The step that admits a second request, after a first one has run or still runs."""
    config = make_config(enable_prefix_caching=True, **changes)
    story = Story(config, make_request("A", first, max_tokens=1 if first_ends else 8))
    story.run(1)
    story.add(make_request("B", second))
    return config, story.schedule()


@shows("prefix_hit")
def a_hit() -> tuple[SchedulerConfig, Transition]:
    """A block of a finished request is hit."""
    return second_prompt((5,) * 6, (5,) * 6, first_ends=True)


@shows("prefix_hit", "shared_block")
def a_hit_on_a_running_request() -> tuple[SchedulerConfig, Transition]:
    """A block of a running request is hit, so two hold it."""
    return second_prompt((5,) * 6, (5,) * 6, first_ends=False)


@shows("prefix_hit", "full_hit")
def a_hit_on_everything() -> tuple[SchedulerConfig, Transition]:
    """Both blocks of the prompt are cached; the second is computed again all the same."""
    return second_prompt((5,) * 8, (5,) * 8, first_ends=True)


@shows()
def a_miss() -> tuple[SchedulerConfig, Transition]:
    """No block of the prompt is cached."""
    return second_prompt((5,) * 6, (6,) * 6, first_ends=True)


@shows("eviction")
def a_cached_block_is_reused() -> tuple[SchedulerConfig, Transition]:
    """The pool has two blocks, both are needed, and one was published."""
    return second_prompt((5,) * 6, (6,) * 6, first_ends=True, num_blocks=2)


# ---- gates ---------------------------------------------------------------------------------------


@shows("refused_by_token_budget")
def no_budget_is_left() -> tuple[SchedulerConfig, Transition]:
    """A takes all of it."""
    config = make_config(max_num_batched_tokens=5)
    return config, Story(config, make_request("A", 5), make_request("B", 1)).schedule()


@shows("refused_by_max_num_seqs")
def no_seat_is_left() -> tuple[SchedulerConfig, Transition]:
    """A has the only one."""
    config = make_config(max_num_seqs=1)
    return config, Story(config, make_request("A", 5), make_request("B", 1)).schedule()


@shows("refused_by_whole_prompt_budget")
def a_prompt_must_not_be_cut() -> tuple[SchedulerConfig, Transition]:
    """B needs seven tokens of budget, and six are left."""
    config = make_config(enable_chunked_prefill=False, max_num_batched_tokens=11, max_model_len=12)
    return config, Story(config, make_request("A", 5), make_request("B", 7)).schedule()


@shows("refused_by_free_blocks")
def no_block_is_left() -> tuple[SchedulerConfig, Transition]:
    """B's whole prompt needs two blocks, and one is left."""
    config = make_config(num_blocks=3)
    return config, Story(config, make_request("A", 5), make_request("B", 7)).schedule()


@shows("refused_by_whole_sequence")
def the_rest_would_not_fit() -> tuple[SchedulerConfig, Transition]:
    """B's first chunk needs one block, its prompt two, and one is left."""
    config = make_config(num_blocks=3, max_num_batched_tokens=8)
    return config, Story(config, make_request("A", 5), make_request("B", 7)).schedule()


@shows("refused_by_watermark")
def the_watermark_is_reached() -> tuple[SchedulerConfig, Transition]:
    """B would take the last free block, and one must stay free."""
    config = make_config(num_blocks=3, num_watermark_blocks=1)
    return config, Story(config, make_request("A", 5), make_request("B", 3)).schedule()


@shows()
def the_watermark_spares_the_first() -> tuple[SchedulerConfig, Transition]:
    """A takes the last free block while nobody runs."""
    config = make_config(num_blocks=2, num_watermark_blocks=1)
    return config, Story(config, make_request("A", 5)).schedule()


@shows("chunked_prefill", "refused_by_reserve")
def the_rest_of_another_is_reserved() -> tuple[SchedulerConfig, Transition]:
    """B would fit into the third block, which A's second chunk will need."""
    config = make_config(
        num_blocks=3, reserve_admitted_prefills=True, long_prefill_token_threshold=8
    )
    return config, Story(config, make_request("A", 9), make_request("B", 3)).schedule()


def victim_in_flight() -> tuple[SchedulerConfig, Story]:
    """B is preempted while the step that samples its first token is in flight."""
    config = make_config(async_scheduling=True, num_blocks=4)
    story = Story(config, make_request("A", 8, max_tokens=3), make_request("B", 7))
    story.schedule()
    story.schedule()
    assert story.seen.requests["B"].status == "PREEMPTED"
    return config, story


@shows("refused_as_not_ready")
def nobody_is_ready() -> tuple[SchedulerConfig, Transition]:
    """B waits for the token of its voided step."""
    config, story = victim_in_flight()
    story.abort("A")
    return config, story.schedule()


@shows("overtaking", "refused_as_not_ready")
def one_is_ready() -> tuple[SchedulerConfig, Transition]:
    """C stands behind B, and is admitted while B waits for the token of its voided step."""
    config, story = victim_in_flight()
    story.abort("A")
    story.add(make_request("C", 3))
    return config, story.schedule()


# ---- ends ----------------------------------------------------------------------------------------


@shows("stale_output")
def a_voided_step_returns() -> tuple[SchedulerConfig, Transition]:
    """The token of B's voided step arrives."""
    config, story = victim_in_flight()
    return config, story.update()


@shows("abort_in_flight")
def an_abort_in_flight() -> tuple[SchedulerConfig, Transition]:
    """A is aborted while a step computes its prompt."""
    config = make_config()
    story = Story(config, make_request("A", 5), make_request("B", 5))
    story.schedule()
    return config, story.abort("A")


@shows("idle_pool")
def an_abort_before_anything() -> tuple[SchedulerConfig, Transition]:
    """A is aborted while it waits."""
    config = make_config()
    return config, Story(config, make_request("A", 5)).abort("A")


@shows("abort_while_preempted")
def an_abort_of_a_victim() -> tuple[SchedulerConfig, Transition]:
    """B is aborted after its preemption, when nothing is in flight."""
    config = make_config(num_blocks=4)
    story = Story(config, make_request("A", 8), make_request("B", 7))
    story.run(2)
    return config, story.abort("B")


@shows()
def an_abort_between_steps() -> tuple[SchedulerConfig, Transition]:
    """A is aborted while it runs and nothing is in flight."""
    config = make_config()
    story = Story(config, make_request("A", 5), make_request("B", 5))
    story.run(1)
    return config, story.abort("A")


def sampled(token_id: int, **fields: Any) -> tuple[SchedulerConfig, Transition]:
    """A samples its first token, and B, who goes on, another."""
    config = make_config(max_model_len=8)
    story = Story(config, make_request("A", 3, **fields), make_request("B", 3))
    story.schedule()
    return config, story.update(A=token_id)


@shows()
def a_token() -> tuple[SchedulerConfig, Transition]:
    """Nothing stops A, though every rule is there to do so."""
    repetition = RepetitionDetection(max_pattern_size=1)
    return sampled(1, eos_token_id=8, stop_token_ids=(9,), repetition_detection=repetition)


@shows("stop_by_eos")
def an_end_of_sequence() -> tuple[SchedulerConfig, Transition]:
    """A samples its end of sequence."""
    return sampled(8, eos_token_id=8, stop_token_ids=(9,))


@shows("stop_by_stop_token")
def a_stop_token() -> tuple[SchedulerConfig, Transition]:
    """A samples a stop token."""
    return sampled(9, eos_token_id=8, stop_token_ids=(9,))


@shows("stop_by_max_tokens")
def a_last_token() -> tuple[SchedulerConfig, Transition]:
    """A has all the tokens that it asked for."""
    return sampled(0, max_tokens=1)


@shows("stop_by_eos")
def a_last_token_that_is_an_end() -> tuple[SchedulerConfig, Transition]:
    """The end of sequence comes before the length."""
    return sampled(8, max_tokens=1, eos_token_id=8)


@shows("stop_by_max_model_len", "idle_pool")
def a_full_context() -> tuple[SchedulerConfig, Transition]:
    """A, who is alone, has as many tokens as the model takes."""
    config = make_config(max_model_len=6)
    story = Story(config, make_request("A", 5))
    story.schedule()
    return config, story.update()


@shows("stop_by_repetition")
def a_repetition() -> tuple[SchedulerConfig, Transition]:
    """A samples the same token twice."""
    config = make_config()
    repetition = RepetitionDetection(max_pattern_size=1)
    story = Story(
        config, make_request("A", 3, repetition_detection=repetition), make_request("B", 3)
    )
    story.run(1)
    story.schedule()
    return config, story.update()


# ---- the claims ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("situation", "expected"), SITUATIONS, ids=lambda value: getattr(value, "__name__", "")
)
def test_situation(situation: Situation, expected: frozenset[str]) -> None:
    """A situation shows the witnesses that it lists, and no others."""
    assert expected == sightings(*situation())


@pytest.mark.parametrize("name", WITNESSES)
def test_every_witness_is_seen_and_missed(name: str) -> None:
    """Each witness has a situation that shows it, and one of the same kind that does not."""
    shown = [situation() for situation, expected in SITUATIONS if name in expected]
    kinds = {type(seen.action) for _, seen in shown}
    others = [situation() for situation, expected in SITUATIONS if name not in expected]
    assert shown
    assert kinds <= {type(seen.action) for _, seen in others}


def test_a_hit_on_all_but_the_last_block() -> None:
    """A hit is full only if the last block is cached, too."""
    config, seen = second_prompt((5,) * 8, (5,) * 4 + (6,) * 4, first_ends=True)
    assert {"prefix_hit"} == sightings(config, seen)


# ---- witnesses that reason, against a scheduler that tells ---------------------------------------


class Telling(ReferenceScheduler):
    """A scheduler that notes what cannot be seen of it."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.has_preempted_itself = False
        self.has_taken_back = False

    def schedule(self) -> SchedulerOutput:
        """Schedules a step."""
        self.has_preempted_itself = self.has_taken_back = False
        return super().schedule()

    def _preempt_next_for(self, request: Request, num_new_tokens: int) -> bool:
        goes_on = super()._preempt_next_for(request, num_new_tokens)
        self.has_preempted_itself |= request.status == RequestStatus.PREEMPTED
        return goes_on

    def _take_back(self, victim: Request) -> None:
        self.has_taken_back |= victim.request_id in self.output.num_scheduled_tokens
        super()._take_back(victim)


@given(configs(), seeds)
def test_self_preemption_is_seen(config: SchedulerConfig, seed: int) -> None:
    """First come, first served: a self-preemption is seen whenever there is one, and only then."""
    config = evolve(config, policy="fcfs", enable_prefix_caching=False)
    scheduler = Telling(config)
    for seen in walk(make_run(config, scheduler), seed):
        if isinstance(seen.action, Schedule):
            is_seen = WITNESSES["self_preemption"].is_seen(config, seen)
            assert scheduler.has_preempted_itself == is_seen


@given(configs(), seeds)
def test_a_scheduled_victim_is_never_missed(config: SchedulerConfig, seed: int) -> None:
    """Whenever a step takes back what it has scheduled, a victim before the cursor is seen."""
    config = evolve(config, policy="priority")
    scheduler = Telling(config)
    for seen in walk(make_run(config, scheduler), seed):
        if isinstance(seen.action, Schedule) and scheduler.has_taken_back:
            assert WITNESSES["victim_before_the_cursor"].is_seen(config, seen)


class CountingPool(BlockPool):
    """A pool that counts evictions."""

    num_evictions = 0

    def _evict(self, block_id: int) -> None:
        self.num_evictions += block_id in self.block_hash
        super()._evict(block_id)


@given(configs(), seeds)
def test_only_an_eviction_is_seen_as_one(config: SchedulerConfig, seed: int) -> None:
    """An eviction is seen only if a block has lost its content in that very step."""
    config = evolve(config, enable_prefix_caching=True)
    pool = CountingPool(config.num_blocks, config.block_size, True, config.uncached_blocks_first)
    run = make_run(config, ReferenceScheduler(config, pool))
    num_before = 0
    for seen in walk(run, seed):
        if "eviction" in sightings(config, seen):
            assert pool.num_evictions > num_before
        num_before = pool.num_evictions
