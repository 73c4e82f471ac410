from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers.configs import load_settings
from checkers.counterexample import dumps, make_counterexample
from checkers.engines import load_engine
from checkers.search import make_rules
from checkers.trial import FAULT_RULES, Trial, make_possible, run_for, run_trial
from spec.actions import (
    AddRequest,
    FinishRequests,
    GrammarReady,
    ResetPrefixCache,
    Schedule,
    SetPauseState,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.interface import NewRequest, StreamingUpdate
from spec.model import Model
from spec.scheduler import ReferenceScheduler
from tests.checkers.planted import (
    TINY,
    Exits,
    HangsInSchedule,
    LosesABlock,
    RaisesInSchedule,
    RaisesWhenBuilt,
    SwallowsEverything,
    attempt,
    engine_of,
    walked,
)

A, B = (
    NewRequest(request_id=name, prompt_token_ids=(0,) * length, max_tokens=3)
    for name, length in (("a", 1), ("b", 3))
)
CONTROLLED = ["pauses", "refusals", "grammars", "loras", "resets", "streaming"]
RESUMABLE = attrs.evolve(A, resumable=True)
CHUNK = StreamingChunk("a", StreamingUpdate(prompt_token_ids=(0,), max_tokens=1))
TOO_LONG = StreamingUpdate(prompt_token_ids=(0,) * TINY.scheduler.max_model_len, max_tokens=1)
ABORT_A, ABORT_BOTH = FinishRequests(("a",)), FinishRequests(("a", "b"))
WITH_GRAMMAR = attrs.evolve(A, structured_output=True)
RULES = make_rules(load_engine("spec"), TINY)
RUN = [AddRequest(A), Schedule(), UpdateFromOutput({"a": [0]}), Schedule(), FinishRequests(("a",))]


# ---- runs ----------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.sampled_from(["tiny", "stops", "async", "prefix", *CONTROLLED]), st.integers(0, 99))
def test_a_possible_run_happens_as_it_is(name, seed):
    """A run that can happen is gone through to its end, action by action."""
    setting = load_settings()[name]
    spec, actions = load_engine("spec"), walked(setting, seed)
    trial = run_trial(make_rules(spec, setting), spec, actions)
    assert (actions, []) == (trial.actions, trial.breaches)


@settings(max_examples=25)
@given(st.integers(0, 99), st.sets(st.integers(0, 39), max_size=20))
def test_what_cannot_happen_any_more_is_left_out(seed, dropped):
    """Whatever is dropped from a run, what is left of it can be gone through again, as it is."""
    setting, spec = load_settings()["async"], load_engine("spec")
    rules = make_rules(spec, setting)
    actions = [a for place, a in enumerate(walked(setting, seed)) if place not in dropped]
    trial = run_trial(rules, spec, actions)
    assert [] == trial.breaches
    assert trial.actions == run_trial(rules, spec, trial.actions).actions


@pytest.mark.parametrize(
    ("before", "wanted", "possible"),
    [
        ([], Schedule(), Schedule()),
        ([], UpdateFromOutput({}), None),
        ([], FinishRequests(("a",)), None),
        ([AddRequest(A)], AddRequest(A), None),
        ([AddRequest(A)], FinishRequests(("a", "b")), FinishRequests(("a",))),
        ([AddRequest(A), AddRequest(B), ABORT_A], ABORT_BOTH, ABORT_BOTH),
        ([AddRequest(A), ABORT_A], ABORT_A, ABORT_A),
        ([AddRequest(A), Schedule()], Schedule(), None),
        ([AddRequest(A), Schedule()], UpdateFromOutput({}), UpdateFromOutput({"a": [0]})),
        ([AddRequest(A), Schedule(), FinishRequests(("a",))], AddRequest(A), None),
        ([AddRequest(A), Schedule(), FinishRequests(("a",))], AddRequest(B), AddRequest(B)),
        ([], SetPauseState("unpaused"), None),
        ([SetPauseState("paused_new")], SetPauseState("unpaused"), SetPauseState("unpaused")),
        ([], ResetPrefixCache(True), ResetPrefixCache(True)),
        ([AddRequest(A)], GrammarReady("a"), None),
        ([AddRequest(WITH_GRAMMAR)], GrammarReady("a"), GrammarReady("a")),
        ([AddRequest(WITH_GRAMMAR), GrammarReady("a")], GrammarReady("a"), None),
        ([AddRequest(WITH_GRAMMAR), ABORT_A], GrammarReady("a"), GrammarReady("a")),
        ([AddRequest(A), ABORT_A], GrammarReady("a"), None),
        ([AddRequest(A)], CHUNK, None),
        ([AddRequest(RESUMABLE)], CHUNK, CHUNK),
        ([AddRequest(RESUMABLE)], StreamingChunk("a", TOO_LONG), None),
        ([AddRequest(RESUMABLE), StreamingChunk("a", None)], CHUNK, None),
        ([AddRequest(RESUMABLE), ABORT_A], CHUNK, CHUNK),
        ([AddRequest(A), ABORT_A], CHUNK, None),
        ([AddRequest(RESUMABLE), ABORT_A, AddRequest(A)], CHUNK, None),
        ([], CHUNK, None),
    ],
)
def test_an_action_happens_as_far_as_it_can(before, wanted, possible):
    """An id is not in use twice, nor while it is in flight; the dead sample nothing.

    But they may be named by somebody who has not heard of their end.
    """
    model = Model(None, ReferenceScheduler(TINY.scheduler))
    for action in before:
        model.do(action)
    assert possible == make_possible(model, wanted, RULES)


def test_a_run_ends_with_the_first_breach():
    """Nothing happens after a rule is broken; the last step is the one that breaks it."""
    trial = attempt(LosesABlock, [*RUN, AddRequest(B), Schedule()])
    assert RUN == trial.actions
    assert ["blocks_are_conserved", "same_as_spec"] == [breach.name for breach in trial.breaches]


@settings(max_examples=25)
@given(st.sampled_from([LosesABlock, RaisesInSchedule]), st.integers(0, 99))
def test_haste_makes_no_difference_to_what_is_wanted(make, seed):
    """A run in haste is the plain one wherever that breaks what is wanted; else it is empty."""
    engine = engine_of(make, time_limit_s=0.2)
    rules, actions = make_rules(engine, TINY), walked(TINY, seed)
    plain = run_trial(rules, engine, actions)
    names = {breach.name for breach in plain.breaches}
    assert plain == (run_for(rules, engine, actions, names) if names else plain)
    assert Trial() == run_for(rules, engine, actions, {"token_budget_is_kept"})


# ---- engines that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name", "evidence", "line"),
    [
        (
            RaisesInSchedule,
            "engine_raises",
            "schedule raised ZeroDivisionError: no tokens left",
            'raise ZeroDivisionError("no tokens left")',
        ),
        (Exits, "engine_raises", "schedule raised SystemExit: 0", "raise SystemExit(0)"),
        (
            HangsInSchedule,
            "engine_hangs",
            "schedule did not return within 0.2 s",
            "time.sleep(0.01)",
        ),
        (
            SwallowsEverything,
            "engine_hangs",
            "schedule did not return within 0.2 s",
            "except:",
        ),
    ],
)
def test_a_failing_call_is_a_finding(make, name, evidence, line):
    """An engine that raises or hangs is found out, with the place and the trace so far."""
    engine = engine_of(make, time_limit_s=0.2)
    trial = run_trial(make_rules(engine, TINY), engine, RUN)
    (breach,) = trial.breaches
    assert (name, FAULT_RULES[name], "engine") == (breach.name, breach.rule, breach.kind)
    assert (evidence,) == breach.evidence
    assert line in breach.detail
    assert "checkers/engines.py" not in breach.detail
    assert RUN[: len(trial.steps)] == trial.actions
    last = trial.steps[-1]
    assert (Schedule(), None, None) == (last.action, last.outcome, last.seen)


