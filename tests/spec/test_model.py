"""The environment: what may happen next, and the books that the model keeps."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from spec.actions import (
    Action,
    AddRequest,
    FinishRequests,
    GrammarReady,
    Schedule,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.books import deliver
from spec.dialects import DIALECTS
from spec.environment import Environment
from spec.interface import (
    ConfigError,
    EngineCoreOutput,
    RequestStatus,
    SchedulerConfig,
    StreamingUpdate,
)
from spec.model import Model
from spec.scheduler import ReferenceScheduler
from spec.transition import LiveRequest, Outcome, Transition
from tests.spec.support import (
    SHAPES,
    Driver,
    choices,
    configs,
    make_config,
    make_driver_for_walks,
    make_environment,
    make_request,
    tokens_in_flight,
    tokens_of_steps_in_flight,
    walk,
)


def make_model(config: SchedulerConfig, **bounds: Any) -> Model:
    """The reference scheduler in the small environment of the walks."""
    return Model(make_environment(config, **bounds), ReferenceScheduler(config))


# ---- what may happen next ------------------------------------------------------------------------


@given(
    configs(),
    choices,
    st.booleans(),
    st.integers(0, 5),
    st.sampled_from([(1,), (1, 2)]),
)
def test_enabled_actions(
    config: SchedulerConfig,
    walk_choices: list[int],
    with_aborts: bool,
    max_arrivals: int,
    tokens: tuple[int, ...],
) -> None:
    """What is enabled follows from who is alive and what is in flight, in any run."""
    model = make_model(
        config, with_aborts=with_aborts, max_arrivals=max_arrivals, sampled_token_ids=tokens
    )
    bounds = model.bounds
    for _ in walk(model, walk_choices):
        actions = model.enabled_actions()
        kinds = [type(action) for action in actions]
        may_arrive = len(model.live) < bounds.max_live_requests and (
            max_arrivals == 0 or model.num_arrivals < max_arrivals
        )
        assert may_arrive * len(SHAPES) == kinds.count(AddRequest)
        aborts = [FinishRequests((name,)) for name in model.live] if with_aborts else []
        assert aborts == [action for action in actions if isinstance(action, FinishRequests)]
        may_schedule = len(model.live) > 0 and len(model.in_flight) < bounds.max_in_flight
        assert may_schedule == kinds.count(Schedule)
        assert count_updates(model, len(tokens)) == kinds.count(UpdateFromOutput)


def count_updates(model: Model, num_tokens: int) -> int:
    """In how many ways the oldest step may return."""
    if not model.in_flight:
        return 0
    oldest = model.in_flight[0]
    num_updates = 1
    for name in model.live_samplers():
        if name in oldest.dropped:
            continue  # Nobody looks at it, so any token will do.
        num_drafts = len(oldest.drafts_of(name))
        may_be_thrown_away = num_drafts > 0 and name in oldest.voided
        num_guesses = 0 if name in oldest.padded else num_drafts
        num_updates *= (num_guesses + 1) * num_tokens + may_be_thrown_away
    has_live = any(name in model.live for name in oldest.output.num_scheduled_tokens)
    return num_updates * 2 if model.bounds.draft_token_ids and has_live else num_updates


def test_updates_are_all_choices_of_tokens() -> None:
    """Each live sampler of the oldest step may sample each token of the menu."""
    model = make_model(make_config(), sampled_token_ids=(1, 2))
    model.do(model.arrival(0))
    model.do(model.arrival(2))
    model.do(Schedule())
    expected = [{"r0": [a], "r1": [b]} for a in (1, 2) for b in (1, 2)]
    assert expected == [action.sampled_token_ids for action in model.updates()]


def test_the_dead_do_not_sample() -> None:
    """A request that was aborted while its step was in flight has no token to choose."""
    driver = Driver(make_config(), make_request("A", 1), make_request("B", 1))
    driver.schedule()
    assert ["A", "B"] == driver.live_samplers()
    driver.abort("A")
    assert ["B"] == driver.live_samplers()


@given(configs(), choices)
def test_arrivals_have_new_names_and_later_times(
    config: SchedulerConfig, walk_choices: list[int]
) -> None:
    """No id is used twice, and arrival times grow."""
    model = make_model(config)
    arrived: dict[str, float] = {}
    for _ in walk(model, walk_choices):
        for name, live in model.live.items():
            if name not in arrived:
                assert all(live.new.arrival_time > time for time in arrived.values())
            assert live.new.arrival_time == arrived.setdefault(name, live.new.arrival_time)
    assert model.num_arrivals >= len(arrived)


def test_an_arrival_knows_its_shape() -> None:
    """The place in the menu goes along but does not make two arrivals differ."""
    model = make_model(make_config())
    action = model.arrival(1)
    assert 1 == action.shape
    assert AddRequest(action.request) == action
    model.do(action)
    assert LiveRequest(action.request, SHAPES[1].prompt_token_ids, 1) == model.live["r0"]


def test_a_model_without_environment_has_no_menu() -> None:
    """A model that replays actions cannot say what may happen next."""
    with pytest.raises(AssertionError, match="has no menu"):
        Driver(make_config()).enabled_actions()


def test_not_everybody_has_heard_of_an_end() -> None:
    """Of who was aborted a grammar or a chunk may still be told, which changes nothing."""
    chunk = StreamingUpdate(prompt_token_ids=(1,), max_tokens=1)
    driver = Driver(
        make_config(),
        make_request("A", 3, structured_output=True),
        make_request("B", 3, resumable=True),
        make_request("C", 3, max_tokens=1),
    )
    driver.environment = Environment(
        shapes=tuple(live.new for live in driver.live.values()),
        max_live_requests=3,
        chunks=(chunk,),
        max_session_tokens=16,
    )
    driver.step()
    driver.abort("A")
    driver.abort("B")
    assert ["C", "A", "B"] == list(driver.ended)
    late = driver.late_controls()
    assert [GrammarReady("A"), driver.chunk("B", chunk), StreamingChunk("B", None)] == late
    before = driver.scheduler.observe()
    for action in [*late, FinishRequests(("B", "C"))]:
        driver.do(action)
        assert (before, {}) == (driver.scheduler.observe(), driver.live)


def test_a_name_may_be_used_again() -> None:
    """Who arrives under the name of one that has ended is alive."""
    driver = Driver(make_config(), make_request("A", 3))
    driver.abort("A")
    assert ["A"] == list(driver.ended)
    driver.add(make_request("A", 3))
    assert ([], ["A"]) == (list(driver.ended), list(driver.live))


# ---- the books -----------------------------------------------------------------------------------


@given(configs(), choices)
def test_books_agree_with_the_scheduler(config: SchedulerConfig, walk_choices: list[int]) -> None:
    """Who is alive with which tokens, as the clients know it, is what the scheduler holds."""
    driver = make_driver_for_walks(config)
    for _ in walk(driver, walk_choices):
        known = {name: request.token_ids for name, request in driver.scheduler.requests.items()}
        assert known == {name: live.token_ids for name, live in driver.live.items()}
        for name, live in driver.live.items():
            assert driver[name].num_output_tokens == live.num_output_tokens


@given(configs(), choices)
def test_steps_in_flight_add_up(config: SchedulerConfig, walk_choices: list[int]) -> None:
    """Tokens in flight are those of the steps in flight; stale ones, those of voided parts."""
    driver = make_driver_for_walks(config)
    for _ in walk(driver, walk_choices):
        assert tokens_in_flight(driver) == tokens_of_steps_in_flight(driver)


@given(configs(), choices)
def test_a_placeholder_is_a_token_being_sampled(
    config: SchedulerConfig, walk_choices: list[int]
) -> None:
    """Async: a request has as many placeholders as valid steps in flight sample for it.

    Drafts that they verify count as samples.

    Not where stale output is not waited for: there it may arrive between the chunks of a resumed
    request, and which of them samples is no longer one question.
    """
    config = evolve(config, async_scheduling=True, wait_for_stale_output=True)
    driver = make_driver_for_walks(config)
    for _ in walk(driver, walk_choices):
        for name, request in driver.scheduler.requests.items():
            num_samples = sum(
                1 + len(step.drafts_of(name))
                for step in driver.in_flight
                if name in step.samplers and name not in step.voided
            )
            assert num_samples == request.num_output_placeholders


@given(configs(), choices)
def test_runs_repeat(config: SchedulerConfig, walk_choices: list[int]) -> None:
    """The same actions lead to the same observations: nothing is drawn, and no clock is read."""
    models = [make_model(config), make_model(config)]
    for _ in zip(*[walk(model, walk_choices) for model in models], strict=True):
        first, second = [model.scheduler.observe() for model in models]
        assert first == second


def test_steps_return_in_order() -> None:
    """The oldest step in flight returns first, and the outcome says which one it was."""
    driver = Driver(make_config(async_scheduling=True), make_request("A", 20))
    first, second = driver.schedule(), driver.schedule()
    assert [first, second] == [step.output for step in driver.in_flight]
    outcome = driver.do(UpdateFromOutput({}))
    assert outcome.returned is not None
    assert first is outcome.returned.output
    assert {} == outcome.results
    assert [second] == [step.output for step in driver.in_flight]


def test_who_samples() -> None:
    """A step samples for a request if, after it, all known tokens are computed."""
    config = make_config(async_scheduling=True, max_num_batched_tokens=9)
    driver = Driver(config, make_request("A", 6), make_request("B", 5))
    for _ in range(3):
        driver.schedule()
    assert [("A",), ("A", "B"), ("A", "B")] == [step.samplers for step in driver.in_flight]


def test_preemption_voids_steps_in_flight() -> None:
    """The parts of a preempted request in all steps in flight are void, and nobody else's."""
    config = make_config(num_blocks=4, async_scheduling=True)
    driver = Driver(config, make_request("A", 8), make_request("B", 6))
    driver.schedule()
    assert ["B"] == driver.schedule().preempted_req_ids
    assert [("B",), ()] == [step.voided for step in driver.in_flight]


