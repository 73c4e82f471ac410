from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import checkers.explore as explore_module
import spec.snapshot as snapshot_module
from checkers.configs import change_setting, load_settings
from checkers.engines import load_engine
from checkers.explore import Budget, Explorer, make_root
from checkers.explore_engine import EngineExplorer
from checkers.liveness import (
    NAME,
    Lasso,
    QuietGraph,
    compute_patience,
    drain,
    is_quiet,
    recurring,
    run_lasso,
)
from checkers.run import Judge, Run
from checkers.search import make_rules
from spec.actions import AddRequest, FinishRequests, Schedule, SetPauseState, UpdateFromOutput
from spec.gates import num_blocks_of_whole
from spec.interface import EngineCoreOutput, SchedulerOutput
from spec.scheduler import ReferenceScheduler
from spec.snapshot import canonical_order, freeze, thaw
from tests.checkers.planted import TINY, RaisesInSchedule, engine_of

SETTINGS = load_settings()
SPEC, FAST = load_engine("spec"), load_engine("fast")
LIVE = ["tiny", "async", "stops", "gates", "thrash-reserved", "publish-corrected", "take-back"]
LOOPS = [("outgrown", 6, 2), ("dropped-token", 2, 4), ("streaming-deadlock", 6, 2)]
ENDLESS = [name for name, *_ in LOOPS]
NARROW = change_setting(
    SETTINGS["take-back"],
    (
        "policy=fcfs",
        "num_blocks=4",
        "max_num_batched_tokens=3",
        "long_prefill_token_threshold=2",
        "max_live_requests=2",
    ),
    (),
)
"""Two prompts that need the whole pool each, and are admitted by their first chunks."""


def explore(setting, **budget):
    """Explores the specification; no transition is judged twice."""
    return Explorer(setting, judge_all=False).run(Budget(**budget))


def explore_unjudged(setting):
    """Explores a specification, maybe a wrong one, and holds it against nothing but liveness."""
    explorer = Explorer(setting, judge_all=False)
    explorer.judge = Judge(setting.scheduler, [])
    explorer.run(Budget())
    return explorer


def lead(make, setting):
    """Leads an engine by nothing but liveness."""
    engine = engine_of(make)
    rules = attrs.evolve(make_rules(engine, setting), invariants=(), lockstep=False)
    return EngineExplorer(rules, engine, setting.environment).run(Budget())


class PreemptsTheFirst(ReferenceScheduler):
    """Whoever has run for longest makes room."""

    def _choose_victim(self):
        return self.running[0]


# ---- graphs --------------------------------------------------------------------------------------

NUM_STATES = 7
graphs = st.lists(
    st.tuples(st.integers(0, NUM_STATES - 1), st.integers(0, NUM_STATES - 1)), max_size=12
)


def graph_of(edges):
    """A graph whose actions are numbered by state."""
    graph, numbers = QuietGraph(), [0] * NUM_STATES
    for state, after in sorted(edges, key=lambda edge: edge[0]):
        graph.add(state, numbers[state], after)
        numbers[state] += 1
    return graph


def distances(edges):
    """The length of a shortest way from each state to each other, of at least one edge."""
    ways, level = {}, set(edges)
    for length in range(1, NUM_STATES + 1):
        for way in level:
            ways.setdefault(way, length)
        level = {(a, d) for a, b in level for c, d in edges if b == c}
    return ways


@given(graphs)
def test_the_first_state_on_a_cycle_is_found_with_a_shortest_one(edges):
    """A loop is found if and only if there is one: it starts at the first state that has one."""
    graph, ways = graph_of(edges), distances(edges)
    looping = [state for state in range(NUM_STATES) if (state, state) in ways]
    found = graph.find_loop()
    if not looping:
        assert found is None
        return
    state, numbers = found
    assert (looping[0], ways[looping[0], looping[0]]) == (state, len(numbers))
    for number in numbers:
        state = dict(graph.successors[state])[number]
    assert looping[0] == state


# ---- what is quiet -------------------------------------------------------------------------------

TOKEN, END, NOTHING = (
    EngineCoreOutput("a", [1]),
    EngineCoreOutput("a", [], "abort"),
    EngineCoreOutput("a", []),
)


