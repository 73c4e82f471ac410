from __future__ import annotations

import attrs
import pytest

from proofs.unbounded import watch
from proofs.unbounded.actions import abort, add_request, prove_action, schedule, update
from proofs.unbounded.cuts import no_extra
from proofs.unbounded.reserve import (
    BETWEEN,
    PLANNING,
    RESERVING,
    judge_reserve,
    only_prompts_run,
    what_is_lacked_is_free,
)
from proofs.unbounded.state import CHUNK_GATE, RESERVE_AWARE, SYNCHRONOUS
from proofs.unbounded.watch import run_once
from spec.block_pool import CountedBlockPool
from spec.interface import NewRequest, SchedulerConfig
from spec.scheduler import ReferenceScheduler

WEAKER = {
    "what is lacked is free": attrs.evolve(PLANNING, assume=only_prompts_run),
    "only prompts run": attrs.evolve(PLANNING, assume=what_is_lacked_is_free),
    "a smaller sum has a smaller part": attrs.evolve(PLANNING, true_of_sums=no_extra),
}


@pytest.mark.parametrize("dropped", WEAKER)
def test_nothing_that_the_proof_uses_can_be_dropped(dropped):
    """Without its start, or without what relates the two sums, the proof fails."""
    assert prove_action(schedule, RESERVING, WEAKER[dropped]).unproved is not None


@pytest.mark.parametrize("action", [add_request, abort, update])
def test_what_is_shown_between_steps_is_no_contradiction(action):
    """Where a proof ends it does not follow that nothing is so, hence its assumptions can hold."""
    absurd = attrs.evolve(BETWEEN, extras=BETWEEN.extras | {"end": lambda _: {"nothing": False}})
    assert "nothing" == prove_action(action, RESERVE_AWARE, absurd).unproved.clause


def test_without_the_gate_there_is_no_proof():
    """The same question about the whole-sequence gate, which reserves nothing, stays open."""
    assert prove_action(schedule, SYNCHRONOUS, PLANNING).unproved is not None


@pytest.mark.parametrize("dialect", [RESERVING, RESERVE_AWARE], ids=lambda each: each.name)
def test_no_run_breaks_what_is_proved(dialect):
    """Random runs with the gate preempt nobody while only prompts run."""
    failures = [run_once(dialect, [judge_reserve], seed)[1] for seed in range(20)]
    assert [None] * 20 == failures


@pytest.mark.parametrize("dialect", [SYNCHRONOUS, CHUNK_GATE], ids=lambda each: each.name)
def test_a_run_without_the_gate_preempts_a_prompt(dialect):
    """A gate that reserves nothing admits prompts that then lack blocks."""

    def judge(before, after, output):
        return judge_reserve(attrs.evolve(before, protects_prompts=True), after, output)

    assert watch.find_breach([dialect], [judge]) is not None


def test_whoever_generates_may_take_a_reserved_block():
    """Once a request has output it takes blocks that nobody set aside, and prompts lack them."""

    def judge(before, after, output):
        return judge_reserve(attrs.evolve(before, protects_prompts=True), after, output)

    assert watch.find_breach([RESERVING], [judge]) is not None


@pytest.mark.parametrize(
    ("reserves", "num_blocks", "num_running", "num_preempted"),
    [(False, 3, 2, 1), (True, 3, 1, 0), (True, 4, 2, 0)],
)
def test_two_prompts_run_beside_each_other_if_both_fit(
    reserves, num_blocks, num_running, num_preempted
):
    """Without the gate one of two prompts thrashes; with it, it waits, or runs if it has room."""
    config = SchedulerConfig(
        max_num_batched_tokens=18,
        max_num_seqs=2,
        max_model_len=20,
        block_size=16,
        num_blocks=num_blocks,
        long_prefill_token_threshold=9,
        reserve_admitted_prefills=reserves,
    )
    scheduler = ReferenceScheduler(config, CountedBlockPool(num_blocks))
    for name in "ab":
        prompt = (0,) * 19
        scheduler.add_request(NewRequest(request_id=name, prompt_token_ids=prompt, max_tokens=1))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert num_running == len(first.num_scheduled_tokens)
    assert num_preempted == len(second.preempted_req_ids)
