"""The lesson as tests: its example step by step, its exercises, its sentences, its questions.

Four requests (prompt/max_tokens) A 40/4, B 100/2, C 90/2, D 10/2 share a budget of 64 tokens, three
seats and a pool of 12 blocks of 16 tokens.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from spec.block_pool import CacheHit, cdiv
from spec.interface import NewRequest, SchedulerConfig
from spec.request import Request
from spec.scheduler import ReferenceScheduler
from tests.spec.support import (
    Driver,
    choices,
    configs,
    make_driver_for_walks,
    make_request,
    walk,
    without_loads,
)

A = make_request("A", 40, max_tokens=4)
B = make_request("B", 100, max_tokens=2)
C = make_request("C", 90, max_tokens=2)
D = make_request("D", 10, max_tokens=2)


@frozen
class Row:
    """What the lesson's program prints about a step."""

    num_scheduled_tokens: dict[str, int]
    num_free_blocks: int
    """After the step has returned."""
    note: str = ""
    """Why the head of the queue was refused last."""
    done: tuple[str, ...] = ()


class Explained(ReferenceScheduler):
    """A scheduler that remembers which gate refused the head of the waiting queue."""

    note = ""

    def _begin_step(self) -> None:
        self.note = ""
        super()._begin_step()

    def _may_admit(self) -> bool:
        return self._noted(super()._may_admit(), "no budget left")

    def _has_seat(self) -> bool:
        return self._noted(super()._has_seat(), "max_num_seqs reached")

    def _has_room_for(self, request: Request, num_tokens: int, hit: CacheHit) -> bool:
        num_blocks = cdiv(request.num_tokens, self.config.block_size)
        free = self.block_pool.num_free_blocks
        note = f"{request.request_id} needs {num_blocks} blocks, {free} free"
        return self._noted(super()._has_room_for(request, num_tokens, hit), note)

    def _noted(self, passed: bool, note: str) -> bool:
        if not passed and not self.waiting.is_empty():
            self.note = note
        return passed


def make_lesson_config(**changes: Any) -> SchedulerConfig:
    """The lesson's numbers."""
    fields: dict[str, Any] = {
        "max_num_batched_tokens": 64,
        "max_num_seqs": 3,
        "max_model_len": 128,
        "block_size": 16,
        "num_blocks": 12,
    }
    return SchedulerConfig(**{**fields, **changes})


def run_lesson(requests: tuple[NewRequest, ...] = (A, B, C, D), **changes: Any) -> list[Row]:
    """Runs the requests to their end, and returns a row for each step."""
    driver = Driver(make_lesson_config(**changes), *requests, make_scheduler=Explained)
    rows = []
    while driver.live:
        output = driver.schedule()
        note = cast(Explained, driver.scheduler).note
        results = driver.update()
        done = tuple(name for name, out in results.items() if out.finish_reason == "length")
        rows.append(Row(output.num_scheduled_tokens, driver.num_free_blocks, note, done))
    return rows


def last_step_of(request_id: str, rows: list[Row]) -> int:
    """The number of the step in which a request is done."""
    return next(number for number, row in enumerate(rows, 1) if request_id in row.done)


def first_step_of(request_id: str, rows: list[Row]) -> int:
    """The number of the step in which a request is admitted."""
    return next(n for n, row in enumerate(rows, 1) if request_id in row.num_scheduled_tokens)


# ---- the example ---------------------------------------------------------------------------------


def test_example_step_by_step() -> None:
    """B is read in three chunks while A generates; C does not fit, and D waits behind it."""
    expected = [
        # A takes 3 blocks, the first chunk of B takes 2.
        Row({"A": 40, "B": 24}, 7, "no budget left"),
        # A writes into its third block; B's 87 tokens need 6.
        Row({"A": 1, "B": 63}, 3, "no budget left"),
        # The prompt of B is complete in 7 blocks; 50 tokens of budget and 2 blocks are left.
        Row({"A": 1, "B": 13}, 2, "C needs 6 blocks, 2 free"),
        Row({"A": 1, "B": 1}, 12, "C needs 6 blocks, 2 free", ("A", "B")),
        Row({"C": 64}, 8, "no budget left"),
        Row({"C": 26, "D": 10}, 5),
        Row({"C": 1, "D": 1}, 12, "", ("C", "D")),
    ]
    assert expected == run_lesson()


def test_example_needs_no_preemption() -> None:
    """In the example nobody loses its blocks: the whole-prompt gate kept C out."""
    driver = Driver(make_lesson_config(), A, B, C, D)
    while driver.live:
        assert [] == driver.step().preempted_req_ids


# ---- "Try it" ------------------------------------------------------------------------------------


