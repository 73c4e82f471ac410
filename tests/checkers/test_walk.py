from __future__ import annotations

import random
from collections import Counter

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.configs import load_settings
from checkers.engines import load_engine
from checkers.search import make_rules
from checkers.trial import make_possible
from checkers.walk import DEFAULT_WEIGHTS, Weights, draw_action
from spec.actions import (
    AddRequest,
    FinishRequests,
    GrammarReady,
    Schedule,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.model import Model
from spec.scheduler import ReferenceScheduler
from tests.checkers.planted import TINY, walked

SETTINGS = [setting for setting in load_settings().values() if "search" in setting.used_by]


@given(st.sampled_from(SETTINGS), st.integers(0, 99))
def test_whatever_is_drawn_may_happen(setting, seed):
    """A drawn action is enabled, or comes too late; of those who sample, any may be drafted."""
    model = Model(setting.environment, ReferenceScheduler(setting.scheduler))
    rules = make_rules(load_engine("spec"), setting)
    rng = random.Random(seed)
    for _ in range(20):
        action = draw_action(model, rng)
        assert action == make_possible(model, action, rules)
        enabled = model.enabled_actions()
        if isinstance(action, UpdateFromOutput):
            assert action.draft_token_ids.items() <= model.new_drafts().items()
            assert all(
                len(row) in {len(one) for one in model.rows(name)}
                for name, row in action.sampled_token_ids.items()
            )
        elif isinstance(action, FinishRequests):
            assert {*action.request_ids} <= model.live.keys() | model.ended.keys()
            assert any(FinishRequests((name,)) in enabled for name in action.request_ids)
        else:
            assert action in [*enabled, *model.late_controls()]
        model.do(action)


def drawn(name, kind, num_walks=20):
    """What is drawn on some walks of a setting, of one kind, and who had ended by then."""
    setting = load_settings()[name]
    for seed in range(num_walks):
        model = Model(setting.environment, ReferenceScheduler(setting.scheduler))
        rng = random.Random(seed)
        for _ in range(60):
            action = draw_action(model, rng)
            if isinstance(action, kind):
                yield action, model.ended
            model.do(action)


def test_two_may_leave_together_of_whom_one_has_ended():
    """Aborts name one request or two, living ones or one that has ended, in any order."""
    found = {
        tuple([name in ended for name in action.request_ids])
        for action, ended in drawn("plain", FinishRequests)
    }
    assert {(False,), (False, False), (False, True), (True, False)} == found


@pytest.mark.parametrize(
    ("name", "kind"), [("grammars", GrammarReady), ("streaming-seats", StreamingChunk)]
)
def test_some_have_not_heard_of_an_end(name, kind):
    """A grammar or a chunk is told also of a request that was aborted meanwhile."""
    assert {False, True} == {action.request_id in ended for action, ended in drawn(name, kind)}


def test_drafts_that_nobody_here_knows_may_be_any_tokens():
    """With async scheduling an accepted draft may be a stop token; the explorer takes the first."""
    rows = [
        row
        for action, _ in drawn("deep-everything", UpdateFromOutput)
        for row in action.sampled_token_ids.values()
    ]
    assert {0, 1, 9} == {token for row in rows for token in row[:-1]}


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
