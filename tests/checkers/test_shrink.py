from __future__ import annotations

from functools import partial

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers.configs import load_settings
from checkers.engines import load_engine
from checkers.mutations import bugs  # noqa: F401, importing it registers the bugs
from checkers.mutations.registry import MUTATIONS, planted
from checkers.search import Plan, make_rules, search
from checkers.shrink import (
    NO_EFFORT,
    Effort,
    names_to_break,
    shrink,
    simpler_requests,
    simpler_tokens,
)
from checkers.trial import Trial, run_for, run_trial
from spec.actions import AddRequest, Schedule, UpdateFromOutput
from spec.interface import NewRequest
from spec.scheduler import ReferenceScheduler
from tests.checkers.planted import (
    TINY,
    ExceedsTheBudget,
    LosesABlock,
    RaisesInSchedule,
    ServesTheNewestFirst,
    attempt,
    walked,
)

PLANTED = [ServesTheNewestFirst, ExceedsTheBudget, LosesABlock, RaisesInSchedule]


def names(trial):
    """The rules that a run breaks."""
    return {breach.name for breach in trial.breaches}


def failing(make, seed, setting=TINY):
    """A random run, up to where it fails."""
    return attempt(make, walked(setting, seed), setting)


@settings(max_examples=15)
@given(st.sampled_from(PLANTED), st.integers(0, 999))
def test_a_shrunk_run_fails_alike_and_nothing_can_be_dropped(make, seed):
    """What is left breaks the same rule, is no longer, and holds without any one of its actions."""
    trial = failing(make, seed)
    if not trial.breaches:
        return
    small = shrink(trial, lambda actions: attempt(make, actions))
    assert names(small) & names(trial)
    assert len(small.steps) <= len(trial.steps)
    for place in range(len(small.steps)):
        dropped = small.actions[:place] + small.actions[place + 1 :]
        assert set() == names(attempt(make, dropped)) & names(trial)


@pytest.mark.parametrize("make", PLANTED)
def test_a_shrunk_run_happens_again(make):
    """A shrunk run is a run like any other: the same steps and breaches when it is repeated."""
    small = shrink(failing(make, seed=1), lambda actions: attempt(make, actions))
    assert small == attempt(make, small.actions)


class StopsTooEarly(ReferenceScheduler):
    """Ends requests that have sampled a stop token which is not theirs."""

    def _deliver(self, request, sampled_token_ids, is_stale):
        if sampled_token_ids == [9]:
            request.stop_token_ids = (9,)
        return super()._deliver(request, sampled_token_ids, is_stale)


def test_requests_and_tokens_become_simple():
    """What does not matter is as simple as it can be; what matters stays."""
    setting = load_settings()["stops"]
    make = StopsTooEarly
    trial = next(t for seed in range(50) if (t := failing(make, seed, setting)).breaches)
    small = shrink(trial, lambda actions: attempt(make, actions, setting))
    (request,) = [a.request for a in small.actions if isinstance(a, AddRequest)]
    name = request.request_id
    simplest = NewRequest(request_id=name, prompt_token_ids=(0,), max_tokens=1)
    assert simplest == attrs.evolve(request, arrival_time=0.0)
    assert [AddRequest(request), Schedule(), UpdateFromOutput({name: [9]})] == small.actions


def test_another_rule_is_another_story():
    """A shorter run that breaks another rule is no version of the run."""
    long = attempt(ReferenceScheduler, walked(TINY, 0))
    broken = attempt(ServesTheNewestFirst, walked(TINY, 0))
    other = attempt(LosesABlock, walked(TINY, 0))
    assert set() == (names(broken) & names(other)) - {"same_as_spec"}
    only = [breach for breach in broken.breaches if breach.name != "same_as_spec"]
    trial = Trial(steps=long.steps, breaches=only)
    assert len(other.steps) < len(trial.steps)
    assert trial == shrink(trial, lambda _: other)


@pytest.mark.parametrize("effort", [NO_EFFORT, Effort(seconds=0)])
def test_without_an_effort_nothing_changes(effort):
    """A run that nobody has time to shrink is handed back as it is."""
    trial = failing(LosesABlock, seed=1)
    made = lambda actions: attempt(LosesABlock, actions)  # noqa: E731
    assert trial == shrink(trial, made, TINY, effort)