@pytest.mark.parametrize(
    ("action", "results", "expected"),
    [
        (Schedule(), None, True),
        (UpdateFromOutput({}), {}, True),
        (UpdateFromOutput({}), {0: [NOTHING]}, True),
        (UpdateFromOutput({}), {0: [], 1: [NOTHING, TOKEN]}, False),
        (UpdateFromOutput({}), {0: [END]}, False),
        (FinishRequests(("a",)), None, False),
        (AddRequest(TINY.environment.shapes[0]), None, False),
    ],
)
def test_quiet_is_what_delivers_nothing(action, results, expected):
    """A token and an end break the quiet, and so does whatever comes from outside."""
    assert expected == is_quiet(action, results)


# ---- the specification ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIVE)
def test_the_specification_is_live(name):
    """In the settings that fit their pool nobody waits for ever."""
    assert (None, True) == ((found := explore(SETTINGS[name])).lasso, found.is_live)


@pytest.mark.parametrize(("name", "way_in", "loop"), LOOPS)
def test_the_specification_livelocks_where_it_is_said(name, way_in, loop):
    """What outgrows the pool, a dropped token, and two that wait for each other's blocks."""
    found = explore(SETTINGS[name])
    assert ("violated", False, []) == (found.verdict, found.is_live, found.breaches)
    assert (way_in, loop) == (len(found.lasso.way_in), len(found.lasso.loop))


@pytest.mark.parametrize(
    "changes", [("deliver_stale_output=true",), ("stop_at_max_tokens_in_flight=true",)]
)
def test_either_choice_saves_the_dropped_token(changes):
    """The token is lost for ever only if it is dropped and a step goes past the last one."""
    assert explore(change_setting(SETTINGS["dropped-token"], changes, ())).is_live


def test_every_request_fits_where_liveness_is_expected():
    """The settings that commands explore hold each of their requests to its end, or refuse it."""
    for setting in SETTINGS.values():
        config, shapes = setting.scheduler, setting.environment.shapes
        if "explore" in setting.used_by and not config.reject_too_large:
            assert max(num_blocks_of_whole(config, new) for new in shapes) <= config.num_blocks


def test_who_waits_for_others_is_not_stuck():
    """A pause that does not end, and a grammar that is never compiled, are no fault of an engine.

    Once both are over somebody gets a token again, so no other loop hides behind them.
    """
    waits = attrs.evolve(TINY.environment.shapes[0], structured_output=True)
    environment = attrs.evolve(
        TINY.environment, shapes=(waits, *TINY.environment.shapes[1:]), with_pauses=True
    )
    explorer = explore_unjudged(attrs.evolve(TINY, environment=environment))
    waiting = [state for state in explorer.places if thaw(explorer.root, state).is_waited_for]
    assert (True, True) == (explorer.found.is_live, len(waiting) > 0)
    places = {explorer.places[state] for state in waiting}
    assert set() == places & explorer.quiet.successors.keys()


def test_a_loop_behind_a_pause_is_not_accused():
    """Nothing is planned while all is paused, by any engine, and a file that says so shows none."""
    rules = make_rules(SPEC, TINY)
    way_in = (make_root(TINY).arrival(0), SetPauseState("paused_all"))
    idle = (Schedule(), UpdateFromOutput({}))
    assert [] == run_lasso(rules, SPEC, Lasso(way_in, idle)).breaches
    assert drain(rules, SPEC, way_in) is None
    assert drain(rules, engine_of(RestsTooLong), way_in[:1]) is not None


def test_an_incomplete_exploration_leaves_it_open():
    """Without all states a lasso may be found, and its absence says nothing."""
    assert explore(SETTINGS["tiny"], states=50).is_live is None
    found = explore(change_setting(SETTINGS["plain"], ("num_blocks=2",), ()), states=300)
    assert (False, "the state budget") == (found.is_complete, found.interrupted_by)
    assert (False, "violated") == (found.is_live, found.verdict)


def test_a_breach_is_not_mixed_up_with_a_lasso():
    """Where a rule breaks, the run that breaks it is all that is told."""
    found = Explorer(SETTINGS["thrash"]).run(Budget())
    assert (["prompts_are_not_preempted"], None) == ([b.name for b in found.breaches], found.lasso)


# ---- names ---------------------------------------------------------------------------------------


class RotatesInStead(ReferenceScheduler):
    """Once three requests wait, the first of them joins the tail, and nothing else happens."""

    def schedule(self):
        """Wrong: as if it were somebody else's turn in each step."""
        if len(self.waiting.items) < 3:
            return super().schedule()
        self.waiting.items.append(self.waiting.items.pop(0))
        return SchedulerOutput()