def test_a_client_may_end_a_request_as_stopped() -> None:
    """A stop string ends a request from outside, with the status that says so."""
    driver = Driver(make_config(), make_request("A", 1))
    request = driver["A"]
    driver.do(FinishRequests(("A",), RequestStatus.FINISHED_STOPPED))
    assert ({}, RequestStatus.FINISHED_STOPPED) == (driver.live, request.status)


def test_deliver() -> None:
    """A client gets tokens until its request ends; output for the dead changes nothing."""
    new = make_request("A", (1, 2))
    live = {"A": LiveRequest(new, (1, 2)), "B": LiveRequest(new, (1, 2))}
    results = {
        0: [EngineCoreOutput("A", [3]), EngineCoreOutput("B", [4], "length")],
        1: [EngineCoreOutput("dead", [5])],
    }
    assert {"A": LiveRequest(new, (1, 2, 3))} == deliver(live, results)
    assert ["A", "B"] == list(live)


# ---- what was seen of an action ------------------------------------------------------------------


def make_transition(driver: Driver, action: Action) -> Transition:
    """Lets an action happen, and returns what was seen of it."""
    before, live, in_flight = driver.scheduler.observe(), driver.live, driver.in_flight
    outcome = driver.do(action)
    after = driver.scheduler.observe()
    return Transition(
        action, before, after, outcome, live, driver.live, in_flight, driver.in_flight
    )


