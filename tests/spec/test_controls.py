"""Pauses, grammars, adapters, prompts in part, refusals and resets: what the reference does."""

from __future__ import annotations

import copy

import pytest
from attrs import evolve

from spec.actions import GrammarReady, ResetPrefixCache, SetPauseState
from spec.environment import Environment
from spec.interface import (
    EngineCoreOutput,
    NewRequest,
    PauseState,
    RequestStatus,
    SchedulerConfig,
)
from spec.scheduler import ReferenceScheduler
from tests.spec.support import Driver, make_config, make_request

# ---- pauses --------------------------------------------------------------------------------------


def test_a_pause_of_admission_lets_running_requests_go_on() -> None:
    """Paused for new requests, A goes on, and B waits until the pause ends."""
    driver = Driver(make_config(), make_request("A", 5))
    driver.step()
    driver.add(make_request("B", 3))
    driver.do(SetPauseState("paused_new"))
    assert {"A": 1} == driver.step().num_scheduled_tokens
    driver.do(SetPauseState("unpaused"))
    assert {"A": 1, "B": 3} == driver.step().num_scheduled_tokens


def test_a_pause_of_all_changes_nothing() -> None:
    """Paused wholly, a step is empty, and who runs keeps blocks and counters."""
    driver = Driver(make_config(), make_request("A", 5))
    driver.step()
    driver.do(SetPauseState("paused_all"))
    before = driver.scheduler.observe()
    assert {} == driver.step().num_scheduled_tokens
    assert before == driver.scheduler.observe()
    driver.do(SetPauseState("unpaused"))
    assert {"A": 1} == driver.step().num_scheduled_tokens


def test_a_step_in_flight_returns_into_a_pause() -> None:
    """A step that was planned before the pause delivers its tokens all the same."""
    driver = Driver(make_config(), make_request("A", 5))
    driver.schedule()
    driver.do(SetPauseState("paused_all"))
    assert EngineCoreOutput("A", [7]) == driver.update(A=7)["A"]


def test_the_other_pause_states_are_on_the_menu() -> None:
    """Where an environment has pauses, the engine may be told each state that it is not in."""
    driver = Driver(make_config())
    driver.environment = Environment(
        shapes=(make_request("A", 1),), max_live_requests=1, with_pauses=True
    )
    states: list[PauseState] = ["paused_new", "paused_all"]
    assert [SetPauseState(state) for state in states] == driver.controls()
    driver.do(SetPauseState("paused_new"))
    states = ["unpaused", "paused_all"]
    assert [SetPauseState(state) for state in states] == driver.controls()


# ---- grammars ------------------------------------------------------------------------------------


def test_a_request_waits_for_its_grammar_and_keeps_its_place() -> None:
    """B passes A while A's grammar is compiled; A then stands before C."""
    driver = Driver(
        make_config(max_num_seqs=2),
        make_request("A", 3, structured_output=True),
        make_request("B", 3),
        make_request("C", 3),
    )
    driver.do(SetPauseState("unpaused"))
    assert {"B": 3, "C": 3} == driver.step().num_scheduled_tokens
    assert ["A"] == driver.waiting
    driver.abort("B")
    driver.add(make_request("D", 3))
    driver.do(GrammarReady("A"))
    assert {"C": 1, "A": 3} == driver.step().num_scheduled_tokens
    assert ["D"] == driver.waiting


def test_a_grammar_is_compiled_once() -> None:
    """Who has its grammar is neither told of it again, nor is a request without one."""
    driver = Driver(make_config(), make_request("A", 3, structured_output=True))
    driver.add(make_request("B", 3))
    assert [GrammarReady("A")] == driver.grammars()
    driver.do(GrammarReady("A"))
    assert [] == driver.grammars()


def test_a_preempted_request_has_its_grammar() -> None:
    """A preemption does not make a request wait for its grammar again."""
    driver = Driver(
        make_config(num_blocks=4),
        make_request("A", 8),
        make_request("B", 7, structured_output=True),
    )
    driver.do(GrammarReady("B"))
    driver.step()
    driver.step()
    assert ["B"] == driver.waiting
    driver.abort("A")
    assert {"B": 8} == driver.step().num_scheduled_tokens


def test_a_grammar_of_the_dead_is_ignored() -> None:
    """A grammar may be compiled after its request has gone."""
    driver = Driver(make_config(), make_request("A", 3, structured_output=True))
    driver.abort("A")
    driver.scheduler.grammar_ready("A")
    assert ([], []) == (driver.running, driver.waiting)


# ---- adapters ------------------------------------------------------------------------------------


