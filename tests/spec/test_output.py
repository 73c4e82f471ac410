"""What a step tells the worker and the clients, and how it is settled. Facts 25 to 29."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given

from spec.books import start_positions
from spec.interface import (
    CachedRequestData,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequestData,
    RequestStatus,
    SchedulerConfig,
)
from tests.spec.support import (
    Driver,
    choices,
    configs,
    make_config,
    make_driver_for_walks,
    make_request,
    walk,
)

# ---- the diff to the worker ----------------------------------------------------------------------


def test_new_then_cached() -> None:
    """A request is new once, with prompt and table; then new blocks only, and where it stands."""
    driver = Driver(make_config(max_num_batched_tokens=6), make_request("A", (1, 2, 3, 4, 5, 6, 7)))
    output = driver.step()
    assert {"A": NewRequestData((1, 2, 3, 4, 5, 6, 7), 0, [1, 2])} == output.scheduled_new_reqs
    assert {} == output.scheduled_cached_reqs
    for expected in (
        CachedRequestData(False, [], 6),
        CachedRequestData(False, [], 7),
        CachedRequestData(False, [3], 8),
    ):
        output = driver.step()
        assert {} == output.scheduled_new_reqs
        assert {"A": expected} == output.scheduled_cached_reqs


def test_resumed_requests_stand_last_with_their_whole_table() -> None:
    """Fact 25: running requests first, then resumed ones, with the whole table and hit length."""
    driver = Driver(
        make_config(enable_prefix_caching=True),
        make_request("A", tuple(range(9))),
        make_request("B", tuple(range(20, 25))),
        make_request("C", 1),
    )
    driver.step()
    driver.step()
    driver.scheduler._preempt(driver["A"])
    output = driver.schedule()
    assert ["B", "C", "A"] == list(output.scheduled_cached_reqs)
    assert {} == output.scheduled_new_reqs
    resumed = output.scheduled_cached_reqs["A"]
    # 8 of its 11 tokens are found; the hit blocks come first.
    assert (True, 8) == (resumed.resumed, resumed.num_computed_tokens)
    assert (driver["A"].block_ids, 3) == (resumed.new_block_ids, len(resumed.new_block_ids))
    assert CachedRequestData(False, [], 6) == output.scheduled_cached_reqs["B"]


@given(configs(), choices)
def test_output_is_consistent(config: SchedulerConfig, walk_choices: list[int]) -> None:
    """Facts 3 and 25: each entry has its diff, with counters from before the step; budgets add up.

    What a step takes from the two budgets is what it hands out, also after taking back.
    """
    driver = make_driver_for_walks(config)
    for _ in walk(driver, walk_choices):
        if not driver.may_schedule():
            continue
        output = driver.schedule()
        total = output.total_num_scheduled_tokens
        assert config.max_num_scheduled_tokens - total == driver.scheduler.token_budget
        num_slots = config.num_draft_slots * len(output.num_scheduled_tokens)
        assert config.max_num_batched_tokens - total - num_slots == driver.scheduler.input_budget
        assert min(driver.scheduler.token_budget, driver.scheduler.input_budget) >= 0
        starts = start_positions(output)
        assert set(output.num_scheduled_tokens) == set(starts)
        assert len(starts) == len(output.scheduled_new_reqs) + len(output.scheduled_cached_reqs)
        for name, num_tokens in output.num_scheduled_tokens.items():
            assert num_tokens > 0
            assert driver[name].num_computed_tokens == starts[name] + num_tokens


def test_new_blocks_to_zero() -> None:
    """All blocks taken in a step are named in order, also those that were given back in it."""
    config = make_config(
        policy="priority", num_blocks=3, max_num_batched_tokens=4, scheduler_reserve_full_isl=False
    )
    driver = Driver(config, make_request("A", 3, priority=5))
    assert [1] == driver.step().new_block_ids_to_zero
    driver.add(make_request("B", 6))
    assert [2] == driver.step().new_block_ids_to_zero
    output = driver.schedule()
    # A takes block 3 for its fifth token; B then needs a block, gets it, and A is taken back.
    assert (["A"], {"B": 3}) == (output.preempted_req_ids, output.num_scheduled_tokens)
    assert [3, 3] == output.new_block_ids_to_zero


# ---- finished requests ---------------------------------------------------------------------------


def test_finished_ids_go_out_once() -> None:
    """Fact 26: finished ids go out with the next schedule, even an idle one, and then no more."""
    driver = Driver(make_config(), make_request("A", 1, max_tokens=1))
    assert [] == driver.step().finished_req_ids
    assert ["A"] == driver.scheduler.observe().finished_req_ids
    idle = driver.schedule()
    assert (["A"], {}) == (idle.finished_req_ids, idle.num_scheduled_tokens)
    assert [] == driver.scheduler.observe().finished_req_ids
    assert [] == driver.schedule().finished_req_ids


def test_finished_ids_name_requests_that_never_ran() -> None:
    """Fact 26: a request aborted before it ever ran is named too."""
    driver = Driver(make_config(), make_request("A", 1), make_request("B", 1))
    driver.abort("B", "A", "nobody")
    assert ["B", "A"] == driver.schedule().finished_req_ids


def make_driver_in_every_state() -> Driver:
    """R runs with a step in flight, P is preempted with a stale one, W waits."""
    config = make_config(num_blocks=4, async_scheduling=True)
    driver = Driver(config, make_request("R", 8), make_request("P", 6))
    driver.schedule()
    driver.schedule()
    driver.add(make_request("W", 9))
    statuses = [driver[name].status for name in "RPW"]
    assert [RequestStatus.RUNNING, RequestStatus.PREEMPTED, RequestStatus.WAITING] == statuses
    return driver


@pytest.mark.parametrize("request_id", ["R", "P", "W"])
def test_abort_frees_at_once(request_id: str) -> None:
    """Fact 27: an abort frees at once in any state; outputs in flight for it are ignored."""
    driver = make_driver_in_every_state()
    num_blocks = driver[request_id].num_blocks
    expected_free = driver.num_free_blocks + num_blocks
    driver.abort(request_id)
    assert expected_free == driver.num_free_blocks
    assert request_id not in (*driver.running, *driver.waiting, *driver.scheduler.requests)

    before = driver.scheduler.observe()
    step = driver.in_flight[0].output
    sampled = {name: [7] for name in step.num_scheduled_tokens}
    results = driver.scheduler.update_from_output(step, ModelRunnerOutput(sampled))
    reported = {out.request_id for outputs in results.values() for out in outputs}
    assert {"R", "P"} - {request_id} == reported
    assert before.num_free_blocks == driver.num_free_blocks


def test_finish_keeps_the_given_status() -> None:
    """A request may be ended from outside as stopped, for a stop string that the client sees."""
    driver = Driver(make_config(), make_request("A", 1))
    request = driver["A"]
    driver.scheduler.finish_requests(["A"], RequestStatus.FINISHED_STOPPED)
    assert RequestStatus.FINISHED_STOPPED == request.status


def test_stops_free_one_after_the_other() -> None:
    """Fact 28: a stop frees at once inside the update loop: the later one's blocks stand first."""
    requests = [make_request(name, 5, max_tokens=1) for name in "AB"]
    driver = Driver(make_config(num_blocks=5), *requests)
    driver.step()
    assert [4, 3, 2, 1, 5] == driver.scheduler.observe().free_block_ids


