"""One scheduling step: both passes and preemption. Facts 1 to 18, which recordings forced on us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.block_pool import NO_HIT, cdiv
from spec.interface import SchedulerOutput
from spec.request import Request
from tests.spec.support import Driver, make_config, make_request

LOW, HIGH = 5, 0
"""Priorities; the smaller number is served first."""


# ---- pass 1 --------------------------------------------------------------------------------------


def make_retry_driver() -> Driver:
    """B, in mid-prompt, is about to need the block of A, which decodes before it."""
    config = make_config(
        policy="priority",
        block_size=8,
        num_blocks=2,
        max_num_batched_tokens=6,
        scheduler_reserve_full_isl=False,
    )
    driver = Driver(config, make_request("A", 4, priority=LOW))
    driver.step()
    driver.add(make_request("B", 12, priority=HIGH))
    assert {"A": 1, "B": 5} == driver.step().num_scheduled_tokens
    return driver


def test_token_count_is_kept_over_retries() -> None:
    """Fact 1: a victim's tokens return to the budget, but not to the request that retries."""
    driver = make_retry_driver()
    assert 7 == driver["B"].num_tokens - driver["B"].num_computed_tokens
    # With A taken back 6 tokens are in the budget again, yet B keeps the 5 of before.
    assert {"B": 5} == driver.schedule().num_scheduled_tokens
    assert 1 == driver.scheduler.token_budget


def test_taken_back_victim_leaves_no_trace_in_the_output() -> None:
    """Fact 3: taking back removes the victim's count and diff entry and restores both budgets."""
    driver = make_retry_driver()
    output = driver.schedule()
    assert ["A"] == output.preempted_req_ids
    assert ["B"] == list(output.num_scheduled_tokens)
    assert ["B"] == list(output.scheduled_cached_reqs)
    assert (1, 1) == (driver.scheduler.token_budget, driver.scheduler.input_budget)


def test_taken_back_victim_has_nothing_of_the_step_in_flight() -> None:
    """Fact 3: a step that a victim was taken back from is not in flight for it."""
    driver = make_retry_driver()
    driver.schedule()
    assert (0, 0) == (driver["A"].num_in_flight_tokens, driver["A"].num_stale_output_tokens)


def test_priority_victim_is_first_maximum_in_running_order() -> None:
    """Fact 5: among equal (priority, arrival_time) priority preempts the first that runs."""
    config = make_config(policy="priority", num_blocks=3)
    # The queue breaks the tie by id, so that X runs before Y.
    requests = [make_request(name, 4, priority=LOW) for name in ("Y", "X")]
    driver = Driver(config, *requests, make_request("A", 4, priority=HIGH))
    driver.step()
    assert ["A", "X", "Y"] == driver.running
    output = driver.schedule()
    # A and then Y each need a second block: X goes for A, and Y has the other block of X.
    assert ["X"] == output.preempted_req_ids[:1]


@pytest.mark.parametrize(
    ("priorities", "arrival_times", "victim"),
    [
        ((0, 1, 1), (0.0, 1.0, 2.0), "C"),
        ((0, 1, 1), (0.0, 2.0, 1.0), "B"),
        ((2, 1, 1), (0.0, 1.0, 2.0), "A"),
        ((1, 1, 1), (0.0, 0.0, 0.0), "A"),
    ],
)
def test_priority_victim(
    priorities: tuple[int, ...], arrival_times: tuple[float, ...], victim: str
) -> None:
    """Fact 5: the priority victim has the greatest (priority, arrival_time)."""
    driver = Driver(make_config(policy="priority"))
    for name, priority, time in zip("ABC", priorities, arrival_times, strict=True):
        driver.add(make_request(name, 2, priority=priority, arrival_time=time))
        driver.step()
    assert ["A", "B", "C"] == driver.running
    assert victim == driver.scheduler._choose_victim().request_id


def test_fcfs_victim_is_the_last_running() -> None:
    """FCFS preempts the last running request, whatever its priority says."""
    driver = Driver(make_config(), make_request("A", 2, priority=LOW), make_request("B", 2))
    driver.step()
    assert "B" == driver.scheduler._choose_victim().request_id


