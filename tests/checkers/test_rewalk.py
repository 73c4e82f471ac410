from __future__ import annotations

import random
from itertools import islice

import attrs
import pytest

from checkers.configs import load_settings
from checkers.engines import load_engine
from checkers.names import renumber
from checkers.rewalk import environment_of, rewalks
from checkers.search import make_rules
from checkers.trial import run_trial
from spec.actions import AddRequest, FinishRequests, Schedule, StreamingChunk, UpdateFromOutput
from tests.checkers.planted import walked

NAMES = ["tiny", "prefix", "async", "speculative", "grammars", "streaming", "remote-kv"]


@pytest.mark.parametrize("name", NAMES)
def test_a_rewalk_is_a_shorter_run_that_happens(name):
    """Each is one action shorter, can happen as it is, and most begin as the run does."""
    setting, spec = load_settings()[name], load_engine("spec")
    run = walked(setting, seed=0)
    found = list(islice(rewalks(setting, run, random.Random(0)), 20))
    for actions in found:
        assert len(run) - 1 == len(actions)
        assert actions == run_trial(make_rules(spec, setting), spec, actions).actions
    assert len(found) // 2 < sum(actions[:2] == run[:2] for actions in found)


def test_the_same_rewalks_follow_on_the_same_run():
    """Nothing but the run and the generator decides what is tried."""
    setting = load_settings()["plain"]
    run = walked(setting, seed=0)
    one, other = (list(islice(rewalks(setting, run, random.Random(3)), 9)) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("name", NAMES)
def test_who_is_dropped_leaves_no_gap_in_the_names(name):
    """A walk is numbered as it is; without its first arrivals, the later ones move up."""
    setting, spec = load_settings()[name], load_engine("spec")
    run = walked(setting, seed=1)
    assert run == renumber(run)
    rules = make_rules(spec, setting)
    arrivals = [action for action in run if isinstance(action, AddRequest)]
    left = run_trial(rules, spec, [a for a in run if a not in arrivals[:2]]).actions
    again = renumber(left)
    assert again == run_trial(rules, spec, again).actions
    first = next(action for action in again if isinstance(action, AddRequest))
    assert ("r0", 0.0) == (first.request.request_id, first.request.arrival_time)


def test_the_environment_of_a_run_allows_it():
    """The environment for a shorter run offers what the run is made of, and nothing else."""
    setting = load_settings()["stops"]
    spec = load_engine("spec")
    rules = make_rules(spec, setting)
    shape, other = setting.environment.shapes
    new, later = attrs.evolve(shape, request_id="a"), attrs.evolve(shape, request_id="b")
    run = [
        AddRequest(new),
        Schedule(),
        UpdateFromOutput({"a": [1]}),
        AddRequest(later),
        FinishRequests(("a",)),
    ]
    assert run == run_trial(rules, spec, run).actions
    environment = environment_of(run, rules)
    assert ((shape,), 2) == (environment.shapes, environment.max_live_requests)
    assert ((8, 1), True) == (environment.sampled_token_ids, environment.with_aborts)
    assert other not in environment.shapes


def test_the_environment_of_a_run_has_its_chunks():
    """Streaming input may follow in a shorter run, if it does in the run."""
    setting = load_settings()["streaming"]
    runs = [walked(setting, seed) for seed in range(9)]
    run = next(run for run in runs if any(isinstance(a, StreamingChunk) and a.update for a in run))
    environment = environment_of(run, make_rules(load_engine("spec"), setting))
    assert set() < set(environment.chunks) <= set(setting.environment.chunks)