def test_exercise_1_with_20_blocks_c_and_d_get_in_earlier() -> None:
    """With 20 blocks C gets in at step 3 instead of 5, and D at step 5 instead of 6.

    D no longer waits for memory but for one of the three seats.
    """
    expected = [
        Row({"A": 40, "B": 24}, 15, "no budget left"),
        Row({"A": 1, "B": 63}, 11, "no budget left"),
        # C's 90 tokens need 6 of 10 free blocks; its chunk of 50 takes 4.
        Row({"A": 1, "B": 13, "C": 50}, 6, "no budget left"),
        Row({"A": 1, "B": 1, "C": 40}, 14, "max_num_seqs reached", ("A", "B")),
        Row({"C": 1, "D": 10}, 19, "", ("C",)),
        Row({"D": 1}, 20, "", ("D",)),
    ]
    rows = run_lesson(num_blocks=20)
    assert expected == rows
    example = run_lesson()
    assert (5, 3) == (first_step_of("C", example), first_step_of("C", rows))
    assert (6, 5) == (first_step_of("D", example), first_step_of("D", rows))


def find_first_thrashing(
    num_blocks: int, *, whole_prompt_gate: bool
) -> tuple[int, str, int] | None:
    """The first preemption in mid-prompt: the number of the step, the victim, its progress."""
    config = make_lesson_config(num_blocks=num_blocks, scheduler_reserve_full_isl=whole_prompt_gate)
    driver = Driver(config, A, B, C, D)
    for number in range(1, 20):
        computed = {
            request.request_id: request.num_computed_tokens for request in driver.scheduler.running
        }
        output = driver.step()
        for victim in output.preempted_req_ids:
            if computed[victim] < len(driver.live[victim].new.prompt_token_ids):
                return number, victim, computed[victim]
    return None


@pytest.mark.parametrize("num_blocks", range(7, 21))
def test_exercise_2_first_chunk_gate_thrashes(num_blocks: int) -> None:
    """A gate for the first chunk lets in B (7 to 9 blocks) or C (14, 15), which then cannot grow.

    At the lesson's own 12 blocks both gates say the same: C's chunk of 50 does not fit either.
    """
    expected = {
        7: (2, "B", 24),
        8: (2, "B", 24),
        9: (3, "B", 87),
        14: (4, "C", 50),
        15: (4, "C", 50),
    }
    assert expected.get(num_blocks) == find_first_thrashing(num_blocks, whole_prompt_gate=False)


@pytest.mark.parametrize("num_blocks", range(7, 21))
def test_exercise_2_whole_prompt_gate_does_not_thrash(num_blocks: int) -> None:
    """With the whole-prompt gate none of those pools preempts anyone in mid-prompt."""
    assert None is find_first_thrashing(num_blocks, whole_prompt_gate=True)


def test_exercise_3_d_before_c_is_done_three_steps_sooner() -> None:
    """If D arrives before C it is done at step 4 instead of 7, and C not a step later."""
    expected = [
        Row({"A": 40, "B": 24}, 7, "no budget left"),
        Row({"A": 1, "B": 63}, 3, "no budget left"),
        Row({"A": 1, "B": 13, "D": 10}, 1, "max_num_seqs reached"),
        Row({"A": 1, "B": 1, "D": 1}, 12, "max_num_seqs reached", ("A", "B", "D")),
        Row({"C": 64}, 8),
        Row({"C": 26}, 6),
        Row({"C": 1}, 12, "", ("C",)),
    ]
    rows = run_lesson((A, B, D, C))
    assert expected == rows
    example = run_lesson()
    assert 3 == last_step_of("D", example) - last_step_of("D", rows)
    assert 0 == last_step_of("C", example) - last_step_of("C", rows)


# ---- "Remember this" -----------------------------------------------------------------------------


@given(configs(), choices)
def test_remember_two_passes(config: SchedulerConfig, walk_choices: list[int]) -> None:
    """schedule() has two passes: running requests first, then the head of the waiting queue."""
    # The lesson knows one waiting queue; who has loaded its KV waits in another, and goes first.
    driver = make_driver_for_walks(without_loads(config))
    for _ in walk(driver, walk_choices):
        before = driver.running, driver.waiting
        if not driver.may_schedule():
            continue
        output = driver.schedule()
        served = list(output.num_scheduled_tokens)
        first = [name for name in served if name in before[0]]
        then = [name for name in served if name in before[1]]
        assert first + then == served
        assert [name for name in before[0] if name in first] == first
        assert [name for name in before[1] if name in then] == then


@given(gap=st.integers(1, 20), num_computed_tokens=st.integers(0, 10), budget=st.integers(1, 20))
def test_remember_gap_and_budget(gap: int, num_computed_tokens: int, budget: int) -> None:
    """Each request gets min(gap, budget) tokens; the gap is num_tokens - num_computed_tokens."""
    config = make_lesson_config(max_num_batched_tokens=budget)
    driver = Driver(config, make_request("A", gap + num_computed_tokens))
    request = driver["A"]
    assert {"A": min(request.num_tokens, budget)} == driver.schedule().num_scheduled_tokens
    request.num_computed_tokens = num_computed_tokens
    assert {"A": min(gap, budget)} == driver.schedule().num_scheduled_tokens


@given(
    budget=st.integers(1, 12),
    max_num_seqs=st.integers(1, 6),
    prompts=st.lists(st.integers(1, 8), max_size=8),
)
def test_remember_two_limits(budget: int, max_num_seqs: int, prompts: list[int]) -> None:
    """Two independent limits bound a step: max_num_batched_tokens and max_num_seqs."""
    config = make_lesson_config(
        max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, num_blocks=100
    )
    requests = [make_request(f"r{index}", size) for index, size in enumerate(prompts)]
    driver = Driver(config, *requests)
    output = driver.schedule()
    assert min(budget, sum(prompts[:max_num_seqs])) == output.total_num_scheduled_tokens
    assert len(driver.running) <= max_num_seqs