def test_requests_that_change_places_are_brought_back(monkeypatch):
    """A cycle of canonical states is repeated until each request is in its own place."""
    monkeypatch.setattr(explore_module, "ReferenceScheduler", RotatesInStead)
    monkeypatch.setattr(snapshot_module, "ReferenceScheduler", RotatesInStead)
    environment = attrs.evolve(
        TINY.environment, shapes=TINY.environment.shapes[:1], max_live_requests=3
    )
    explorer = explore_unjudged(attrs.evolve(TINY, environment=environment))
    lasso = explorer.found.lasso
    _, numbers = explorer.quiet.find_loop()
    assert (2, 6) == (len(numbers), len(lasso.loop))
    run = make_root(explorer.setting)
    for action in lasso.way_in:
        run.do(action)
    state, names = freeze(run), [request.request_id for request in canonical_order(run)]
    for action in lasso.loop[:2]:
        run.do(action)
    assert (state, [*names[1:], names[0]]) == (
        freeze(run),
        [r.request_id for r in canonical_order(run)],
    )
    for action in lasso.loop[2:]:
        run.do(action)
    assert (state, names) == (freeze(run), [r.request_id for r in canonical_order(run)])


def has_named_lasso(setting):
    """Whether some run under its own names comes back to a state without a token on the way."""
    rules = make_rules(SPEC, setting)
    known, level = set(), [()]
    while level:
        deeper = []
        for path in level:
            run = Run(rules.config, SPEC.build(rules.config), setting.environment)
            for action in path:
                run.step(action)
            state = repr((recurring(run.seen, run.model), run.model.live))
            if state in known:
                continue
            known.add(state)
            if goes_quietly_in_circles(setting, path):
                return True
            deeper += [(*path, action) for action in run.model.enabled_actions()]
        level = deeper
    return False


def goes_quietly_in_circles(setting, path):
    """Whether nothing but quiet actions follows on a path; one step is in flight at most."""
    run = Run(setting.scheduler, SPEC.build(setting.scheduler), setting.environment)
    for action in path:
        run.step(action)
    model, states = run.model, []
    while recurring(run.seen, model) not in states:
        states.append(recurring(run.seen, model))
        if model.may_schedule():
            run.step(Schedule())
        elif model.in_flight and not model.live_samplers():
            run.step(UpdateFromOutput({}))
        else:
            return False
    return True


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tiny", ("with_aborts=false",)),
        ("gates", ("max_live_requests=2", "with_aborts=false")),
        ("outgrown", ()),
        ("tiny", ("num_blocks=2", "with_aborts=false")),
    ],
)
def test_canonical_names_decide_as_own_names_do(name, changes):
    """With names that stay and two arrivals there is a lasso exactly if the explorer says so."""
    setting = change_setting(SETTINGS[name], (*changes, "max_arrivals=2"), ())
    named = has_named_lasso(setting)
    assert named == (explore(setting).lasso is not None)
    assert named == (explore(change_setting(setting, ("max_arrivals=0",), ())).lasso is not None)


def test_own_names_see_what_canonical_ones_see(monkeypatch):
    """The same of a specification that is wrong: two requests take each other's blocks."""
    monkeypatch.setattr(ReferenceScheduler, "_choose_victim", PreemptsTheFirst._choose_victim)
    setting = change_setting(NARROW, ("max_arrivals=2",), ())
    lasso = explore_unjudged(setting).found.lasso
    assert (5, 8) == (len(lasso.way_in), len(lasso.loop))
    assert has_named_lasso(setting)


# ---- engines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "gates"])
def test_an_engine_that_is_right_is_live(name):
    """After each path somebody gets a token."""
    setting = SETTINGS[name]
    found = EngineExplorer(make_rules(FAST, setting), FAST, setting.environment).run(Budget())
    assert (None, True) == (found.lasso, found.is_live)


@pytest.mark.parametrize("name", ENDLESS)
def test_an_engine_livelocks_where_the_specification_does(name):
    """What is wrong by design is found on an engine as well."""
    setting = SETTINGS[name]
    found = EngineExplorer(make_rules(FAST, setting), FAST, setting.environment).run(Budget())
    assert (False, False) == (found.is_live, found.is_complete)
    (breach,) = run_lasso(make_rules(FAST, setting), FAST, found.lasso).breaches
    assert NAME == breach.name