def test_an_adapter_that_finds_no_slot_is_passed_over() -> None:
    """C has a third adapter; D has one that is in the step, and E has none."""
    requests = [
        make_request(name, 3, lora_id=lora_id)
        for name, lora_id in (("A", 1), ("B", 2), ("C", 3), ("D", 1), ("E", 0))
    ]
    driver = Driver(make_config(max_loras=2, max_num_seqs=8), *requests)
    assert ["A", "B", "D", "E"] == list(driver.step().num_scheduled_tokens)
    assert ["C"] == driver.waiting


@pytest.mark.parametrize(
    ("other", "num_hit_tokens"),
    [
        ({"lora_id": 1}, 4),
        ({"lora_id": 2}, 0),
        ({}, 0),
        ({"lora_id": 1, "cache_salt": ""}, 0),
        ({"cache_salt": "lora 1"}, 0),
    ],
)
def test_adapters_share_no_blocks(other: dict[str, object], num_hit_tokens: int) -> None:
    """What was computed with an adapter is found with that adapter, under the same salt, only."""
    driver = Driver(make_config(enable_prefix_caching=True))
    driver.add(make_request("A", (5,) * 6, max_tokens=1, lora_id=1))
    driver.step()
    driver.add(make_request("B", (5,) * 6, **other))
    assert num_hit_tokens == driver.step().scheduled_new_reqs["B"].num_computed_tokens


# ---- prompts in part -----------------------------------------------------------------------------


def test_one_prompt_in_part_too_many_ends_admission() -> None:
    """B would be the second prompt in part, and C, which fits, stands behind it.

    A's is whole after the second step, so that one leaves a part of B's.
    """
    driver = Driver(
        make_config(
            max_num_batched_tokens=6, long_prefill_token_threshold=4, max_num_partial_prefills=1
        ),
        make_request("A", 8),
        make_request("B", 3),
        make_request("C", 1),
    )
    assert {"A": 4} == driver.step().num_scheduled_tokens
    assert {"A": 4, "B": 2} == driver.step().num_scheduled_tokens
    assert {"A": 1, "B": 1, "C": 1} == driver.step().num_scheduled_tokens


def test_one_long_prompt_too_many_is_passed_over() -> None:
    """B's prompt is long as A's is, so C passes it; then A's is whole, and B follows."""
    driver = Driver(
        make_config(
            max_num_batched_tokens=6, long_prefill_token_threshold=4, max_long_partial_prefills=1
        ),
        make_request("A", 8),
        make_request("B", 8),
        make_request("C", 2),
    )
    assert {"A": 4, "C": 2} == driver.step().num_scheduled_tokens
    assert {"A": 4, "C": 1, "B": 1} == driver.step().num_scheduled_tokens


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "is_refused"),
    [(8, 1, False), (9, 1, True), (5, 4, False), (5, 5, True)],
)
def test_what_may_outgrow_the_pool_is_refused(
    num_prompt_tokens: int, max_tokens: int, is_refused: bool
) -> None:
    """8 tokens fit the pool; the last one that a request samples need not."""
    driver = Driver(make_config(num_blocks=2, reject_too_large=True))
    driver.add(make_request("A", num_prompt_tokens, max_tokens=max_tokens))
    assert ([] if is_refused else ["A"]) == list(driver.live) == driver.waiting


def most_blocks(config: SchedulerConfig, new: NewRequest) -> int:
    """The most blocks that a request holds in any run of it alone."""
    driver = Driver(config, new)
    drafts = (0,) * config.num_speculative_tokens
    driver.environment = Environment(shapes=(new,), max_live_requests=1, draft_token_ids=drafts)
    most, rest = 0, [driver]
    while rest:
        driver = rest.pop()
        driver.schedule()
        most = max(most, driver["A"].num_blocks)
        for action in driver.updates():
            after = copy.deepcopy(driver)
            after.do(action)
            rest += [after] if after.live else []
    return most


@pytest.mark.parametrize("num_prompt_tokens", [4, 5])
@pytest.mark.parametrize("max_tokens", [1, 2, 4])
@pytest.mark.parametrize(("num_drafts", "num_ahead"), [(0, 0), (1, 0), (2, 2)])
def test_a_request_is_refused_exactly_if_alone_it_may_lack_blocks(
    num_prompt_tokens: int, max_tokens: int, num_drafts: int, num_ahead: int
) -> None:
    """All runs of a request alone, drafts accepted or not, show how many blocks it may need."""
    config = make_config(
        max_num_batched_tokens=3,
        max_model_len=8,
        block_size=1,
        num_speculative_tokens=num_drafts,
        num_lookahead_tokens=num_ahead,
        reject_too_large=True,
    )
    new = make_request("A", num_prompt_tokens, max_tokens=max_tokens)
    most = most_blocks(config, new)
    refusal = EngineCoreOutput("A", [], "error")
    for num_blocks, expected in ((most, None), (most - 1, refusal)):
        scheduler = ReferenceScheduler(evolve(config, num_blocks=num_blocks))
        assert expected == scheduler.add_request(new)


