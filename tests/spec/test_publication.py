"""When blocks become findable. Facts 22 to 24."""

from __future__ import annotations

from hypothesis import given

from spec.interface import SchedulerConfig
from tests.spec.support import (
    Driver,
    choices,
    configs,
    make_config,
    make_driver_for_walks,
    make_request,
    walk,
)

PROMPT = tuple(range(12))


def make_caching_config(**changes: object) -> SchedulerConfig:
    """A configuration with a prefix cache."""
    return make_config(enable_prefix_caching=True, **changes)


def published(driver: Driver) -> set[tuple[int, ...]]:
    """The prefixes that can be found."""
    return {content[1] for content in (driver.scheduler.observe().block_contents or {}).values()}


def test_blocks_are_published_at_schedule_time() -> None:
    """Fact 22: the full blocks of computed + new tokens are findable before the step has run."""
    driver = Driver(make_caching_config(max_num_batched_tokens=7), make_request("A", PROMPT))
    driver.schedule()
    assert {PROMPT[:4]} == published(driver)
    driver.schedule()
    assert {PROMPT[:4], PROMPT[:8], PROMPT} == published(driver)


def test_only_granted_requests_publish() -> None:
    """Fact 22: a running request that gets nothing in a step publishes nothing."""
    config = make_caching_config(
        policy="priority", num_blocks=2, continue_after_self_preemption=False
    )
    driver = Driver(config, make_request("A", 3, priority=5))
    driver.step()
    driver.add(make_request("B", PROMPT[:3]))
    driver.step(B=3)
    # A preempts itself, which ends pass 1: B's block is full of known tokens, but one has not run.
    assert ({}, ["B"]) == (driver.step().num_scheduled_tokens, driver.running)
    assert (3, 4) == (driver["B"].num_computed_tokens, driver["B"].num_tokens)
    assert PROMPT[:4] not in published(driver)
    assert {"B": 1} == driver.schedule().num_scheduled_tokens
    assert PROMPT[:4] in published(driver)


def make_async_driver(**changes: object) -> Driver:
    """A's block is full with the token that the first of two steps in flight samples."""
    driver = Driver(
        make_caching_config(async_scheduling=True, **changes), make_request("A", PROMPT[:3])
    )
    driver.schedule()
    driver.schedule()
    assert (4, 3) == (driver["A"].num_computed_tokens, driver["A"].num_tokens)
    return driver


def test_placeholders_are_not_known_tokens() -> None:
    """Fact 22: a block with a token that nobody knows yet has no name, so it is not published."""
    assert set() == published(make_async_driver())


def test_async_arrival_publishes_what_has_run() -> None:
    """Fact 23: when an async token arrives, publication goes up to computed - in flight."""
    driver = make_async_driver()
    # The first token is known now, but the step that computes it is in flight.
    driver.update(A=3)
    assert set() == published(driver)
    driver.update(A=9)
    assert {PROMPT[:4]} == published(driver)


def test_grant_publishes_what_earlier_steps_promised() -> None:
    """Fact 24: a grant publishes what earlier steps promised, though they are in flight."""
    driver = make_async_driver()
    driver.update(A=3)
    driver.schedule()
    assert {PROMPT[:4]} == published(driver)


def test_what_earlier_steps_promised_stays_published() -> None:
    """Fact 24: that holds too if the granted chunk is taken back, since only this chunk is void."""
    config = make_caching_config(async_scheduling=True, policy="priority", num_blocks=3)
    driver = Driver(config, make_request("A", PROMPT[:3], priority=5))
    driver.schedule()
    driver.add(make_request("B", 4))
    driver.schedule()
    driver.update(A=3)
    assert set() == published(driver) - {(1000 + ord("B"),) * 4}
    output = driver.schedule()
    assert (["A"], {"B": 1}) == (output.preempted_req_ids, output.num_scheduled_tokens)
    assert PROMPT[:4] in published(driver)


def test_admission_hits_what_running_requests_compute_in_this_step() -> None:
    """Fact 24: after pass 1 the step's own chunks are published; an admission may hit them."""
    driver = Driver(make_caching_config(max_num_batched_tokens=8), make_request("A", (*PROMPT, 99)))
    driver.step()
    driver.add(make_request("B", (*PROMPT, 98)))
    output = driver.schedule()
    assert {"A": 5, "B": 1} == output.num_scheduled_tokens
    assert 12 == output.scheduled_new_reqs["B"].num_computed_tokens


def test_admission_hits_what_an_earlier_admission_computes_in_this_step() -> None:
    """Facts 22 and 24: an admission publishes at once; the next one in the step may hit it."""
    requests = [make_request("A", (*PROMPT, 99)), make_request("B", (*PROMPT, 98))]
    driver = Driver(make_caching_config(), *requests)
    output = driver.schedule()
    assert {"A": 13, "B": 1} == output.num_scheduled_tokens
    assert driver["A"].block_ids[:3] == driver["B"].block_ids[:3]


@given(configs(), choices)
def test_published_blocks_hold_known_tokens_of_granted_steps(
    config: SchedulerConfig, walk_choices: list[int]
) -> None:
    """Fact 22: in any run, a block is published within min(computed, known) tokens of a holder."""
    driver = make_driver_for_walks(config)
    for _ in walk(driver, walk_choices):
        contents = driver.scheduler.observe().block_contents or {}
        for request in driver.scheduler.running:
            limit = min(request.num_computed_tokens, request.num_tokens)
            for index, block_id in enumerate(request.block_ids):
                if block_id in contents:
                    assert (index + 1) * config.block_size <= limit
                    assert (
                        request.token_ids[: (index + 1) * config.block_size]
                        == contents[block_id][1]
                    )