def test_the_effort_is_counted_in_actions():
    """The same candidates are tried however long each of them takes, up to the number given."""
    trial = failing(LosesABlock, seed=1)
    tried = []

    def note(actions):
        tried[-1].append(actions)
        return attempt(LosesABlock, actions)

    def note_late(actions):
        clock.append(clock[-1] + 1)
        return note(actions)

    clock = [0.0]
    efforts = [Effort(num_actions=500), Effort(num_actions=500, seconds=1e9)]
    smalls = []
    for effort, made in zip(efforts, (note, note_late), strict=True):
        tried.append([])
        with pytest.MonkeyPatch.context() as patched:
            if made is note_late:
                patched.setattr("checkers.shrink.time.monotonic", lambda: clock[-1])
            smalls.append(shrink(trial, made, TINY, effort))
    assert tried[0] == tried[1]
    assert smalls[0] == smalls[1]
    assert 500 <= sum(len(actions) for actions in tried[0]) < 500 + len(trial.steps)


def test_walks_get_past_where_dropping_is_stuck():
    """Where every action is needed for what follows, a walk that begins as the run may be shorter.

    More seats are taken than there are: with a queue of the preempted, which needs a full pool.
    """
    wrong = MUTATIONS["seats_count_who_is_new"]
    engine = load_engine("fast")
    rules = make_rules(engine, wrong.setting)
    with planted(wrong):
        found = search(engine, [wrong.setting], Plan(seed=100, effort=NO_EFFORT)).counterexample
        trial = run_trial(rules, engine, [step.action for step in found.steps])
        wanted = names_to_break(trial)
        attempt = partial(run_for, rules, engine, wanted=wanted)
        patient = Effort(seconds=1e6)
        stuck = shrink(trial, attempt, effort=patient)
        small = shrink(trial, attempt, wrong.setting, patient)
    assert wanted & names(small) & names(stuck)
    assert (30, 7) == (len(stuck.steps), len(small.steps))


def test_ctrl_c_keeps_the_best():
    """Ctrl-C ends the shrinking and not the report: the shortest run so far is handed back."""
    trial = failing(LosesABlock, seed=1)
    found = []

    def press(actions):
        if found:
            raise KeyboardInterrupt
        tried = attempt(LosesABlock, actions)
        found.extend([tried] if tried.breaches else [])
        return tried

    small = shrink(trial, press)
    assert found == [small]
    assert len(small.steps) < len(trial.steps)


RICH = NewRequest(
    request_id="a",
    prompt_token_ids=(1, 2, 3, 4),
    max_tokens=2,
    min_tokens=1,
    eos_token_id=8,
    stop_token_ids=(9,),
    priority=1,
    client_index=1,
    cache_salt="s",
)


def test_simpler_requests_are_simpler_in_one_way():
    """Each version of a run differs from it in one field of one request."""
    run = [Schedule(), AddRequest(RICH)]
    changed = []
    for first, last in simpler_requests(run):
        assert Schedule() == first
        fields = [field.name for field in attrs.fields(NewRequest)]
        changed += [n for n in fields if getattr(last.request, n) != getattr(RICH, n)]
    assert 4 * ["prompt_token_ids"] == [name for name in changed if name == "prompt_token_ids"]
    others = [name for name in changed if name != "prompt_token_ids"]
    assert len(set(others)) == len(others) == 7


def test_the_simplest_request_has_no_simpler_version():
    """Simplifying ends."""
    simple = NewRequest(request_id="a", prompt_token_ids=(0,), max_tokens=1)
    assert [] == list(simpler_requests([AddRequest(simple)]))


def test_simpler_tokens_are_those_of_one_step():
    """Each version of a run leaves the tokens of one step to the default."""
    run = [
        UpdateFromOutput({"a": [1]}),
        Schedule(),
        UpdateFromOutput({}),
        UpdateFromOutput({"a": [2]}),
    ]
    assert [
        [UpdateFromOutput({}), *run[1:]],
        [*run[:3], UpdateFromOutput({})],
    ] == list(simpler_tokens(run))