def test_requests_that_preempt_each_other_are_found():
    """Two requests that take each other's blocks, and come back with nothing done."""
    lasso = lead(PreemptsTheFirst, NARROW).lasso
    engine = engine_of(PreemptsTheFirst)
    rules = attrs.evolve(make_rules(engine, NARROW), invariants=(), lockstep=False)
    trial = run_lasso(rules, engine, lasso)
    ((sentence,),) = (breach.evidence for breach in trial.breaches)
    assert sentence == (
        "the loop comes back to where it began after 4 engine steps, 10 computed tokens and 2 "
        "preemptions, however unfinished are r1, r0"
    )


class RestsAWhile(ReferenceScheduler):
    """Plans nothing in its first step, and does not show how long that will last."""

    num_rests = 1

    def schedule(self):
        """Nothing, then what is right."""
        self.num_rests -= 1
        return SchedulerOutput() if self.num_rests >= 0 else super().schedule()


class RestsTooLong(RestsAWhile):
    """The same for longer than there are tokens to compute."""

    num_rests = 99


def test_patience_is_as_long_as_there_are_tokens():
    """An engine that looks as if it waited for ever is accused only after that many steps."""
    assert lead(RestsAWhile, TINY).lasso is None
    assert 2 == len(lead(RestsTooLong, TINY).lasso.loop)
    model = make_root(TINY)
    model.do(model.arrival(0))
    model.do(model.arrival(1))
    assert 4 == compute_patience(model)
    model.do(Schedule())
    assert 5 == compute_patience(model)


class CountsItsSteps(RestsTooLong):
    """Waits for ever, and shows something else after each step."""

    num_steps = 0

    def observe(self):
        """One free block fewer each time."""
        self.num_steps += 1
        return attrs.evolve(super().observe(), free_block_ids=[*range(self.num_steps)])


def test_what_never_comes_back_is_not_accused():
    """The limit of the method: without a state that is seen twice there is no loop."""
    assert lead(CountsItsSteps, TINY).lasso is None


class SamplesWithoutAStep(RestsTooLong):
    """Delivers a token that it has never planned, and counts none."""

    def update_from_output(self, output, result):
        """A token for the first who waits."""
        return {0: [EngineCoreOutput(self.waiting.items[0].request_id, [0])]}


@pytest.mark.parametrize(
    ("make", "is_accused"),
    [(RestsTooLong, True), (CountsItsSteps, False), (SamplesWithoutAStep, False)],
)
def test_a_loop_is_quiet_and_comes_back(make, is_accused):
    """An engine that delivers, or that shows another state after each turn, is not in a loop."""
    engine = engine_of(make)
    rules = attrs.evolve(make_rules(engine, TINY), invariants=(), lockstep=False)
    idle = Lasso((make_root(TINY).arrival(0),), (Schedule(), UpdateFromOutput({})))
    assert is_accused == (run_lasso(rules, engine, idle).breaches != [])


def test_an_engine_that_fails_is_left_to_other_rules():
    """A fault on the way round is no loop."""
    engine = engine_of(RaisesInSchedule)
    rules = attrs.evolve(make_rules(engine, TINY), invariants=(), lockstep=False)
    model = make_root(TINY)
    idle = Lasso((model.arrival(0), Schedule()), (UpdateFromOutput({}), Schedule()))
    assert [] != run_lasso(rules, engine, idle).breaches
    assert NAME not in {breach.name for breach in run_lasso(rules, engine, idle).breaches}


def test_a_drained_engine_has_no_loop():
    """If nobody is left, nobody waits."""
    assert drain(make_rules(FAST, TINY), FAST, ()) is None


def test_a_load_that_is_yet_to_begin_is_no_loop():
    """Steps that compute nothing bring a load nearer that waits for one in flight."""
    setting = SETTINGS["deferred-frees"]
    rules, model = make_rules(FAST, setting), make_root(setting)
    way_in = (
        model.make_arrival(1, 0, 0),
        Schedule(),
        model.make_arrival(0, 1, 1),
        FinishRequests(("r0",)),
        Schedule(),
        UpdateFromOutput({}),
    )
    assert drain(rules, FAST, way_in) is None


@pytest.mark.parametrize(
    "loop",
    [
        (Schedule(), UpdateFromOutput({})),
        (Schedule(), UpdateFromOutput({"r0": [0]})),
        (UpdateFromOutput({}), Schedule()),
    ],
)
def test_a_loop_that_is_none_is_not_accused(loop):
    """A loop that delivers, or cannot happen as it is written, breaks nothing."""
    rules = make_rules(SPEC, TINY)
    way_in = (make_root(TINY).arrival(0),)
    assert [] == run_lasso(rules, SPEC, Lasso(way_in, loop)).breaches