@given(num_prompt_tokens=st.integers(1, 6), max_tokens=st.integers(1, 6))
def test_async_schedules_as_many_steps_as_tokens(num_prompt_tokens: int, max_tokens: int) -> None:
    """Fact 6: no step is scheduled past the one in flight that samples the last token."""
    config = make_config(async_scheduling=True)
    driver = Driver(config, make_request("A", num_prompt_tokens, max_tokens))
    num_steps = 0
    driver.schedule()
    while driver.live:
        num_steps += len(driver.in_flight[0].samplers)
        driver.schedule()
        driver.update()
    assert {} == driver.in_flight[0].output.num_scheduled_tokens
    assert max_tokens == num_steps


def test_position_cap_skips_but_does_not_stop() -> None:
    """Fact 7: a request with no position left for a token is skipped; those behind are served."""
    config = make_config(async_scheduling=True, max_model_len=8)
    driver = Driver(config, make_request("A", 6, max_tokens=99), make_request("B", 3))
    steps = [driver.schedule().num_scheduled_tokens for _ in range(3)]
    # A's last step computes position 6 and samples the token at position 7, the last there is.
    assert [{"A": 6, "B": 3}, {"A": 1, "B": 1}, {"B": 1}] == steps


def test_position_cap_spares_admission() -> None:
    """Fact 7: the longest prompt there can be, `max_model_len - 1`, is admitted whole."""
    driver = Driver(make_config(max_model_len=8), make_request("A", 7))
    assert {"A": 7} == driver.schedule().num_scheduled_tokens


def test_pass_1_ignores_the_rest_of_a_prompt() -> None:
    """Fact 8: a running request gets a chunk that fits, though the rest of its prompt does not."""
    config = make_config(num_blocks=2, max_num_batched_tokens=4, scheduler_reserve_full_isl=False)
    driver = Driver(config, make_request("A", 12))
    driver.step()
    assert {"A": 4} == driver.step().num_scheduled_tokens
    assert ["A"] == driver.step().preempted_req_ids


def test_no_gap_is_skipped() -> None:
    """A running request with nothing to compute is skipped: its token is not known yet."""
    driver = Driver(make_config(), make_request("A", 4), make_request("B", 4))
    driver.schedule()
    assert {} == driver.schedule().num_scheduled_tokens
    assert ["A", "B"] == driver.running


# ---- preemption ----------------------------------------------------------------------------------


def make_evicting_driver(**changes: object) -> Driver:
    """A and B are in flight and hold all four blocks; in the next step A needs one more."""
    config = make_config(num_blocks=4, async_scheduling=True, **changes)
    driver = Driver(config, make_request("A", 8), make_request("B", 6))
    assert {"A": 8, "B": 6} == driver.schedule().num_scheduled_tokens
    return driver


def test_preemption_with_a_step_in_flight() -> None:
    """Fact 9: blocks are free at once; computed and placeholders are 0; the rest is stale."""
    driver = make_evicting_driver()
    assert 0 == driver.num_free_blocks
    assert ["B"] == driver.schedule().preempted_req_ids
    request = driver["B"]
    assert 1 == driver.num_free_blocks
    assert ([], 0) == (request.block_ids, request.num_blocks)
    assert (0, 0) == (request.num_computed_tokens, request.num_output_placeholders)
    assert (6, 6) == (request.num_in_flight_tokens, request.num_stale_output_tokens)
    assert 1 == request.num_preemptions


def test_in_flight_drains_after_a_preemption() -> None:
    """Fact 9: what is in flight stays and drains normally."""
    driver = make_evicting_driver()
    driver.schedule()
    driver.update()
    assert (0, 0) == (driver["B"].num_in_flight_tokens, driver["B"].num_stale_output_tokens)


def test_stale_is_assigned_not_added() -> None:
    """Fact 9: a second preemption voids what is in flight, not twice what was stale already."""
    driver = make_evicting_driver(wait_for_stale_output=False)
    driver.schedule()
    driver.abort("A")
    assert {"B": 6} == driver.schedule().num_scheduled_tokens
    driver.scheduler._preempt(driver["B"])
    assert (12, 12) == (driver["B"].num_in_flight_tokens, driver["B"].num_stale_output_tokens)
    assert 2 == driver["B"].num_preemptions


