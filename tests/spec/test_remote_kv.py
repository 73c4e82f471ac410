"""Remote KV and deferred frees: what the reference does while others write blocks."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given

from checkers.configs import load_settings
from checkers.run import Run
from spec.actions import FinishRequests, KVReceived, Schedule, SetPauseState
from spec.books import valid_ends
from spec.environment import Environment
from spec.interface import (
    CachedRequestData,
    ConfigError,
    KVLoad,
    NewRequest,
    NewRequestData,
    RequestStatus,
    RetainedBlocks,
)
from spec.scheduler import ReferenceScheduler
from tests.spec.support import Driver, make_config, make_request
from tests.spec.transitions import seeds, walk

LATE = {"load_kv_async": True, "defer_block_free": True, "async_scheduling": True}
"""Two steps in flight and loads, so blocks are kept back."""


def remote(request_id: str = "A", prompt: int | tuple[int, ...] = 10, n: int = 8) -> NewRequest:
    """A request of whose prompt a store holds the KV of `n` tokens: two blocks."""
    return make_request(request_id, prompt, num_remote_tokens=n)


def loading(*others: NewRequest, new: NewRequest | None = None, **options: Any) -> Driver:
    """A driver in which KV of A is being loaded, beside others who have made a step."""
    driver = Driver(make_config(load_kv_async=True, **options), new or remote(), *others)
    driver.step()
    return driver


def holders(driver: Driver) -> list[str]:
    """Who waits and holds KV, in order."""
    return [request.request_id for request in driver.scheduler.kv_holding_waiting.items]


# ---- loads ---------------------------------------------------------------------------------------


def test_a_load_gets_its_blocks_and_nothing_to_compute() -> None:
    """A waits with two blocks, which are not zeroed, and B behind it is admitted."""
    driver = Driver(make_config(load_kv_async=True), remote(), make_request("B", 3))
    output = driver.schedule()
    assert ({"B": 3}, [3]) == (output.num_scheduled_tokens, output.new_block_ids_to_zero)
    assert {"A": KVLoad(0, 8, [1, 2])} == output.kv_loads
    assert (RequestStatus.WAITING_FOR_REMOTE_KVS, 8) == (
        driver["A"].status,
        driver["A"].num_computed_tokens,
    )
    assert ["A"] == holders(driver)


def test_a_load_is_told_once() -> None:
    """The worker hears of it in the step that admits it, and not again."""
    driver = loading()
    assert {} == driver.step().kv_loads
    assert {} == driver.step().num_scheduled_tokens


def test_a_whole_load_is_computed_from_there() -> None:
    """All 8 tokens are there, so 2 are left, and the worker is sent the whole table."""
    driver = loading()
    driver.do(KVReceived("A", 8))
    output = driver.schedule()
    assert {"A": 2} == output.num_scheduled_tokens
    assert {"A": NewRequestData((1065,) * 10, 8, [1, 2, 3])} == output.scheduled_new_reqs
    assert [3] == output.new_block_ids_to_zero


def test_the_last_token_is_computed_here() -> None:
    """All tokens of A have arrived; the last one is computed again, for a token to be sampled."""
    driver = loading(new=remote(prompt=8))
    driver.do(KVReceived("A", 8))
    assert {"A": 1} == driver.schedule().num_scheduled_tokens


def test_what_did_not_arrive_is_computed_here() -> None:
    """Of two blocks the first arrives; the other one is zeroed now, and computed."""
    driver = loading()
    driver.do(KVReceived("A", 4))
    output = driver.schedule()
    assert ({"A": 6}, [2, 3]) == (output.num_scheduled_tokens, output.new_block_ids_to_zero)
    assert [1, 2, 3] == driver["A"].block_ids


def test_a_failed_load_is_tried_again() -> None:
    """Nothing arrives: A gives its blocks up at its turn, and the store is asked once more."""
    driver = loading()
    driver.do(KVReceived("A", 0))
    assert (14, 0) == (driver.num_free_blocks, driver["A"].num_computed_tokens)
    output = driver.schedule()
    assert ({}, {"A": KVLoad(0, 8, [2, 1])}) == (output.num_scheduled_tokens, output.kv_loads)


def test_a_failed_load_may_end_in_a_hit() -> None:
    """B has published all that A asked for, so A computes the rest after a hit."""
    driver = Driver(
        make_config(load_kv_async=True, enable_prefix_caching=True),
        remote(prompt=(5,) * 10),
        make_request("B", (5,) * 9),
    )
    driver.step()
    driver.do(KVReceived("A", 0))
    output = driver.schedule()
    assert ({"B": 1, "A": 2}, {}) == (output.num_scheduled_tokens, output.kv_loads)
    assert driver["A"].block_ids[:2] == driver["B"].block_ids[:2]


def test_a_load_ends_at_its_turn() -> None:
    """What has arrived is published when A is looked at, not before."""
    driver = loading(enable_prefix_caching=True)
    driver.do(KVReceived("A", 8))
    assert [] == driver.scheduler.observe().cached_block_ids
    driver.schedule()
    assert [1, 2] == driver.scheduler.observe().cached_block_ids


@pytest.mark.parametrize(("num_remote_tokens", "start"), [(12, 4), (7, None), (4, None)])
def test_only_whole_blocks_beyond_a_hit_are_loaded(
    num_remote_tokens: int, start: int | None
) -> None:
    """One block is found here: three blocks of the store are better, and one is not."""
    config = make_config(load_kv_async=True, enable_prefix_caching=True)
    driver = Driver(config, make_request("B", (5,) * 4))
    driver.step()
    driver.add(remote(prompt=(5,) * 4 + (6,) * 9, n=num_remote_tokens))
    load = driver.schedule().kv_loads.get("A")
    assert start == (None if load is None else load.start)
    assert [1] == driver["A"].block_ids[:1]


def test_whoever_holds_kv_is_served_first() -> None:
    """C came before A's KV, and has to wait for the one seat."""
    driver = loading(make_request("B", 3, max_tokens=1), make_request("C", 3), max_num_seqs=1)
    driver.do(KVReceived("A", 8))
    assert {"A": 2} == driver.schedule().num_scheduled_tokens


