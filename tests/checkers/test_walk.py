from __future__ import annotations

import random
from collections import Counter

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.configs import load_settings
from checkers.walk import DEFAULT_WEIGHTS, Weights, draw_action
from spec.actions import AddRequest, FinishRequests, Schedule, UpdateFromOutput
from spec.model import Model
from spec.scheduler import ReferenceScheduler
from tests.checkers.planted import TINY, walked

SETTINGS = [setting for setting in load_settings().values() if "search" in setting.used_by]


@given(st.sampled_from(SETTINGS), st.integers(0, 99))
def test_whatever_is_drawn_may_happen(setting, seed):
    """A drawn action is one of those that are enabled; of those who sample, any may be drafted."""
    model = Model(setting.environment, ReferenceScheduler(setting.scheduler))
    rng = random.Random(seed)
    for _ in range(20):
        action = draw_action(model, rng)
        enabled = model.enabled_actions()
        if isinstance(action, UpdateFromOutput):
            assert action.draft_token_ids.items() <= model.new_drafts().items()
            assert attrs.evolve(action, draft_token_ids={}) in enabled
        else:
            assert action in enabled
        model.do(action)


def test_the_same_seed_draws_the_same_walk():
    """A walk is decided by its seed alone."""
    assert walked(TINY, 1) == walked(TINY, 1)
    assert walked(TINY, 1) != walked(TINY, 2)


def test_aborts_are_rare():
    """Most requests end by themselves."""
    kinds = Counter(type(action) for seed in range(20) for action in walked(TINY, seed))
    assert 0 < 20 * kinds[FinishRequests] < kinds.total()


def test_clients_that_stay_are_never_aborted():
    """Where the environment has no aborts none is drawn."""
    patient = attrs.evolve(TINY, environment=attrs.evolve(TINY.environment, with_aborts=False))
    kinds = {type(action) for seed in range(20) for action in walked(patient, seed)}
    assert {AddRequest, Schedule, UpdateFromOutput} == kinds


@pytest.mark.parametrize("max_live_requests", [1, 2])
def test_what_has_no_weight_is_not_drawn(max_live_requests):
    """Nothing is drawn where nothing may happen, or is wanted."""
    environment = attrs.evolve(
        TINY.environment, with_aborts=False, max_live_requests=max_live_requests
    )
    model = Model(environment, ReferenceScheduler(TINY.scheduler))
    only_arrivals = Weights(schedule=0, update=0, abort=0)
    for _ in range(max_live_requests):
        model.do(draw_action(model, random.Random(0), only_arrivals))
    assert draw_action(model, random.Random(0), only_arrivals) is None
    assert Schedule() == draw_action(model, random.Random(0), DEFAULT_WEIGHTS)