def test_a_victim_keeps_its_tokens() -> None:
    """A preempted request keeps its outputs and computes them again when it resumes."""
    driver = Driver(
        make_config(num_blocks=3), make_request("A", 4, max_tokens=2), make_request("B", 4)
    )
    driver.step(B=7)
    assert ["B"] == driver.step().preempted_req_ids[:1]
    assert (4 + 1, (7,)) == (driver["B"].num_tokens, driver["B"].output_token_ids)
    assert {"B": 5} == driver.step().num_scheduled_tokens


def make_driver_with_two_victims(**changes: object) -> Driver:
    """A's next chunk needs two blocks, which B and C hold."""
    config = make_config(
        block_size=2,
        num_blocks=4,
        max_num_batched_tokens=8,
        long_prefill_token_threshold=4,
        scheduler_reserve_full_isl=False,
        **changes,
    )
    requests = [make_request("A", 12), make_request("B", 2), make_request("C", 2)]
    driver = Driver(config, *requests)
    assert {"A": 4, "B": 2, "C": 2} == driver.schedule().num_scheduled_tokens
    return driver


def test_fcfs_victims_end_in_running_order() -> None:
    """Fact 10: FCFS puts each victim to the front, so that several of one step wait as they ran."""
    driver = make_driver_with_two_victims()
    driver.add(make_request("D", 2))
    assert ["C", "B"] == driver.schedule().preempted_req_ids
    assert ["B", "C", "D"] == driver.waiting


def test_priority_victim_is_inserted_by_rank() -> None:
    """Fact 10: under priority there is no front; a victim waits behind who outranks it."""
    config = make_config(policy="priority", num_blocks=2)
    driver = Driver(config, make_request("A", 4), make_request("B", 4, priority=LOW))
    driver.step()
    driver.add(make_request("D", 12, priority=1))
    assert ["B"] == driver.schedule().preempted_req_ids
    assert ["D", "B"] == driver.waiting


def test_skipped_requests_keep_their_order() -> None:
    """Fact 11: requests with stale output in flight are skipped, and put back in order."""
    driver = make_driver_with_two_victims(async_scheduling=True)
    driver.schedule()
    assert (["B", "C"], 2) == (driver.waiting, driver["B"].num_stale_output_tokens)
    driver.abort("A")
    driver.add(make_request("D", 2))
    assert {"D": 2} == driver.schedule().num_scheduled_tokens
    assert ["B", "C"] == driver.waiting


def test_stale_output_is_delivered() -> None:
    """Fact 12: stale output is appended and delivered; placeholders and computed stay."""
    driver = make_evicting_driver(wait_for_stale_output=False)
    driver.schedule()
    driver.abort("A")
    driver.schedule()
    before = driver["B"].num_output_placeholders, driver["B"].num_computed_tokens
    assert (1, 6) == before
    assert [7] == driver.update(B=7)["B"].new_token_ids
    assert before == (driver["B"].num_output_placeholders, driver["B"].num_computed_tokens)
    assert (7,) == driver["B"].output_token_ids


def test_stale_output_may_finish_a_waiting_request() -> None:
    """Fact 12: a stale token may end a preempted request, which leaves the waiting queue."""
    driver = Driver(
        make_config(num_blocks=4, async_scheduling=True),
        make_request("A", 8),
        make_request("B", 6, max_tokens=2, eos_token_id=7),
    )
    driver.schedule()
    driver.schedule()
    assert ["B"] == driver.waiting
    assert "stop" == driver.update(B=7)["B"].finish_reason
    assert ([], ["B"]) == (driver.waiting, driver.scheduler.finished_req_ids)


def test_stale_output_publishes_nothing() -> None:
    """Fact 12: the blocks that a voided step would have filled stay unfindable."""
    driver = make_evicting_driver(enable_prefix_caching=True, wait_for_stale_output=False)
    driver.schedule()
    published = driver.scheduler.observe().block_contents
    driver.update()
    assert published == driver.scheduler.observe().block_contents


# ---- pass 2 --------------------------------------------------------------------------------------


def test_threshold_applies_to_both_passes_from_two_requests_on() -> None:
    """Fact 13: whether the threshold is lifted is settled at the start, for both passes."""
    driver = Driver(
        make_config(long_prefill_token_threshold=3, max_num_batched_tokens=8), make_request("A", 20)
    )
    assert {"A": 8} == driver.step().num_scheduled_tokens
    driver.add(make_request("B", 7))
    assert {"A": 3, "B": 3} == driver.step().num_scheduled_tokens
    driver.abort("B")
    assert {"A": 8} == driver.step().num_scheduled_tokens