@given(configs(), choices)
def test_transition_shows_who_moved(config: SchedulerConfig, walk_choices: list[int]) -> None:
    """Who was admitted or preempted can be seen from outside, also if no engine says so."""
    driver = make_driver_for_walks(config)
    for _ in walk(driver, walk_choices):
        if not driver.may_schedule():
            continue
        seen = make_transition(driver, Schedule())
        output = seen.outcome.output
        assert output is not None
        reported = output.preempted_req_ids
        assert reported == seen.preempted
        assert list(seen.starts) == [*output.scheduled_new_reqs, *output.scheduled_cached_reqs]
        assert [name for name in driver.running if name in seen.before.waiting] == seen.admitted
        assert driver.scheduler.observe().ref_cnt == seen.num_holders

        silent = evolve(seen, outcome=Outcome(output=evolve(output, preempted_req_ids=[])))
        assert sorted(reported) == sorted(silent.preempted)
        if config.policy == "fcfs":
            assert reported == silent.preempted


def test_transition_of_another_action_shows_nobody() -> None:
    """Only a step admits or preempts; when a request is ended its blocks have no holder."""
    driver = Driver(make_config(), make_request("A", 1))
    driver.schedule()
    seen = make_transition(driver, FinishRequests(("A",)))
    assert ({}, [], [], {}) == (seen.starts, seen.preempted, seen.admitted, seen.num_holders)
    assert (["A"], []) == (list(seen.live), list(seen.live_after))


