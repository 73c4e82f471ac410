from __future__ import annotations

import attrs
import pytest
from hypothesis import given

from checkers.explain import ExplainedScheduler, explain_last
from spec.actions import AddRequest, ResetPrefixCache, Schedule, UpdateFromOutput
from spec.model import Model
from spec.scheduler import ReferenceScheduler
from tests.spec.support import (
    Driver,
    choices,
    configs,
    make_config,
    make_environment,
    make_request,
    walk,
)


@given(configs(), choices)
def test_an_explained_scheduler_decides_as_its_parent(config, walk_choices):
    """Overhearing changes nothing: the same answers and the same states along any walk."""
    environment = make_environment(config)
    plain = Model(environment, ReferenceScheduler(config))
    explained = Model(environment, ExplainedScheduler(config))
    steps = zip(walk(plain, walk_choices), walk(explained, walk_choices), strict=True)
    for _ in steps:
        assert plain.scheduler.observe() == explained.scheduler.observe()
        assert plain.in_flight == explained.in_flight
        assert plain.live == explained.live


def explained_driver(*requests, **config):
    """A driver whose scheduler explains itself."""
    return Driver(make_config(**config), *requests, make_scheduler=ExplainedScheduler)


def test_every_call_begins_a_new_log():
    """The log tells of the last call only."""
    driver = explained_driver(make_request("A", 3))
    driver.schedule()
    assert ["pass 2: admit A at token 0 with 3 new tokens"] == driver.scheduler.log
    driver.update()
    assert [] == driver.scheduler.log
    driver.schedule()
    assert [
        "pass 1: A has a gap of 1 and may get 1 tokens (token budget 16, threshold 0)"
    ] == driver.scheduler.log
    driver.add(make_request("B", 3))
    assert [] == driver.scheduler.log
    driver.abort("B")
    assert ["finish B as FINISHED_ABORTED, free its blocks"] == driver.scheduler.log


@pytest.mark.parametrize(
    ("config", "prompt", "gate", "numbers"),
    [
        (
            {"max_num_batched_tokens": 3},
            3,
            "no pause, budget left, nobody preempted",
            "unpaused, token budget 0, preempted []",
        ),
        ({"max_num_seqs": 1}, 3, "max_num_seqs", "1 of 1 run"),
        (
            {"num_blocks": 1},
            3,
            "room for B",
            "3 of 3 tokens beyond a hit of 0 blocks take 1, the whole sequence 1, 0 are free",
        ),
        (
            {
                "num_blocks": 4,
                "long_prefill_token_threshold": 4,
                "reserve_admitted_prefills": True,
                "num_watermark_blocks": 1,
            },
            8,
            "room for B",
            (
                "4 of 8 tokens beyond a hit of 0 blocks take 1, the whole sequence 2 "
                "beside 1 reserved for who runs, a watermark of 1 beside it, 3 are free"
            ),
        ),
        (
            {"max_num_batched_tokens": 31, "enable_chunked_prefill": False},
            20,
            "chunked prefill, or the whole prompt fits the budget",
            "20 tokens, token budget 11",
        ),
        (
            {
                "max_num_batched_tokens": 32,
                "enable_chunked_prefill": False,
                "num_speculative_tokens": 1,
                "num_draft_slots": 1,
            },
            16,
            "chunked prefill, or the whole prompt fits the budget",
            "16 tokens, token budget 16, input budget 15 less 1 for draft slots",
        ),
        (
            {
                "max_num_batched_tokens": 6,
                "long_prefill_token_threshold": 4,
                "max_num_partial_prefills": 1,
            },
            8,
            "max_num_partial_prefills, or the whole prompt is computed",
            "2 of 8 prompt tokens of B",
        ),
        (
            {"long_prefill_token_threshold": 4, "max_long_partial_prefills": 1},
            8,
            "a slot for B",
            "adapter 0, 8 prompt tokens",
        ),
    ],
)
def test_a_gate_that_refuses_is_named_with_its_numbers(config, prompt, gate, numbers):
    """Whoever reads why B waits finds the gate and what it saw."""
    driver = explained_driver(make_request("A", prompt), make_request("B", prompt), **config)
    driver.schedule()
    assert f"pass 2: gate “{gate}” refuses ({numbers})" == driver.scheduler.log[-1]


def test_a_preemption_is_explained():
    """Who is preempted, why, and what of the step is taken back."""
    driver = explained_driver(
        make_request("A", 4, priority=1), num_blocks=3, max_model_len=12, policy="priority"
    )
    driver.step()
    driver.add(make_request("B", 4))
    driver.step()
    driver.schedule()
    assert [
        "preempt A: it is served last, and 0 free blocks are too few",
        "take back the 1 tokens that this step granted A",
    ] == driver.scheduler.log[2:4]


def test_a_publication_and_an_end_are_explained():
    """A block that becomes findable is told, and so is the end of its request."""
    driver = explained_driver(make_request("A", 5, max_tokens=1), enable_prefix_caching=True)
    driver.schedule()
    assert "publish the full blocks of A up to token 5" in driver.scheduler.log
    driver.update()
    assert ["finish A as FINISHED_LENGTH_CAPPED, free its blocks"] == driver.scheduler.log


def test_a_request_that_is_not_ready_is_explained():
    """A voided step in flight keeps its request waiting."""
    driver = explained_driver(
        make_request("A", 4), make_request("B", 4), num_blocks=3, async_scheduling=True
    )
    driver.schedule()
    assert ["B"] == driver.schedule().preempted_req_ids
    driver.abort("A")
    driver.schedule()
    assert [
        "pass 2: gate “B is ready” refuses (PREEMPTED, 4 tokens of voided steps are in flight)"
    ] == driver.scheduler.log


def test_a_load_that_is_refused_is_explained():
    """A load that would take what a prompt still needs is refused, and the numbers say why."""
    driver = explained_driver(
        make_request("B", 12),
        attrs.evolve(make_request("A", 9), num_remote_tokens=8),
        load_kv_async=True,
        num_blocks=4,
        long_prefill_token_threshold=4,
    )
    driver.schedule()
    assert (
        "pass 2: gate “room to load A” refuses "
        "(8 tokens beyond a hit of 0 blocks take 2 beside 2 for prefills, the whole sequence 3, "
        "3 are free)"
    ) == driver.scheduler.log[-1]


def test_a_refusal_and_a_reset_are_explained():
    """Why a request is refused at its arrival, and what a reset comes to."""
    driver = explained_driver(num_blocks=1, reject_too_large=True, enable_prefix_caching=True)
    driver.add(make_request("A", 9))
    assert ["refuse A: it may outgrow the pool"] == driver.scheduler.log
    driver.do(ResetPrefixCache(False))
    assert ["forget what was published"] == driver.scheduler.log
    driver.add(make_request("B", 3, max_tokens=2))
    driver.step()
    driver.do(ResetPrefixCache(False))
    assert ["blocks are held: forget nothing"] == driver.scheduler.log
    driver.do(ResetPrefixCache(True))
    assert [
        "preempt B: whoever runs gives way to the reset",
        "forget what was published",
    ] == driver.scheduler.log


def test_the_last_of_some_actions_is_explained():
    """A run is led again through all its actions, and only the last is told."""
    request = make_request("A", 3, max_tokens=1)
    actions = [AddRequest(request), Schedule(), UpdateFromOutput({"A": [7]})]
    config = make_config()
    assert ("pass 2: admit A at token 0 with 3 new tokens",) == explain_last(config, actions[:2])
    assert ("finish A as FINISHED_LENGTH_CAPPED, free its blocks",) == explain_last(config, actions)
