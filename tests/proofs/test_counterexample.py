from __future__ import annotations

import attrs
import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

from proofs.actions import schedule, two_steps
from proofs.bounded import prove_bounded
from proofs.counterexample import ToldScheduler, explain, find_small_model, wishes_of
from proofs.invariant import instances
from proofs.mutants import MUTANTS, SCHEDULER, planted
from proofs.replay import describe
from proofs.symbolic.state import Shape, injected, make_state, values_of
from proofs.symbolic.values import integer, term
from proofs.theorems.max_num_seqs_is_kept import max_num_seqs_is_kept

SHAPES = [
    Shape(num_running=2, num_waiting=2),
    Shape(num_running=2, num_waiting=1, policy="priority", pool="publication"),
    Shape(num_running=1, num_waiting=2, is_async=True, pool="any_hits"),
]
X, Y = z3.Ints("x y")


@given(st.integers(0, 30), st.integers(0, 30))
def test_a_model_is_made_as_small_as_the_facts_allow(least_x, least_sum):
    """The smallest model of two lower bounds meets them, and one of them exactly."""
    model = find_small_model([least_x <= X, X + Y >= least_sum])
    x, y = (model.eval(number, model_completion=True).as_long() for number in (X, Y))
    assert x >= least_x
    assert x + y == max(x, least_sum)


def test_wishes_are_granted_where_the_facts_allow():
    """A wish that the facts exclude is left out, the others hold in the model."""
    model = find_small_model([X >= 2, Y >= 0], [X < 2, Y == 5, Y > 5])
    assert [2, 5] == [model.eval(number).as_long() for number in (X, Y)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
def test_a_wished_state_looks_like_one_of_a_run(shape):
    """Of any state of a shape, the small one has served its running requests, in order."""
    symbolic = make_state(shape, integer)
    with injected():
        facts = [term(fact) for _, fact in instances(symbolic.scheduler, symbolic.steps)]
    plain = make_state(shape, values_of(find_small_model(facts, wishes_of(symbolic))))
    requests = list(plain.scheduler.requests.values())
    assert all(request.num_computed_tokens > 0 for request in plain.scheduler.running)
    assert [1] * shape.num_waiting == [each.status for each in plain.scheduler.waiting.items]
    if shape.policy == "priority":
        times = [request.arrival_time for request in requests]
        assert sorted(set(times)) == times


def small_model(shape):
    """Some small state of a shape."""
    state = make_state(shape, integer)
    with injected():
        facts = [term(fact) for _, fact in instances(state.scheduler, state.steps)]
    return find_small_model(facts)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
@pytest.mark.parametrize("action", [schedule, two_steps])
def test_telling_changes_nothing(shape, action):
    """The scheduler that tells what it does ends exactly where the silent one ends."""
    model = small_model(shape)
    told = make_state(shape, values_of(model), ToldScheduler)
    silent = make_state(shape, values_of(model))
    assert describe(silent, action(silent)) == describe(told, action(told))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
def test_an_explanation_shows_before_call_and_after(shape):
    """It names every request twice, and what the spec decided in between."""
    lines = explain(shape, schedule, small_model(shape))
    places = [lines.index(word) for word in ("before", "the call", "after")]
    assert sorted(places) == places
    assert places[2] - places[1] > 1
    for name in shape.request_ids:
        assert 2 == sum(
            line.startswith((f"  {name} RUNNING", f"  {name} WAITING", f"  {name} PREEMPTED"))
            for line in lines
        )


def test_code_that_raises_is_refuted():
    """Code under proof that raises is a finding, with state and error, and no fault of ours."""

    def _admit(self, request, *arguments):
        raise LookupError(f"no place for {request.request_id}")

    small = max_num_seqs_is_kept.about(max_num_seqs_is_kept.scenarios[1:2])
    with planted(attrs.evolve(MUTANTS["there_is_always_a_seat"], **as_admit(_admit))):
        (proof,) = prove_bounded([small])
    assert "refuted" == proof.verdict
    assert "no call raises" == proof.failure.obligation
    assert "the call raises LookupError: no place for r0" in proof.failure.lines[-1]


def as_admit(method):
    """What makes a mutant put a method in the place of `_admit`."""
    return {"target": f"{SCHEDULER}._admit", "plant": lambda _: method}