def make_caching_driver(**changes: object) -> Driver:
    """A driver with a prefix cache: the blocks of the tokens 0 to 11 are free and findable."""
    driver = Driver(make_config(enable_prefix_caching=True, **changes))
    driver.add(make_request("old", tuple(range(12)), max_tokens=1))
    while driver.live:
        driver.step()
    return driver


@pytest.mark.parametrize("num_tokens", range(1, 16))
def test_a_hit_leaves_a_token_to_compute(num_tokens: int) -> None:
    """Fact 14: a hit is at most floor((num_tokens - 1) / block_size) blocks."""
    driver = make_caching_driver()
    driver.add(make_request("A", tuple(range(num_tokens))))
    num_hit_tokens = 4 * min((num_tokens - 1) // 4, 3)
    output = driver.schedule()
    assert num_hit_tokens == output.scheduled_new_reqs["A"].num_computed_tokens
    assert {"A": num_tokens - num_hit_tokens} == output.num_scheduled_tokens


def test_a_hit_is_looked_up_again_at_every_attempt() -> None:
    """Fact 14: what was not cached when a request was refused may be when it is admitted."""
    config = make_config(enable_prefix_caching=True, num_blocks=5, long_prefill_token_threshold=4)
    driver = Driver(config, make_request("G", 4, max_tokens=2))
    driver.step()
    driver.add(make_request("F", tuple(range(12))))
    driver.add(make_request("A", tuple(range(13))))
    # F publishes a block in each step; A hits one and needs 3, of which 2 are free until G is done.
    assert {"G": 1, "F": 4} == driver.step().num_scheduled_tokens
    output = driver.step()
    assert 8 == output.scheduled_new_reqs["A"].num_computed_tokens
    assert {"F": 4, "A": 4} == output.num_scheduled_tokens


def test_refused_admission_changes_nothing() -> None:
    """Fact 14: a request that hits blocks but does not fit leaves queue, pool and cache alone."""
    driver = make_caching_driver(num_blocks=4)
    driver.add(make_request("A", tuple(range(20))))
    before = driver.scheduler.observe()
    before.finished_req_ids.clear()
    assert {} == driver.schedule().num_scheduled_tokens
    assert before == driver.scheduler.observe()


@given(
    num_free=st.integers(0, 6),
    num_tokens=st.integers(1, 28),
    is_hit_held=st.booleans(),
    whole_sequence=st.booleans(),
)
def test_room(*, num_free: int, num_tokens: int, is_hit_held: bool, whole_sequence: bool) -> None:
    """Fact 15: required - hit + (hit blocks that nobody holds) <= free, for both gates."""
    config = make_config(
        enable_prefix_caching=True,
        num_blocks=10,
        max_num_batched_tokens=16,
        scheduler_reserve_full_isl=whole_sequence,
    )
    driver = Driver(config, make_request("holder", (*range(12), 99)))
    driver.schedule()
    if not is_hit_held:
        driver.abort("holder")
    pool = driver.scheduler.block_pool
    pool.allocate(Request(make_request("filler", 1)), NO_HIT, pool.num_free_blocks - num_free)

    driver.add(make_request("A", tuple(range(num_tokens))))
    # Free cached blocks are evicted by the filler when nothing else is left.
    num_findable = 3 if is_hit_held else min(3, num_free)
    num_hit = min((num_tokens - 1) // 4, num_findable)
    num_required = cdiv(num_tokens if whole_sequence else min(num_tokens, num_hit * 4 + 16), 4)
    fits = num_required - num_hit + (0 if is_hit_held else num_hit) <= num_free
    assert fits == ("A" in driver.schedule().num_scheduled_tokens)


@pytest.mark.parametrize("num_watermark_blocks", range(5))
def test_watermark(num_watermark_blocks: int) -> None:
    """Fact 16: an admission must leave the watermark free, but only when anything is running."""
    config = make_config(num_blocks=5, num_watermark_blocks=num_watermark_blocks)
    driver = Driver(config, make_request("A", 7))
    assert {"A": 7} == driver.step().num_scheduled_tokens
    driver.add(make_request("B", 3))
    # A runs and holds 2 of 5 blocks, B needs 1.
    assert (num_watermark_blocks <= 2) == ("B" in driver.step().num_scheduled_tokens)


def test_watermark_spares_running_requests() -> None:
    """Fact 16: a running request may take the last block, whatever the watermark."""
    driver = Driver(make_config(num_blocks=2, num_watermark_blocks=9), make_request("A", 4))
    driver.step()
    assert {"A": 1} == driver.step().num_scheduled_tokens
    assert 0 == driver.num_free_blocks


def make_driver_with_a_preempted_request(**changes: object) -> Driver:
    """B, with 4 prompt and 3 output tokens, waits to be resumed; A runs and holds 2 blocks."""
    driver = Driver(make_config(**changes), make_request("A", 4), make_request("B", 4))
    for _ in range(3):
        driver.step()
    driver.scheduler._preempt(driver["B"])
    assert (7, ["B"], 2) == (driver["B"].num_tokens, driver.waiting, driver["A"].num_blocks)
    return driver


def test_resumed_gap_is_prompt_and_outputs() -> None:
    """Fact 17: a resumed request computes prompt and outputs again."""
    driver = make_driver_with_a_preempted_request()
    assert {"A": 1, "B": 7} == driver.step().num_scheduled_tokens


@pytest.mark.parametrize("num_free", [1, 2])
def test_resumed_gate_is_prompt_and_outputs(num_free: int) -> None:
    """Fact 17: the whole-sequence gate of a resumed request asks for prompt and outputs."""
    driver = make_driver_with_a_preempted_request(num_blocks=6, long_prefill_token_threshold=4)
    pool = driver.scheduler.block_pool
    pool.allocate(Request(make_request("filler", 1)), NO_HIT, pool.num_free_blocks - num_free)
    # The prompt alone, or the chunk of 4, needs one block; all 7 tokens need two.
    assert (num_free == 2) == ("B" in driver.schedule().num_scheduled_tokens)


def test_no_admission_after_a_preemption() -> None:
    """Fact 18: in a step that preempted nobody is admitted, though there would be room."""
    config = make_config(num_blocks=5)
    driver = Driver(config, make_request("A", 4), make_request("B", 16))
    driver.step()
    driver.add(make_request("C", 1))
    output = driver.schedule()
    assert ({"A": 1}, ["B"]) == (output.num_scheduled_tokens, output.preempted_req_ids)
    assert (["B", "C"], 3) == (driver.waiting, driver.num_free_blocks)


def test_no_admission_after_a_self_preemption() -> None:
    """Fact 18: that holds if the only victim is the request that needed room."""
    driver = Driver(make_config(num_blocks=1), make_request("A", 4))
    driver.step()
    driver.add(make_request("B", 1))
    output = driver.schedule()
    assert ({}, ["A"]) == (output.num_scheduled_tokens, output.preempted_req_ids)
    assert 1 == driver.num_free_blocks


def test_seats() -> None:
    """Gate: no more than `max_num_seqs` requests run."""
    requests = [make_request(name, 1) for name in "ABC"]
    driver = Driver(make_config(max_num_seqs=2), *requests)
    assert {"A": 1, "B": 1} == driver.schedule().num_scheduled_tokens


def test_whole_prompts_only() -> None:
    """Gate: without chunked prefill a prompt that exceeds the budget left stops admission."""
    config = make_config(enable_chunked_prefill=False, max_model_len=17)
    requests = [make_request("A", 10), make_request("B", 7), make_request("C", 1)]
    driver = Driver(config, *requests)
    assert {"A": 10} == driver.step().num_scheduled_tokens
    assert {"A": 1, "B": 7, "C": 1} == driver.step().num_scheduled_tokens


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_token_budget_below_input_budget(*, async_scheduling: bool) -> None:
    """The smaller of the two budgets binds, in both passes."""
    config = make_config(max_num_scheduled_tokens=6, async_scheduling=async_scheduling)
    driver = Driver(config, make_request("A", 9), make_request("B", 9))
    steps = [driver.step().num_scheduled_tokens for _ in range(3)]
    assert [{"A": 6}, {"A": 3, "B": 3}, {"A": 1, "B": 5}] == steps


def test_an_idle_step_is_empty() -> None:
    """With nobody there a step schedules nothing."""
    assert SchedulerOutput() == Driver(make_config()).schedule()