def test_a_pause_of_admission_lets_loaded_kv_be_used() -> None:
    """A holds KV and goes on; B does not, and waits (vLLM: PAUSED_NEW)."""
    driver = loading()
    driver.add(make_request("B", 3))
    driver.do(SetPauseState("paused_new"))
    driver.do(KVReceived("A", 8))
    assert {"A": 2} == driver.schedule().num_scheduled_tokens


def test_a_failed_load_may_be_tried_again_in_a_pause() -> None:
    """A has lost its KV and stands among those who hold some, so a pause does not stop it."""
    driver = loading()
    driver.do(SetPauseState("paused_new"))
    driver.do(KVReceived("A", 0))
    assert ["A"] == list(driver.schedule().kv_loads)


def test_a_preempted_request_loads_again() -> None:
    """B takes A's blocks, and ends; A's next load makes it resume with its whole table."""
    driver = Driver(
        make_config(load_kv_async=True, num_blocks=5),
        make_request("B", 7, max_tokens=3),
        remote(prompt=8),
    )
    driver.step()
    driver.do(KVReceived("A", 8))
    driver.step()
    assert ["A"] == driver.step().preempted_req_ids
    assert ["A"] == list(driver.step().kv_loads)
    driver.do(KVReceived("A", 8))
    cached = driver.schedule().scheduled_cached_reqs["A"]
    assert CachedRequestData(True, driver["A"].block_ids, 8) == cached


def test_a_load_leaves_alone_what_prompts_lack() -> None:
    """B has one of its three blocks: with 4 in the pool a load of two would not leave the rest."""
    for num_blocks, begun in ((4, []), (5, ["A"])):
        config = make_config(
            load_kv_async=True, num_blocks=num_blocks, long_prefill_token_threshold=4
        )
        driver = Driver(config, make_request("B", 12), remote(prompt=8))
        assert begun == list(driver.schedule().kv_loads)


def test_a_load_leaves_alone_what_other_loads_lack() -> None:
    """A's prompt of 12 needs a block more than its load brings, and B's load leaves that one."""
    for num_blocks, begun in ((4, ["A"]), (5, ["A", "B"])):
        config = make_config(load_kv_async=True, num_blocks=num_blocks)
        driver = Driver(config, remote(prompt=12), remote("B", prompt=8))
        assert begun == list(driver.schedule().kv_loads)


