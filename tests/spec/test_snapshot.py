"""States as values: nothing is lost but names, and what was done can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve, field, frozen
from hypothesis import given

from spec.actions import FinishRequests, Schedule, UpdateFromOutput
from spec.environment import Environment
from spec.interface import (
    NewRequest,
    RepetitionDetection,
    RequestStatus,
    SchedulerConfig,
    StreamingUpdate,
)
from spec.request import Request
from spec.snapshot import Snapshot, SpecModel, freeze, rewind, save, thaw
from tests.spec.support import (
    choices,
    configs,
    copy_model,
    explore,
    explore_with_names,
    make_environment,
    make_root,
    next_values,
    spell_out,
    tokens_in_flight,
    tokens_of_steps_in_flight,
    walk,
)


def make_shape(prompt: tuple[int, ...], max_tokens: int, **fields: Any) -> NewRequest:
    """An item of a menu."""
    return NewRequest(request_id="", prompt_token_ids=prompt, max_tokens=max_tokens, **fields)


LONG, SHORT = make_shape((1, 1, 1), 3), make_shape((1,), 3)


@frozen
class Case:
    """A feature in a configuration so small that all its states can be visited; blocks run out."""

    num_states: int
    """How many states there are, with any number of arrivals."""
    num_named_states: int | None
    """How many there are of at most two arrivals, if their names count.

    None where resets preempt without end: a state with names counts its preemptions.
    """
    config: dict[str, Any] = field(factory=dict)
    environment: dict[str, Any] = field(factory=dict)

    def make_root(self, max_arrivals: int = 0) -> SpecModel:
        """The state in which nothing has happened yet."""
        config = {
            "max_num_batched_tokens": 3,
            "max_num_seqs": 2,
            "max_model_len": 6,
            "block_size": 2,
            "num_blocks": 3,
            **self.config,
        }
        environment = {
            "shapes": (LONG, SHORT),
            "max_live_requests": 2,
            "max_in_flight": 2 if "async_scheduling" in config else 1,
            "max_arrivals": max_arrivals,
            **self.environment,
        }
        return make_root(SchedulerConfig(**config), Environment(**environment))


CACHING = {"enable_prefix_caching": True}
ASYNC = {"async_scheduling": True}
PRIORITY = {"policy": "priority"}
DRAFTS = {
    "num_speculative_tokens": 2,
    "num_lookahead_tokens": 1,
    "num_draft_slots": 1,
    "max_num_batched_tokens": 4,
}
OUTRANKED = {"shapes": (evolve(LONG, priority=1), SHORT)}
CHUNKS = {"max_num_batched_tokens": 2, "max_num_seqs": 3}
THREE_LIVE = {"max_live_requests": 3}
REPEATING = make_shape((1,), 4, repetition_detection=RepetitionDetection(2))
SESSIONS = {
    "shapes": (make_shape((1,), 2, resumable=True, stop_token_ids=(2,)),),
    "chunks": (StreamingUpdate(prompt_token_ids=(1,), max_tokens=1),),
    "max_session_tokens": 3,
    "with_aborts": False,
}
ONE_SHAPE = {"shapes": (LONG,), "sampled_token_ids": (1, 2)}

CASES = {
    "fcfs": Case(124, 273),
    "priority": Case(139, 340, PRIORITY, OUTRANKED),
    "caching": Case(262, 224, CACHING, ONE_SHAPE),
    "async": Case(253, 632, ASYNC),
    "async_depth_3": Case(633, 1469, ASYNC, {"max_in_flight": 3}),
    "async_priority": Case(274, 766, {**ASYNC, **PRIORITY}, OUTRANKED),
    "async_caching": Case(441, 478, {**ASYNC, **CACHING}, ONE_SHAPE),
    "stale_not_waited_for": Case(
        635, 1476, {**ASYNC, "wait_for_stale_output": False}, {"max_in_flight": 3}
    ),
    "stale_dropped": Case(266, 676, {**ASYNC, "deliver_stale_output": False}),
    "everything": Case(
        554,
        741,
        {**ASYNC, **CACHING, **PRIORITY, "publish_at_grant": True, "uncached_blocks_first": False},
        {"shapes": (LONG, make_shape((1, 1, 2), 2, priority=1)), "sampled_token_ids": (1,)},
    ),
    "salts": Case(
        331,
        242,
        CACHING,
        {"shapes": (LONG, evolve(LONG, cache_salt="a")), "sampled_token_ids": (1,)},
    ),
    "repetition": Case(95, 287, {}, {"shapes": (REPEATING,), "sampled_token_ids": (1, 2)}),
    "threshold": Case(161, 344, {"long_prefill_token_threshold": 1}),
    "watermark": Case(61, 203, {"num_watermark_blocks": 1}),
    "first_chunk_gate": Case(297, 345, {**CHUNKS, "scheduler_reserve_full_isl": False}, THREE_LIVE),
    "reserve_gate": Case(273, 310, {**CHUNKS, "reserve_admitted_prefills": True}, THREE_LIVE),
    "pauses": Case(837, 1368, ASYNC, {"with_aborts": False, "with_pauses": True}),
    "grammars": Case(189, 494, PRIORITY, {"shapes": (evolve(LONG, structured_output=True), SHORT)}),
    "loras": Case(
        331,
        242,
        {**CACHING, "max_loras": 1},
        {
            "shapes": (evolve(LONG, lora_id=1), evolve(LONG, lora_id=2)),
            "sampled_token_ids": (1,),
        },
    ),
    "partial_prefills": Case(
        80,
        206,
        {
            "max_num_batched_tokens": 4,
            "long_prefill_token_threshold": 2,
            "max_num_partial_prefills": 2,
            "max_long_partial_prefills": 1,
        },
        {"shapes": (make_shape((1, 1, 1, 1), 1), SHORT)},
    ),
    "refusals": Case(37, 102, {"reject_too_large": True, "num_blocks": 2}),
    "resets": Case(
        296,
        None,
        {**ASYNC, **CACHING},
        {"shapes": (LONG,), "with_aborts": False, "with_resets": True},
    ),
    "drafts": Case(132, 431, DRAFTS, {"draft_token_ids": (1, 2)}),
    "async_drafts": Case(173, 578, {**ASYNC, **DRAFTS, "num_draft_slots": 0}),
    "caching_drafts": Case(
        215, 388, {**CACHING, "num_speculative_tokens": 1}, {**ONE_SHAPE, "draft_token_ids": (1,)}
    ),
    "streaming": Case(1082, 210, {**ASYNC, **PRIORITY}, {**SESSIONS, "max_queued_chunks": 2}),
    "streaming_caching": Case(2078, 281, CACHING, {**SESSIONS, "sampled_token_ids": (1, 2)}),
    "whole_prompts": Case(109, 299, {"enable_chunked_prefill": False, "max_num_batched_tokens": 5}),
}

OF_3_ARRIVALS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "fcfs": (206, 1790, {}),
    "priority": (230, 2479, {}),
    "caching": (338, 1368, {}),
    "async": (123, 2134, {"shapes": (SHORT,)}),
    "streaming_caching": (321, 603, {"sampled_token_ids": (1,)}),
}
"""How many states there are by canonical value, and how many by name."""

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_thaw_undoes_freeze(case: Case) -> None:
    """A state that is built from its value has that value, for every reachable state."""
    root = case.make_root()
    values = explore(root)
    assert case.num_states == len(values)
    for value in values:
        assert value == freeze(thaw(root, value))


@every_case
def test_thaw_brings_back_the_books(case: Case) -> None:
    """After `thaw` steps in flight add up, void parts too, and tokens are what they were."""
    root = case.make_root()
    for value in explore(root):
        model = thaw(root, value)
        assert tokens_in_flight(model) == tokens_of_steps_in_flight(model)
        known = {name: request.token_ids for name, request in model.scheduler.requests.items()}
        assert known == {name: live.token_ids for name, live in model.live.items()}


@every_case
def test_rewind_undoes_every_action(case: Case) -> None:
    """Whatever one action does to any reachable state, `rewind` undoes it."""
    root = case.make_root()
    for value in explore(root):
        model = thaw(root, value)
        before, saved = spell_out(model), save(model)
        for action in model.enabled_actions():
            model.do(action)
            rewind(model, saved)
            assert before == spell_out(model)


@given(configs(), choices, choices)
def test_rewind_undoes_a_walk(config: SchedulerConfig, first: list[int], then: list[int]) -> None:
    """From any state of any run, `rewind` undoes any number of actions, as often as it is asked."""
    model = make_root(config, make_environment(config))
    for _ in walk(model, first):
        pass
    model.scheduler.finished_req_ids.clear()
    before, saved = spell_out(model), save(model)
    for length in (len(then), len(then) // 2):
        for _ in walk(model, then[:length]):
            pass
        rewind(model, saved)
        assert before == spell_out(model)


def test_rewind_brings_back_finished_ids() -> None:
    """A finished id that the worker has not been told of is there again after `rewind`."""
    model = CASES["fcfs"].make_root()
    model.do(model.arrival(0))
    model.do(FinishRequests(("r0",)))
    before, saved = model.scheduler.observe(), save(model)
    assert ["r0"] == before.finished_req_ids
    model.do(model.arrival(0))
    model.do(Schedule())
    rewind(model, saved)
    assert before == model.scheduler.observe()


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.num_named_states])
def test_canonical_naming_loses_nothing(case: Case) -> None:
    """States of one value go on alike: each, with its own names, has the same next values."""
    assert case.num_named_states == check_naming(case.make_root(max_arrivals=2))


@pytest.mark.parametrize("name", OF_3_ARRIVALS)
def test_canonical_naming_loses_nothing_when_requests_come_and_go(name: str) -> None:
    """The same for three arrivals, of which one comes when another has gone, even out of a step."""
    num_values, num_named, environment = OF_3_ARRIVALS[name]
    root = evolve_case(name, environment).make_root(max_arrivals=3)
    assert num_values == len(explore(root))
    assert num_named == check_naming(root)


def check_naming(root: SpecModel) -> int:
    """Compares both explorations; returns how many states have names of their own."""
    expected = explore(root)
    images: dict[Snapshot, frozenset[Snapshot]] = {}
    num_named = 0
    for value, successors in explore_with_names(root):
        num_named += 1
        assert successors == images.setdefault(value, successors)
    assert expected == images
    return num_named


@given(configs(), choices)
def test_a_thawed_state_goes_on_alike(config: SchedulerConfig, walk_choices: list[int]) -> None:
    """In any configuration, a state built from a value goes on like the state itself."""
    model = make_root(config, make_environment(config))
    for _ in walk(model, walk_choices):
        pass
    assert next_values(model) == next_values(thaw(model, freeze(model)))


def test_names_do_not_count() -> None:
    """Two states that differ in names and history only have one value."""
    root = CASES["caching"].make_root()
    fresh = copy_model(root)
    later = copy_model(root)
    # Another request came first, and took and gave back blocks.
    later.do(later.arrival(0))
    later.do(Schedule())
    later.do(UpdateFromOutput({"r0": [2]}))
    later.do(FinishRequests(("r0",)))
    later.pool.block_hash.clear()
    later.pool.cached_blocks.clear()
    for model in (fresh, later):
        model.do(model.arrival(0))
        model.do(Schedule())
    assert (["r0"], ["r1"]) == (list(fresh.live), list(later.live))
    assert fresh.scheduler.running[0].block_ids != later.scheduler.running[0].block_ids
    assert freeze(fresh) == freeze(later)


@pytest.mark.parametrize(
    "change",
    [
        lambda request: setattr(request, "status", RequestStatus.PREEMPTED),
        lambda request: setattr(request, "num_output_tokens", 1),
        lambda request: setattr(request, "num_computed_tokens", 2),
        lambda request: setattr(request, "num_in_flight_tokens", 2),
        lambda request: setattr(request, "num_stale_output_tokens", 1),
        lambda request: setattr(request, "num_output_placeholders", 2),
        lambda request: setattr(request, "num_blocks", 1),
        lambda request: setattr(request, "token_ids", (1, 1, 2)),
    ],
)
def test_whatever_decides_counts(change: Callable[[Request], None]) -> None:
    """States that differ in anything a scheduler may decide on have different values."""
    model = CASES["async_caching"].make_root()
    model.do(model.arrival(0))
    model.do(Schedule())
    value = freeze(model)
    change(model.scheduler.running[0])
    assert value != freeze(model)


def make_model_with_free_copies() -> SpecModel:
    """One content is published in two free blocks."""
    config = SchedulerConfig(
        max_num_batched_tokens=8,
        max_num_seqs=2,
        max_model_len=6,
        block_size=2,
        num_blocks=4,
        enable_prefix_caching=True,
        same_step_prefix_hits=False,
    )
    model = make_root(config, make_environment(config, shapes=(LONG,)))
    model.do(model.arrival(0))
    model.do(model.arrival(0))
    model.do(Schedule())
    model.do(FinishRequests(("r0", "r1")))
    assert [[1, 3]] == list(model.pool.cached_blocks.values())
    return model


def test_eviction_order_counts() -> None:
    """The order in which free cached blocks would be handed out decides who is found later."""
    model = make_model_with_free_copies()
    value = freeze(model)
    model.pool.free_block_queue.reverse()
    assert value != freeze(model)


def test_publication_order_counts() -> None:
    """The order in which copies of one content were published decides which of them is hit."""
    model = make_model_with_free_copies()
    value = freeze(model)
    (copies,) = model.pool.cached_blocks.values()
    copies.reverse()
    assert value != freeze(model)


@pytest.mark.parametrize("cache_salt", [None, "", "a"])
def test_salts_survive(cache_salt: str | None) -> None:
    """What is published under a salt, the empty one included, is found under it after `thaw`."""
    shape = evolve(LONG, cache_salt=cache_salt)
    root = evolve_case("salts", {"shapes": (shape,)}).make_root()
    root.do(root.arrival(0))
    root.do(Schedule())
    request = root.scheduler.running[0]
    assert 1 == root.pool.find_longest_cache_hit(request).num_blocks
    thawed = thaw(root, freeze(root))
    assert 1 == thawed.pool.find_longest_cache_hit(request).num_blocks


def evolve_case(name: str, environment: dict[str, Any]) -> Case:
    """A case in another environment."""
    case = CASES[name]
    return evolve(case, environment={**case.environment, **environment})