def test_an_engine_that_cannot_be_built_is_a_finding():
    """A constructor that raises is a finding on the empty run."""
    trial = attempt(RaisesWhenBuilt, RUN)
    (breach,) = trial.breaches
    assert ([], "engine_raises") == (trial.steps, breach.name)
    assert ("__init__ raised OSError: no such device",) == breach.evidence


def answering(call, answer):
    """The specification, one of whose calls answers otherwise once a request runs."""

    def method(self, *arguments):
        right = getattr(ReferenceScheduler, call)(self, *arguments)
        return answer(right) if self.running else right

    return type("Answers", (ReferenceScheduler,), {call: method})


def seeing(field, value, call="observe"):
    """The specification, with another value in one field of an answer."""
    return answering(call, lambda right: attrs.evolve(right, **{field: value}))


def seeing_of_a(field, value):
    """The specification, with another value in one field of what is seen of request a."""

    def change(seen):
        changed = attrs.evolve(seen.requests["a"], **{field: value})
        return attrs.evolve(seen, requests={"a": changed})

    return answering("observe", change)


@pytest.mark.parametrize(
    ("make", "evidence"),
    [
        (answering("observe", lambda _: None), "observe() is None, expected Observation"),
        (
            answering("schedule", lambda _: {}),
            "schedule() is of type dict, expected SchedulerOutput",
        ),
        (
            answering("update_from_output", lambda _: [1]),
            "update_from_output() is of type list, expected a dict",
        ),
        (
            answering("update_from_output", lambda _: {"0": []}),
            "a key of update_from_output() is '0', expected a whole number",
        ),
        (
            answering("update_from_output", lambda _: {0: ["a"]}),
            "update_from_output()[0][0] is 'a', expected EngineCoreOutput",
        ),
        (
            seeing("num_scheduled_tokens", {"a": None}, "schedule"),
            "schedule().num_scheduled_tokens['a'] is None, expected a whole number",
        ),
        (
            seeing("preempted_req_ids", None, "schedule"),
            "schedule().preempted_req_ids is None, expected a list",
        ),
        (seeing("running", None), "observe().running is None, expected a list"),
        (seeing("running", ("a",)), "observe().running is of type tuple, expected a list"),
        (seeing("running", [1]), "observe().running[0] is 1, expected a text"),
        (seeing("requests", {"a": None}), "observe().requests['a'] is None, expected Request"),
        (seeing("num_free_blocks", 2.0), "observe().num_free_blocks is 2.0, expected a whole"),
        (seeing("num_free_blocks", True), "observe().num_free_blocks is True, expected a whole"),
        (
            seeing("ref_cnt", {1: object()}),
            "observe().ref_cnt[1] is of type object, expected a whole",
        ),
        (seeing("block_contents", {1: (0,)}), "observe().block_contents[1] has 1 items, expected"),
        (seeing_of_a("block_ids", None), "observe().requests['a'].block_ids is None, expected a"),
        (seeing_of_a("num_tokens", "1"), "observe().requests['a'].num_tokens is '1', expected a"),
        (
            seeing_of_a("num_preemptions", 0.0),
            "observe().requests['a'].num_preemptions is 0.0, expected a whole number",
        ),
    ],
)
def test_an_answer_of_a_wrong_type_is_a_finding(make, evidence):
    """What is no answer by the interface is found out, with the field named."""
    trial = attempt(make, RUN)
    (breach,) = trial.breaches
    assert "engine_answers" == breach.name
    assert breach.evidence[0].startswith(evidence)
    last = trial.steps[-1]
    assert (None, None) == (last.outcome, last.seen)


