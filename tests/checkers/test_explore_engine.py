from __future__ import annotations

import attrs
import pytest

from checkers.engines import load_engine
from checkers.explore import Budget, Explorer
from checkers.explore_engine import EngineExplorer, find_shortest
from checkers.search import make_rules
from checkers.shrink import DEFAULT_EFFORT, NO_EFFORT, Effort
from spec.actions import AddRequest, FinishRequests, Schedule
from spec.scheduler import ReferenceScheduler
from tests.checkers.planted import (
    TINY,
    ExceedsTheBudget,
    FailsInTheSecondStep,
    HangsInSchedule,
    LosesABlock,
    RaisesInSchedule,
    RaisesWhenBuilt,
    ServesTheNewestFirst,
    all_runs,
    attempt,
    engine_of,
)

PLANTED = [
    (ServesTheNewestFirst, 2),
    (ExceedsTheBudget, 3),
    (LosesABlock, 3),
    (RaisesInSchedule, 4),
]
"""Engines, and how many actions it takes to show that they are wrong."""


def explorer_of(engine, setting=TINY):
    """An engine beside the specification in a setting."""
    return EngineExplorer(make_rules(engine, setting), engine, setting.environment)


@pytest.mark.parametrize("engine", [load_engine("fast"), engine_of(ReferenceScheduler)])
def test_an_engine_takes_every_action_of_every_state(engine):
    """An exploration of an engine sees the states and transitions that the specification has."""
    found, expected = explorer_of(engine).run(Budget()), Explorer(TINY).run(Budget())
    assert ((), True) == (found.failing, found.is_complete)
    assert (expected.num_unique, expected.depth) == (found.num_unique, found.depth)
    assert expected.num_generated - 1 == found.num_generated
    assert (expected.num_by_action, expected.witnesses) == (found.num_by_action, found.witnesses)


@pytest.mark.parametrize(("make", "num_actions"), PLANTED)
def test_a_fault_is_found_in_a_shortest_run(make, num_actions):
    """The first failing path is a shortest one: trying all shorter runs shows none that fails."""
    found = explorer_of(engine_of(make)).run(Budget())
    assert (num_actions, False) == (len(found.failing), found.is_complete)
    assert [] != attempt(make, list(found.failing)).breaches
    assert [] == [run for run in all_runs(TINY, num_actions - 1) if attempt(make, run).breaches]


def test_an_engine_that_cannot_be_built_fails_at_once():
    """What fails before anything has happened is found with the first action."""
    assert 1 == len(explorer_of(engine_of(RaisesWhenBuilt)).run(Budget()).failing)


def test_a_hang_ends_an_exploration():
    """An engine that does not return is found out, not waited for."""
    engine = engine_of(HangsInSchedule, time_limit_s=0.2)
    assert Schedule() == explorer_of(engine).run(Budget()).failing[-1]


@pytest.mark.parametrize(
    ("budget", "interrupted_by"),
    [(Budget(states=20), "the state budget"), (Budget(seconds=1e-6), "the time budget")],
)
def test_a_budget_ends_an_exploration_of_an_engine(budget, interrupted_by):
    """When a budget is used up the result is partial and says so."""
    found = explorer_of(load_engine("fast")).run(budget)
    assert (interrupted_by, False, ()) == (found.interrupted_by, found.is_complete, found.failing)
    assert 1 < found.num_unique < 124


def test_ctrl_c_ends_an_exploration_of_an_engine():
    """Ctrl-C keeps what was seen so far."""

    def press(found, width):
        if found.depth == 3:
            raise KeyboardInterrupt

    found = explorer_of(load_engine("fast")).run(Budget(), press)
    assert ("Ctrl-C", False, 3) == (found.interrupted_by, found.is_complete, found.depth)


# ---- the shortest run ----------------------------------------------------------------------------


def long_run(make, num_arrivals=2):
    """A run that fails late: the engine is right until the detour ends."""
    detour = []
    for number in range(num_arrivals):
        new = attrs.evolve(TINY.environment.shapes[0], request_id=f"x{number}")
        detour += [AddRequest(new), FinishRequests((new.request_id,))]
    return attempt(make, [*detour, *explorer_of(engine_of(make)).run(Budget()).failing])


@pytest.mark.parametrize(("make", "num_actions"), PLANTED)
def test_the_shortest_run_is_found(make, num_actions):
    """From any failing run to a shortest one that breaks the same rule."""
    trial = long_run(make)
    assert num_actions + 4 == len(trial.steps)
    engine = engine_of(make)
    shortest, is_shortest = find_shortest(trial, make_rules(engine, TINY), engine, DEFAULT_EFFORT)
    assert (num_actions, True) == (len(shortest.steps), is_shortest)
    assert trial.breaches[0].name in {breach.name for breach in shortest.breaches}


def test_a_shortest_run_stays():
    """A run that cannot be shorter is handed back as it is."""
    trial = long_run(LosesABlock, num_arrivals=0)
    engine = engine_of(LosesABlock)
    assert (trial, True) == find_shortest(trial, make_rules(engine, TINY), engine, DEFAULT_EFFORT)


class CountsInFloats(ReferenceScheduler):
    """Shows the right number in the wrong type once a request runs."""

    def observe(self):
        """Wrong, and equal to what is right."""
        seen = super().observe()
        return (
            attrs.evolve(seen, num_free_blocks=float(seen.num_free_blocks))
            if self.running
            else seen
        )


def test_the_shortest_run_to_a_wrong_type_is_found():
    """Explorations trust an engine, for speed, unless a wrong type is what they look for."""
    new, later = (attrs.evolve(TINY.environment.shapes[0], request_id=name) for name in "xy")
    detour = [AddRequest(new), FinishRequests(("x",))]
    trial = attempt(CountsInFloats, [*detour, AddRequest(later), Schedule()])
    engine = engine_of(CountsInFloats)
    shortest, is_shortest = find_shortest(trial, make_rules(engine, TINY), engine, DEFAULT_EFFORT)
    assert (4, 2, True) == (len(trial.steps), len(shortest.steps), is_shortest)
    assert ["engine_answers"] == [breach.name for breach in shortest.breaches]


@pytest.mark.parametrize("effort", [NO_EFFORT, Effort(seconds=0), Effort(num_actions=9)])
def test_without_an_effort_the_run_stays(effort):
    """If it ends before all shorter runs were tried, nobody calls a run the shortest."""
    trial = long_run(LosesABlock)
    engine = engine_of(LosesABlock)
    rules = make_rules(engine, TINY)
    assert (trial, False) == find_shortest(trial, rules, engine, effort)


def test_only_one_path_leads_to_each_state():
    """The limit of the method: a fault that depends on the way to a state may stay unseen.

    The second step of a run with one request is the shortest failing run here, but two requests
    that end in their first step would never be tried.
    """
    setting = attrs.evolve(
        TINY, environment=attrs.evolve(TINY.environment, with_aborts=False, max_live_requests=1)
    )
    one_token = attrs.evolve(setting.environment.shapes[0], max_tokens=1)
    setting = attrs.evolve(
        setting, environment=attrs.evolve(setting.environment, shapes=(one_token,))
    )
    assert explorer_of(engine_of(FailsInTheSecondStep), setting).run(Budget()).is_complete
