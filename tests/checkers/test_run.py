from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers.configs import load_settings
from checkers.errors import HarnessError
from checkers.run import Judge, Run, select_invariants
from spec.actions import AddRequest, FinishRequests, Schedule
from spec.registry import INVARIANTS, WITNESSES
from spec.scheduler import ReferenceScheduler
from tests.checkers.planted import LosesABlock, walked

SETTINGS = load_settings()


def transitions(setting, actions, make=ReferenceScheduler, **options):
    """What is seen along a run."""
    run = Run(setting.scheduler, make(setting.scheduler), setting.environment, **options)
    return [run.step(action) for action in actions]


WALKED = st.sampled_from(["tiny", "async-prefix", "stops", "deep-async-priority-prefix"])


@settings(max_examples=25)
@given(WALKED, st.integers(0, 99))
def test_transitions_are_a_chain(name, seed):
    """What is seen after an action is what was seen before the next one."""
    actions = walked(SETTINGS[name], seed)
    seen = transitions(SETTINGS[name], actions)
    assert actions == [each.action for each in seen]
    for first, second in itertools.pairwise(seen):
        assert first.after is second.before
        assert first.live_after is second.live
        assert first.in_flight_after is second.in_flight


@settings(max_examples=25)
@given(WALKED, st.integers(0, 99))
def test_the_specification_breaks_no_invariant(name, seed):
    """Along any run of the specification all invariants hold, and each is asked."""
    setting = SETTINGS[name]
    judge = Judge(setting.scheduler, select_invariants())
    for seen in transitions(setting, walked(setting, seed)):
        assert [] == list(judge.breaches(seen))
        judge.look(seen)
    assert 40 == judge.num_transitions
    assert set() == judge.unobserved


def test_a_breach_says_which_rule_and_why():
    """A breach carries the rule's name, its sentence and the evidence."""
    setting = SETTINGS["tiny"]
    new = attrs.evolve(setting.environment.shapes[0], request_id="a")
    actions = [AddRequest(new), Schedule(), FinishRequests(("a",))]
    *_, last = transitions(setting, actions, LosesABlock)
    (breach,) = Judge(setting.scheduler, select_invariants()).breaches(last)
    rule = INVARIANTS["blocks_are_conserved"]
    assert (rule.name, rule.rule, "invariant") == (breach.name, breach.rule, breach.kind)
    assert "2 blocks are free or held, the pool has 3" == breach.evidence[0]


def test_what_needs_a_worker_is_passed_over_without_one():
    """Without a ghost worker the rules that need one are not broken, but noted as not observed."""
    setting = SETTINGS["prefix"]
    judge = Judge(setting.scheduler, select_invariants())
    for seen in transitions(setting, walked(setting, 1), with_worker=False):
        assert [] == list(judge.breaches(seen))
    needy = {
        name for name, rule in INVARIANTS.items() if {"worker", "published_faults"} & {*rule.needs}
    }
    assert needy == judge.unobserved
    assert needy


def test_a_state_that_is_known_is_not_judged_twice():
    """For a known state only the rules about the transition into it are asked."""
    setting = SETTINGS["tiny"]
    new = attrs.evolve(setting.environment.shapes[0], request_id="a")
    actions = [AddRequest(new), Schedule(), FinishRequests(("a",))]
    *_, last = transitions(setting, actions, LosesABlock)
    last.after.num_free_blocks = 99
    judge = Judge(setting.scheduler, select_invariants())
    all_broken = {breach.name for breach in judge.breaches(last)}
    broken = {breach.name for breach in judge.breaches(last, is_known_state=True)}
    assert broken == {name for name in all_broken if not INVARIANTS[name].of_state}


def test_witnesses_are_counted():
    """Each transition in which something happens counts for it."""
    setting = SETTINGS["stops"]
    judge = Judge(setting.scheduler, [])
    for seed in range(5):
        for seen in transitions(setting, walked(setting, seed)):
            judge.look(seen)
    expected = sum(
        witness.is_seen(setting.scheduler, seen)
        for seed in range(5)
        for seen in transitions(setting, walked(setting, seed))
        for witness in [WITNESSES["stop_by_stop_token"]]
        if type(seen.action) in witness.on
    )
    assert expected == judge.witnesses["stop_by_stop_token"] > 0


def test_claims_are_asked_for_by_name():
    """A claim is held against a run only where somebody asks for it."""
    names = [rule.name for rule in select_invariants()]
    claimed = [rule.name for rule in select_invariants(["prompts_are_not_preempted"])]
    assert ["prompts_are_not_preempted"] == [name for name in claimed if name not in names]
    with pytest.raises(HarnessError, match=r"claims \['x'\] are unknown; known are prompts_are_"):
        select_invariants(["x"])
