from __future__ import annotations

import attrs
import pytest
import z3

import proofs.symbolic.state as state_module
import proofs.theorems  # noqa: F401  (fills the registry)
import spec.scheduler
from proofs.actions import schedule, update
from proofs.bounded import Scenario, prove_bounded
from proofs.invariant import instances
from proofs.replay import ReplayError, check_replay
from proofs.scenarios import ABORT, ARRIVAL, ASYNC, SCHEDULE, UPDATE
from proofs.symbolic.executor import Executor
from proofs.symbolic.state import Shape, injected, make_state
from proofs.symbolic.values import integer, term
from proofs.theorem import THEOREMS, Obligation

SMALL = (
    Scenario(schedule, Shape(num_running=1, num_waiting=1)),
    Scenario(schedule, Shape(num_running=2, num_waiting=0, policy="priority")),
    Scenario(update, Shape(num_running=1, num_waiting=1, is_async=True)),
)


def explore(scenario):
    """All paths of a scenario, and its precondition."""

    def setup():
        state = make_state(scenario.shape, integer)
        with injected():
            facts = scenario.precondition(state)
        return state, facts

    def body(state):
        with injected():
            return scenario.action(state)

    return list(Executor().paths(setup, body)), [term(fact) for fact in setup()[1]]


@pytest.mark.parametrize("scenario", SMALL, ids=lambda each: each.label)
def test_paths_exhaust_the_precondition(scenario):
    """Every start that satisfies the precondition goes one of the paths, and only one."""
    paths, precondition = explore(scenario)
    conditions = [z3.And(*path.condition) for path in paths]
    solver = z3.Solver()
    solver.add(*precondition)
    assert z3.unsat == solver.check(z3.Not(z3.Or(*conditions)))
    for number, one in enumerate(conditions):
        assert z3.unsat == solver.check(one, z3.Or(*conditions[:number]))


@pytest.mark.parametrize(
    "scenario", [*SCHEDULE, *UPDATE, *ARRIVAL, *ABORT], ids=lambda each: each.label
)
def test_a_precondition_has_a_real_state(scenario):
    """Some plain state satisfies what is assumed, and a real configuration is in it."""
    state = make_state(scenario.shape, integer)
    solver = z3.Solver()
    with injected():
        solver.add(*[term(fact) for fact in scenario.precondition(state)])
    assert z3.sat == solver.check()
    plain = make_state(scenario.shape, state_module.values_of(solver.model()))
    assert all(fact for _, fact in instances(plain.scheduler, plain.steps))


def test_a_wrong_stand_in_is_noticed(monkeypatch):
    """A `min` that is wrong on symbols only makes a plain run differ, and nothing comes out."""
    monkeypatch.setitem(state_module.BUILTINS, "min", lambda *values: values[0])
    with pytest.raises(ReplayError, match="on plain integers"):
        prove_bounded([attrs.evolve(THEOREMS["budgets_are_kept"], scenarios=(ASYNC,))])


def test_a_replay_can_fail():
    """A path whose numbers are changed behind the executor's back is noticed."""
    paths, _ = explore(SMALL[0])
    path = paths[0]
    check_replay(SMALL[0].shape, SMALL[0].action, path)
    path.state.scheduler.token_budget = path.state.scheduler.token_budget + 1
    with pytest.raises(ReplayError, match="token_budget"):
        check_replay(SMALL[0].shape, SMALL[0].action, path)


def test_what_was_lent_is_taken_back():
    """The spec's modules have their own builtins again, after an error too."""
    lent = {"min", "max", "len"}
    with injected():
        assert lent <= set(vars(spec.scheduler))
    with pytest.raises(RuntimeError, match="stop"), injected():
        raise RuntimeError("stop")
    assert set() == lent & set(vars(spec.scheduler))


def test_a_solver_that_gives_up_proves_nothing(monkeypatch):
    """Where the solver says unknown, the theorem is undetermined and says why."""
    monkeypatch.setattr(Executor, "check", give_up_after(3))
    (proof,) = prove_bounded([attrs.evolve(THEOREMS["budgets_are_kept"], scenarios=(ASYNC,))])
    assert "undetermined" == proof.verdict
    assert proof.undecided


def test_claims_that_stay_open_prove_nothing(monkeypatch):
    """Where the solver cannot say whether claims hold, together or alone, each of them is named."""
    monkeypatch.setattr("proofs.bounded._Exploration._ask", know_nothing)
    (proof,) = prove_bounded([THEOREMS["budgets_are_kept"].about((ASYNC,))])
    assert ("undetermined", proof.num_claims) == (proof.verdict, len(proof.undecided))


def know_nothing(self, *facts):
    """A judge that cannot say."""
    return z3.unknown


def give_up_after(num_answers):
    """A `check` that answers a few times, and says unknown ever after."""
    answer, asked = Executor.check, []

    def check(self, *assumptions):
        asked.append(assumptions)
        return answer(self, *assumptions) if len(asked) <= num_answers else z3.unknown

    return check


def test_an_obligation_crosses_as_text():
    """SMT-LIB text of an obligation is unsatisfiable exactly if it holds, also of no hypothesis."""
    x = z3.Int("x")
    for hypotheses, goal, expected in [
        ((x > 1,), x > 0, z3.unsat),
        ((x > 0,), x > 1, z3.sat),
        ((), x < x + 1, z3.unsat),
        ((), z3.BoolVal(False), z3.sat),
    ]:
        solver = z3.Solver()
        solver.from_string(Obligation("some", hypotheses, goal).to_smt2())
        assert expected == solver.check()