def test_a_failed_load_reserves_nothing_for_itself() -> None:
    """A has the pool to itself, so its second load begins (vLLM 0.33.0 leaves it waiting)."""
    driver = loading(num_blocks=3)
    driver.do(KVReceived("A", 0))
    assert ["A"] == list(driver.schedule().kv_loads)


# ---- ends ----------------------------------------------------------------------------------------


def test_an_abort_keeps_the_blocks_of_a_load() -> None:
    """A is gone, but its blocks are free only when nobody writes them any more."""
    driver = loading()
    driver.abort("A")
    assert (14, {}) == (driver.num_free_blocks, driver.live)
    assert [RetainedBlocks([1, 2], 0, "A")] == driver.scheduler.observe().retained
    driver.do(KVReceived("A", 0))
    assert (16, []) == (driver.num_free_blocks, driver.scheduler.observe().retained)


def test_an_abort_after_a_load_frees_at_once() -> None:
    """The load has ended, so nobody writes A's blocks, though A was not looked at since."""
    driver = loading()
    driver.do(KVReceived("A", 8))
    driver.abort("A")
    assert 16 == driver.num_free_blocks


def test_the_end_of_what_nobody_loads_is_ignored() -> None:
    """An id that is unknown, or whose load has ended already, changes nothing."""
    driver = loading(make_request("B", 3))
    driver.do(KVReceived("A", 8))
    before = driver.scheduler.observe()
    for request_id in ("A", "B", "C"):
        driver.scheduler.finish_recving(request_id, 0)
    assert before == driver.scheduler.observe()


# ---- steps in flight -----------------------------------------------------------------------------


def in_flight(*requests: NewRequest, num_steps: int = 2, **options: Any) -> Driver:
    """A driver with steps in flight."""
    driver = Driver(make_config(**LATE, **options), *requests)
    for _ in range(num_steps):
        driver.schedule()
    return driver


def test_blocks_are_free_when_all_steps_have_returned() -> None:
    """Two steps may write B's two blocks, so the first one's return is not enough."""
    driver = in_flight(make_request("B", 6))
    driver.abort("B")
    num_free = [driver.num_free_blocks]
    for _ in range(2):
        driver.update()
        num_free.append(driver.num_free_blocks)
    assert [14, 14, 16] == num_free


def test_an_empty_step_is_not_waited_for() -> None:
    """The second step computes nothing: it writes nothing, and B's blocks are free after one."""
    driver = in_flight(make_request("B", 6, max_tokens=1))
    driver.abort("B")
    driver.update()
    assert 16 == driver.num_free_blocks


def test_blocks_that_no_step_writes_are_free_at_once() -> None:
    """Steps are in flight, but none of B."""
    driver = in_flight(make_request("A", 6), num_steps=1)
    driver.add(make_request("B", 6, num_remote_tokens=4))
    driver.schedule()
    driver.do(KVReceived("B", 4))
    driver.abort("B")
    assert 14 == driver.num_free_blocks


def test_a_stop_keeps_blocks_back_as_well() -> None:
    """B stops with the first of two steps, and the second one still writes its block."""
    driver = in_flight(make_request("B", 3, stop_token_ids=(9,)))
    driver.update(B=9)
    assert (15, {}) == (driver.num_free_blocks, driver.live)
    driver.update()
    assert 16 == driver.num_free_blocks


def test_nobody_is_preempted_whose_blocks_are_kept_back() -> None:
    """A needs a block, B's would not be free, so A rests; once B's step is back, B is preempted."""
    requests = (make_request("A", 4), make_request("B", 7))
    driver = in_flight(*requests, num_blocks=3, num_steps=1)
    output = driver.schedule()
    assert ({}, []) == (output.num_scheduled_tokens, output.preempted_req_ids)
    driver.update()
    output = driver.schedule()
    assert ({"A": 1}, ["B"]) == (output.num_scheduled_tokens, output.preempted_req_ids)


def test_a_load_waits_for_the_steps_in_flight() -> None:
    """Two steps are in flight when A is admitted; its load begins after both have returned."""
    driver = in_flight(make_request("B", 3), defer_async_loads=True)
    driver.add(remote())
    told = [driver.schedule().kv_loads]
    assert {"A": 2} == driver.scheduler.observe().deferred_loads
    for _ in range(2):
        driver.update()
        told.append(driver.schedule().kv_loads)
    assert [{}, {}, {"A": KVLoad(0, 8, [3, 4])}] == told