def test_stop_frees_after_publication() -> None:
    """Fact 28: what the last async token makes known is published before its block is freed."""
    config = make_config(enable_prefix_caching=True, async_scheduling=True)
    driver = Driver(config, make_request("A", (0, 1, 2), max_tokens=2))
    driver.schedule()
    driver.schedule()
    driver.update(A=3)
    driver.update(A=9)
    assert ({}, 16) == (driver.scheduler.requests, driver.num_free_blocks)
    assert {1: (None, (0, 1, 2, 3))} == driver.scheduler.observe().block_contents


# ---- outputs to the clients ----------------------------------------------------------------------


def test_nothing_is_reported_in_mid_prompt() -> None:
    """Fact 29: an entry in mid-prompt yields no output; the one that completes it does."""
    driver = Driver(make_config(max_num_batched_tokens=4), make_request("A", 6))
    driver.schedule()
    assert {} == driver.update()
    driver.schedule()
    assert {"A": EngineCoreOutput("A", [7])} == driver.update(A=7)


def test_outputs_are_filed_under_their_client() -> None:
    """Each output goes to the API server that owns the request."""
    driver = Driver(
        make_config(),
        make_request("A", 1, client_index=1),
        make_request("B", 1),
        make_request("C", 1, client_index=1, max_tokens=1),
    )
    output = driver.schedule()
    results = driver.scheduler.update_from_output(
        output, ModelRunnerOutput({"A": [7], "B": [8], "C": [9]})
    )
    expected = {
        1: [EngineCoreOutput("A", [7]), EngineCoreOutput("C", [9], "length")],
        0: [EngineCoreOutput("B", [8])],
    }
    assert expected == results