def test_remember_running_that_cannot_move_is_skipped() -> None:
    """A running request that cannot move is skipped: those behind it are scheduled."""
    config = make_lesson_config(async_scheduling=True)
    driver = Driver(config, make_request("A", 10, max_tokens=1), make_request("B", 10))
    driver.schedule()
    # A's only token is being sampled, so that nothing is left to do for it.
    assert {"B": 1} == driver.schedule().num_scheduled_tokens
    assert ["A", "B"] == driver.running


def test_remember_waiting_that_does_not_fit_stops_admission() -> None:
    """A waiting request that cannot fit stops admission, also for a small one behind it."""
    driver = Driver(make_lesson_config(num_blocks=6), make_request("A", 64), C, D)
    driver.step()
    output = driver.schedule()
    assert {"A": 1} == output.num_scheduled_tokens
    assert (["C", "D"], 1) == (driver.waiting, driver.num_free_blocks)


@given(num_prompt_tokens=st.integers(1, 127), num_blocks=st.integers(1, 12))
def test_remember_whole_prompt_must_fit(num_prompt_tokens: int, num_blocks: int) -> None:
    """A new request is admitted if, and only if, its whole prompt fits in the free blocks."""
    driver = Driver(make_lesson_config(num_blocks=num_blocks), make_request("A", num_prompt_tokens))
    fits = cdiv(num_prompt_tokens, 16) <= num_blocks
    assert fits == ("A" in driver.schedule().num_scheduled_tokens)


def test_remember_worker_gets_full_data_once() -> None:
    """The worker gets full data for a request once, and only differences afterwards."""
    driver = Driver(make_lesson_config(), A, B, C, D)
    num_new: dict[str, int] = {}
    tables: dict[str, list[int]] = {}
    while driver.live:
        output = driver.schedule()
        for name, new in output.scheduled_new_reqs.items():
            num_new[name] = num_new.get(name, 0) + 1
            assert driver.live[name].new.prompt_token_ids == new.prompt_token_ids
            tables[name] = new.block_ids
        for name, cached in output.scheduled_cached_reqs.items():
            tables[name] = tables[name] + cached.new_block_ids
        for name in output.num_scheduled_tokens:
            assert driver[name].block_ids == tables[name]
        driver.update()
    assert {"A": 1, "B": 1, "C": 1, "D": 1} == num_new


def test_remember_computed_advances_at_scheduling_time() -> None:
    """num_computed_tokens advances at scheduling time; update_from_output() settles the result."""
    driver = Driver(make_lesson_config(), A)
    driver.schedule()
    assert (40, 40, 40) == counters(driver["A"])
    driver.update()
    assert (40, 0, 41) == counters(driver["A"])


def counters(request: Request) -> tuple[int, int, int]:
    """Computed, in flight, known."""
    return request.num_computed_tokens, request.num_in_flight_tokens, request.num_tokens


# ---- "Check yourself" ----------------------------------------------------------------------------


def test_question_1_a_huge_arrival_stalls_nobody() -> None:
    """Running requests come first: a huge new prompt gets only what they leave."""
    driver = Driver(make_lesson_config(), D, make_request("E", 10, max_tokens=9))
    driver.step()
    driver.add(make_request("huge", 120))
    for expected in ({"D": 1, "E": 1, "huge": 62}, {"E": 1, "huge": 58}):
        assert expected == driver.step().num_scheduled_tokens


def test_question_2_not_ready_is_skipped() -> None:
    """A waiting request that is not ready is set aside: the ones behind it are not delayed."""
    driver = Driver(make_lesson_config(async_scheduling=True), A, B)
    driver.schedule()
    # B comes back to the waiting queue while its chunk is still in flight.
    driver.scheduler._preempt(driver["B"])
    driver.add(D)
    assert {"A": 1, "D": 10} == driver.schedule().num_scheduled_tokens
    assert ["B"] == driver.waiting


def test_question_2_no_room_stops_admission() -> None:
    """A waiting request that does not fit stops admission: no small one overtakes it."""
    rows = run_lesson()
    assert {"A": 1, "B": 13} == rows[2].num_scheduled_tokens
    assert "C needs 6 blocks, 2 free" == rows[2].note
    assert last_step_of("C", rows) == last_step_of("D", rows)


def test_question_3_prompt_is_sent_once() -> None:
    """The worker receives a prompt once, preempted or not: a long one is costly to send."""
    driver = Driver(make_lesson_config(num_blocks=4), make_request("A", 30), make_request("B", 30))
    num_prompts_sent = num_preemptions = 0
    while driver.live:
        output = driver.step()
        num_prompts_sent += len(output.scheduled_new_reqs)
        num_preemptions += len(output.preempted_req_ids)
    assert num_preemptions > 0
    assert 2 == num_prompts_sent