def test_a_field_that_an_engine_does_not_have_is_no_fault():
    """None is an answer where the interface says so."""
    assert [] == attempt(seeing("block_contents", None), RUN).breaches


NUMBERS = st.integers(-2, 5)
NAMES = st.sampled_from(["a", "b", "c", ""])
ALTERED = st.fixed_dictionaries(
    {},
    optional={
        "running": st.lists(NAMES, max_size=3),
        "waiting": st.lists(NAMES, max_size=3),
        "num_free_blocks": NUMBERS,
        "free_block_ids": st.lists(NUMBERS, max_size=4),
        "ref_cnt": st.dictionaries(NUMBERS, NUMBERS, max_size=3),
        "cached_block_ids": st.lists(NUMBERS, max_size=3),
        "finished_req_ids": st.lists(NAMES, max_size=2),
        "block_contents": st.none()
        | st.dictionaries(NUMBERS, st.tuples(st.none(), st.tuples(NUMBERS)), max_size=2),
        "num_scheduled_tokens": st.dictionaries(NAMES, NUMBERS, max_size=3),
        "preempted_req_ids": st.lists(NAMES, max_size=2),
        "new_block_ids_to_zero": st.none() | st.lists(NUMBERS, max_size=2),
        "block_ids": st.lists(NUMBERS, max_size=3),
        "status": st.sampled_from(["WAITING", "RUNNING", "PREEMPTED", "LOST"]),
        "num_computed_tokens": NUMBERS,
        "num_tokens": NUMBERS,
        "num_output_placeholders": NUMBERS,
        "num_in_flight_tokens": st.none() | NUMBERS,
        "prompt_token_ids": st.just((0,)),
        "new_block_ids": st.lists(NUMBERS, max_size=3),
        "resumed": st.booleans(),
        "request_id": NAMES,
        "new_token_ids": st.lists(NUMBERS, max_size=2),
        "finish_reason": st.sampled_from([None, "stop", "boredom"]),
        "requests": st.just({}),
        "scheduled_new_reqs": st.just({}),
        "scheduled_cached_reqs": st.just({}),
    },
)
"""Values of the right types for fields of all that an engine answers."""


def altered(answer, values):
    """An answer with other values in those fields that it has, in whatever depth."""
    if isinstance(answer, dict):
        return {key: altered(item, values) for key, item in answer.items()}
    if isinstance(answer, list):
        return [altered(item, values) for item in answer]
    if not attrs.has(type(answer)):
        return answer
    names = [field.name for field in attrs.fields(type(answer))]
    fields = {name: altered(getattr(answer, name), values) for name in names}
    return type(answer)(**fields | {name: v for name, v in values.items() if name in names})


@given(ALTERED, st.integers(0, 4), st.sampled_from(["plain", "prefix", "async", "priority"]))
def test_answers_without_sense_are_judged(values, good_steps, name):
    """An engine may say anything of the right types: it is found out, or does as the spec does."""
    setting = load_settings()[name]

    class Talks(ReferenceScheduler):
        num_steps = 0

        def schedule(self):
            self.num_steps += 1
            return self.alter(super().schedule())

        def update_from_output(self, output, result):
            return self.alter(super().update_from_output(output, result))

        def observe(self):
            return self.alter(super().observe())

        def alter(self, answer):
            return altered(answer, values) if self.num_steps > good_steps else answer

    engine = engine_of(Talks)
    rules = make_rules(engine, setting)
    actions = [action for action in walked(setting, seed=1) if action != FinishRequests(("r0",))]
    trial = run_trial(rules, engine, actions)
    if trial.breaches:
        found = make_counterexample(
            rules, engine, trial, setting=name, dialect="vllm-0.33.0", found_by="test"
        )
        assert dumps(found).startswith("{")