def test_tokens_after_the_stop_are_dropped() -> None:
    """Of several sampled tokens, those up to the one that stops the request are appended."""
    driver = Driver(make_config(), make_request("A", 1, eos_token_id=7))
    output = driver.schedule()
    request = driver["A"]
    results = driver.scheduler.update_from_output(output, ModelRunnerOutput({"A": [5, 7, 6]}))
    assert {0: [EngineCoreOutput("A", [5, 7], "stop")]} == results
    assert (5, 7) == request.output_token_ids


@pytest.mark.parametrize(
    ("new", "sampled", "reason"),
    [
        ({"eos_token_id": 7}, [7], "stop"),
        ({"stop_token_ids": (3, 7)}, [7], "stop"),
        ({"max_tokens": 1}, [7], "length"),
        ({}, [7], None),
    ],
)
def test_finish_reasons(new: dict[str, Any], sampled: list[int], reason: str | None) -> None:
    """A client is told why its request ended, with the token that ended it."""
    driver = Driver(make_config(), make_request("A", 1, **new))
    driver.schedule()
    assert {"A": EngineCoreOutput("A", sampled, reason)} == driver.update(A=7)


# ---- counters and views --------------------------------------------------------------------------


def test_placeholders_count_tokens_being_sampled() -> None:
    """Async: each step that samples adds a placeholder, each token that arrives takes one away."""
    driver = Driver(make_config(async_scheduling=True), make_request("A", 20))
    counts = []
    for action in (driver.schedule, driver.schedule, driver.schedule):
        action()
        counts.append(driver["A"].num_output_placeholders)
    for _ in range(3):
        driver.update()
        counts.append(driver["A"].num_output_placeholders)
    # The first step ends in mid-prompt.
    assert [0, 1, 2, 2, 1, 0] == counts


@given(configs(), choices)
def test_what_was_handed_out_never_changes(
    config: SchedulerConfig, walk_choices: list[int]
) -> None:
    """Observations and outputs stay as they were when they were made, whatever happens later."""
    driver = make_driver_for_walks(config)
    kept = []
    for _ in walk(driver, walk_choices[:20]):
        seen = driver.scheduler.observe(), [step.output for step in driver.in_flight]
        kept.append((seen, deepcopy(seen)))
    for seen, copy in kept:
        assert copy == seen


def test_observation_shows_the_state() -> None:
    """`observe` names every field of a live request, the pool, and what can be found."""
    driver = Driver(
        make_config(enable_prefix_caching=True, num_blocks=3),
        make_request("A", (1, 2, 3, 4, 5)),
        make_request("B", 9),
    )
    driver.schedule()
    seen = driver.scheduler.observe()
    assert (["A"], ["B"], []) == (seen.running, seen.waiting, seen.finished_req_ids)
    assert (1, [3], {1: 1, 2: 1}) == (seen.num_free_blocks, seen.free_block_ids, seen.ref_cnt)
    assert ([1], {1: (None, (1, 2, 3, 4))}) == (seen.cached_block_ids, seen.block_contents)
    request = seen.requests["A"]
    assert ("RUNNING", "WAITING") == (request.status, seen.requests["B"].status)
    assert (5, 5, 0) == (request.num_prompt_tokens, request.num_tokens, request.num_output_tokens)
    assert (5, 5, 0) == (
        request.num_computed_tokens,
        request.num_in_flight_tokens,
        request.num_stale_output_tokens,
    )
    assert (0, 0, [1, 2]) == (
        request.num_preemptions,
        request.num_output_placeholders,
        request.block_ids,
    )
