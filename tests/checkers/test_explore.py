from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.configs import load_settings
from checkers.engines import load_engine
from checkers.explore import Budget, Explorer, make_root
from checkers.search import make_rules
from checkers.trial import run_trial
from spec.snapshot import freeze
from tests.checkers.planted import all_runs

SETTINGS = load_settings()
SMALL = ["tiny", "async", "stops", "gates", "thrash-reserved", "publish-corrected"]
SPEC = load_engine("spec")


def explore(setting, **budget):
    """Explores under a budget."""
    return Explorer(setting).run(Budget(**budget))


@pytest.fixture(scope="module", params=SMALL)
def complete(request):
    """A complete exploration of a small setting."""
    return explore(SETTINGS[request.param])


def test_the_states_of_small_settings_are_pinned(complete):
    """A complete exploration finds as many states as the setting says, and all its witnesses."""
    assert (True, "holds") == (complete.is_complete, complete.verdict)
    assert complete.setting.num_states == complete.num_unique
    assert [] == complete.missing_witnesses


def test_every_transition_is_counted_once(complete):
    """The counts by action sum up to the transitions: all that was generated but the root."""
    assert complete.num_generated - 1 == sum(complete.num_by_action.values())
    assert complete.num_generated - 1 == complete.num_judged


def test_plain_has_6009_states():
    """The setting whose rate is measured has the states that it always had."""
    found = Explorer(SETTINGS["plain"], judge_all=False).run(Budget())
    assert (6009, True) == (found.num_unique, found.is_complete)


def test_another_number_of_states_is_a_finding():
    """A complete exploration that finds more or fewer states than are pinned is no success."""
    found = explore(attrs.evolve(SETTINGS["tiny"], num_states=123))
    assert (True, "violated") == (found.wrong_count, found.verdict)


def test_an_unreached_witness_is_a_finding():
    """A complete exploration that never saw what it should is no success."""
    found = explore(attrs.evolve(SETTINGS["tiny"], witnesses=("preemption", "prefix_hit")))
    assert (["prefix_hit"], "violated") == (found.missing_witnesses, found.verdict)


def test_an_incomplete_exploration_accuses_nobody():
    """What was not reached, and how many states there are, is unknown until all were seen."""
    setting = attrs.evolve(SETTINGS["tiny"], num_states=123, witnesses=("prefix_hit",))
    assert "undetermined" == explore(setting, states=50).verdict


@pytest.mark.parametrize(
    ("budget", "interrupted_by"),
    [({"states": 50}, "the state budget"), ({"seconds": 1e-6}, "the time budget")],
)
def test_a_budget_ends_an_exploration(budget, interrupted_by):
    """When a budget is used up the result is partial, says so, and is undetermined."""
    found = explore(SETTINGS["tiny"], **budget)
    assert (False, "undetermined") == (found.is_complete, found.verdict)
    assert interrupted_by == found.interrupted_by
    assert 1 < found.num_unique < 124


def test_ctrl_c_ends_an_exploration():
    """Ctrl-C keeps what was seen so far."""

    def press(found, width):
        if found.depth == 3:
            raise KeyboardInterrupt

    found = Explorer(SETTINGS["tiny"]).run(Budget(), press)
    assert ("Ctrl-C", "undetermined", 3) == (found.interrupted_by, found.verdict, found.depth)
    assert found.num_generated - 1 == sum(found.num_by_action.values())


# ---- the two findings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "broken", "num_actions"),
    [
        ("thrash", "prompts_are_not_preempted", 5),
        ("publish-at-grant", "published_blocks_were_written", 7),
    ],
)
def test_a_finding_comes_out_in_the_shortest_run(name, broken, num_actions):
    """The faults of vLLM 0.33.0 are found, and trying everything shows that no run is shorter."""
    setting = SETTINGS[name]
    found = explore(setting)
    rules = make_rules(SPEC, setting)
    assert ([broken], num_actions) == ([b.name for b in found.breaches], len(found.actions))
    assert found.breaches == run_trial(rules, SPEC, found.actions).breaches
    shorter = all_runs(setting, num_actions - 1)
    assert [] == [run for run in shorter if run_trial(rules, SPEC, run).breaches]


# ---- names ---------------------------------------------------------------------------------------


EXPLORERS = {name: Explorer(SETTINGS[name]) for name in ("priority", "prefix", "async-prefix")}


@pytest.fixture(scope="module", autouse=True)
def _explored():
    for explorer in EXPLORERS.values():
        explorer.run(Budget(states=800))


@given(st.sampled_from(sorted(EXPLORERS)), st.integers(1, 799))
def test_a_run_under_its_own_names_reaches_the_state(name, place):
    """The run to any state, with names that stay, ends in that state when it is gone through."""
    explorer = EXPLORERS[name]
    state = list(explorer.parents)[place]
    model = make_root(explorer.setting)
    for action in explorer.path_to(*explorer.parents[state]):
        model.do(action)
    assert state == freeze(model)