def test_a_refusal_is_told_to_its_client() -> None:
    """The answer goes to the client at once, and the worker never hears of the request."""
    driver = Driver(make_config(num_blocks=2, reject_too_large=True))
    refusal = driver.scheduler.add_request(make_request("A", 9))
    assert EngineCoreOutput("A", [], "error") == refusal
    assert [] == driver.scheduler.observe().finished_req_ids


# ---- resets --------------------------------------------------------------------------------------


def test_a_reset_forgets_what_nobody_holds() -> None:
    """After a reset a prefix is not found any more."""
    driver = Driver(make_config(enable_prefix_caching=True))
    driver.add(make_request("A", (5,) * 6, max_tokens=1))
    driver.step()
    assert driver.do(ResetPrefixCache(False)).is_reset
    driver.add(make_request("B", (5,) * 6))
    assert 0 == driver.step().scheduled_new_reqs["B"].num_computed_tokens


def test_a_reset_is_refused_while_a_block_is_held() -> None:
    """Content that somebody holds stays findable, and so does all other."""
    driver = Driver(make_config(enable_prefix_caching=True), make_request("A", (5,) * 6))
    driver.step()
    before = driver.scheduler.observe()
    assert False is driver.do(ResetPrefixCache(False)).is_reset
    assert before == driver.scheduler.observe()


def test_a_reset_preempts_all_in_their_order() -> None:
    """Whoever runs waits at the head again, its steps in flight void, and nothing is found."""
    driver = Driver(make_config(enable_prefix_caching=True, async_scheduling=True))
    for name in "AB":
        driver.add(make_request(name, 6))
    driver.schedule()
    driver.add(make_request("C", 3))
    assert driver.do(ResetPrefixCache(True)).is_reset
    assert ([], ["A", "B", "C"]) == (driver.running, driver.waiting)
    assert [("A", "B")] == [step.voided for step in driver.in_flight]
    assert (6, 6) == (driver["A"].num_stale_output_tokens, driver["B"].num_stale_output_tokens)
    assert [] == driver.scheduler.observe().cached_block_ids
    assert [("A", "B")] == [step.dropped for step in driver.in_flight]


def test_a_reset_drops_what_is_in_flight() -> None:
    """A and B run again at once, so the tokens that they were sampling are dropped."""
    driver = Driver(make_config(enable_prefix_caching=True, async_scheduling=True))
    for name in "AB":
        driver.add(make_request(name, 6))
    driver.schedule()
    driver.do(ResetPrefixCache(True))
    assert {"A": 6, "B": 6} == driver.schedule().num_scheduled_tokens
    assert {} == driver.update(A=7, B=8)
    assert {"A", "B"} == set(driver.update(A=5, B=6))
    assert ((5,), (6,)) == (driver["A"].output_token_ids, driver["B"].output_token_ids)


def test_what_a_reset_drops_stays_dropped() -> None:
    """A, preempted again while a dropped token is in flight, is sent none of either step."""
    config = make_config(enable_prefix_caching=True, async_scheduling=True)
    driver = Driver(config, make_request("A", 6))
    driver.schedule()
    for _ in range(2):
        driver.do(ResetPrefixCache(True))
        driver.schedule()
    assert [{}, {}] == [driver.update(A=7), driver.update(A=8)]
    assert ["A"] == list(driver.update(A=9))


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_whether_something_is_cached_is_no_condition_of_a_reset(
    enable_prefix_caching: bool,
) -> None:
    """Either reset may happen in an environment with resets; one preempts all who run."""
    driver = Driver(make_config(enable_prefix_caching=enable_prefix_caching), make_request("A", 6))
    driver.environment = Environment(
        shapes=(make_request("A", 1),), max_live_requests=1, with_resets=True
    )
    assert [ResetPrefixCache(False), ResetPrefixCache(True)] == driver.controls()
    driver.schedule()
    driver.do(ResetPrefixCache(False))
    assert RequestStatus.RUNNING == driver["A"].status
    driver.do(ResetPrefixCache(True))
    assert RequestStatus.PREEMPTED == driver["A"].status