def test_a_deferred_load_that_is_aborted_never_begins() -> None:
    """A's blocks are free when the steps have returned which its load waited for."""
    driver = in_flight(make_request("B", 3), defer_async_loads=True)
    driver.add(remote())
    driver.schedule()
    driver.abort("A")
    assert [RetainedBlocks([3, 4], 3)] == driver.scheduler.observe().retained
    num_free = [driver.num_free_blocks]
    for _ in range(3):
        driver.update()
        num_free.append(driver.num_free_blocks)
    assert ([12, 12, 12, 14], {}) == (num_free, driver.schedule().kv_loads)


def test_an_abandoned_load_waits_for_steps_too() -> None:
    """A was preempted with a step in flight, loads again, and is aborted: both are waited for."""
    driver = Driver(make_config(**LATE), remote())
    driver.schedule()
    driver.update()
    driver.do(KVReceived("A", 8))
    driver.schedule()
    driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert ["A"] == list(driver.schedule().kv_loads)
    driver.abort("A")
    kept = [(each.num_steps, each.request_id) for each in driver.scheduler.observe().retained]
    assert [(1, None), (1, "A")] == kept
    driver.do(KVReceived("A", 0))
    assert 11 == driver.num_free_blocks
    driver.update()
    assert 16 == driver.num_free_blocks


@pytest.mark.parametrize("name", ["deferred-frees", "deep-remote-kv", "deep-remote-kv-drafts"])
@given(seed=seeds)
def test_no_step_writes_what_another_load_or_request_holds(name: str, seed: int) -> None:
    """On any walk nobody is given a block that a step in flight or a load may still write."""
    setting = load_settings()[name]
    run = Run(setting.scheduler, ReferenceScheduler(setting.scheduler), setting.environment)
    for seen in walk(run, seed):
        written = {b for load in seen.loads_after.values() for b in load.block_ids}
        assert not written.intersection(seen.after.free_block_ids)
        assert seen.worker is None or [] == seen.worker.writes


# ---- the environment -----------------------------------------------------------------------------


def test_a_load_ends_with_any_number_of_its_blocks() -> None:
    """With none, or with whole blocks behind the hit; of the dead nobody asks."""
    driver = loading(new=remote(prompt=13, n=12))
    assert [0, 4, 8, 12] == [action.num_valid_tokens for action in driver.transfers()]
    driver.do(FinishRequests(("A",)))
    assert [KVReceived("A", 0)] == driver.transfers()
    driver.do(driver.transfers()[0])
    driver.do(Schedule())
    assert [] == driver.transfers()


MENU = Environment(shapes=(remote(),), max_live_requests=2, max_in_flight=2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "num_remote_tokens, which load_kv_async=False never loads"),
        ({"load_kv_async": True}, "max_in_flight=2 with load_kv_async=True needs"),
    ],
)
def test_what_loads_need(config: dict[str, Any], message: str) -> None:
    """A store that nobody asks, and steps that might overwrite a load, are refused."""
    with pytest.raises(ConfigError, match=message):
        MENU.check_fits(make_config(**config))
    MENU.check_fits(make_config(**LATE))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"defer_async_loads": True}, "defer_async_loads=True needs load_kv_async=True and"),
        (
            {"load_kv_async": True, "wait_for_stale_output": False},
            "load_kv_async=True needs wait_for_stale_output=True",
        ),
    ],
)
def test_configurations_of_loads_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    """They are refused, and the message says what to switch."""
    with pytest.raises(ConfigError, match=message):
        make_config(**options)


def test_a_store_holds_no_more_than_the_prompt() -> None:
    """An environment that says otherwise is refused."""
    with pytest.raises(ConfigError, match="num_remote_tokens=11, its prompt has 10 tokens"):
        evolve(MENU, shapes=(remote(n=11),)).check_fits(make_config(**LATE))


@pytest.mark.parametrize(
    ("load", "ends"),
    [(KVLoad(4, 12, [1, 2]), [0, 4, 8, 12]), (KVLoad(0, 8, []), [0, 8])],
)
def test_a_load_ends_after_whole_blocks(load: KVLoad, ends: list[int]) -> None:
    """It brings nothing, or whole blocks; a counted pool names none, and then it brings all."""
    assert ends == valid_ends(load)