# ---- bounds that make no sense -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shapes": ()}, "shapes is empty, so nothing ever arrives; name at least one"),
        (
            {"sampled_token_ids": ()},
            "sampled_token_ids is empty, so no step can return; name at least one token",
        ),
        (
            {"max_live_requests": 0},
            "max_live_requests=0 is below 1; somebody must be able to arrive, so raise it",
        ),
        (
            {"max_in_flight": 0},
            "max_in_flight=0 is below 1; a step must be able to run, so raise it",
        ),
        ({"max_arrivals": -1}, "max_arrivals=-1 is below 0; 0 is no limit"),
        (
            {"shapes": (make_request("", ()),)},
            "a shape has an empty prompt; give it at least one token",
        ),
        (
            {"shapes": (make_request("", (1,), max_tokens=0),)},
            "a shape has max_tokens=0, below 1; raise it",
        ),
    ],
)
def test_senseless_environment(changes: dict[str, Any], message: str) -> None:
    """Bounds under which nothing can happen give one sentence that names the way out."""
    with pytest.raises(ConfigError) as caught:
        Environment(**{"shapes": SHAPES, "max_live_requests": 1, **changes})
    assert message == str(caught.value)


def test_a_prompt_must_leave_room_for_a_token() -> None:
    """A prompt of `max_model_len` tokens could never produce an output; one token less may."""
    environment = make_environment(make_config(), shapes=(make_request("", (1, 1, 1, 1, 1)),))
    with pytest.raises(ConfigError, match="5 prompt tokens, max_model_len=5 leaves no room"):
        environment.check_fits(make_config(max_model_len=5))
    environment.check_fits(make_config(max_model_len=6))


def test_several_steps_in_flight_need_async_scheduling() -> None:
    """Two steps in flight of a synchronous scheduler would compute a token nobody knows."""
    environment = make_environment(make_config(), max_in_flight=2)
    with pytest.raises(ConfigError, match="max_in_flight=2 needs async_scheduling=True; switch it"):
        environment.check_fits(make_config())
    environment.check_fits(make_config(async_scheduling=True))


@pytest.mark.parametrize("name", DIALECTS)
@given(choices)
def test_every_dialect_runs(name: str, walk_choices: list[int]) -> None:
    """Any walk runs under every dialect, three steps deep, with every block accounted for."""
    config = make_config(
        async_scheduling=True,
        num_blocks=4,
        enable_prefix_caching=True,
        policy="priority",
        **DIALECTS[name],
    )
    driver = make_driver_for_walks(config)
    for _ in walk(driver, walk_choices):
        held = sum(driver.scheduler.observe().ref_cnt.values()) > 0
        assert held == any(request.num_blocks > 0 for request in driver.scheduler.running)
