"""Proofs about states with a bounded number of requests and any integers.

Entry points: `bounded`, which registers a theorem from its claims, and `prove_bounded`, which
proves several at once: theorems that share a scenario share its paths.

Trust: on every path, a start that goes this way is built from plain integers and run through the
unchanged spec; decisions, answers and every number must come out as the symbols say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import attrs
import z3
from attrs import define, field, frozen

from proofs.counterexample import explain, find_small_model, wishes_of
from proofs.invariant import instances
from proofs.reach import FailingStart
from proofs.replay import Raised, ReplayError, call, check_replay
from proofs.symbolic.executor import Executor, Path, UndecidedError
from proofs.symbolic.patience import PatientSolver
from proofs.symbolic.state import Shape, State, injected, make_state, values_of
from proofs.symbolic.values import conjunction, implies, integer, term
from proofs.theorem import (
    Failure,
    Obligation,
    ObligationSink,
    Part,
    Proof,
    Say,
    Theorem,
    Verdict,
    be_quiet,
    first_line,
    ignore,
    register,
)


class Action(Protocol):
    """A function that lets something happen, known by its name."""

    __name__: str

    def __call__(self, state: State, /) -> Any:
        """Lets it happen; returns what it comes to."""


Claim = tuple[str, Any]
"""What is claimed, and whether it holds: a plain or a symbolic truth."""

NUM_PATHS_AT_ONCE = 25
"""How many paths one question is about; five times as fast as a question for each."""


@frozen
class Run:
    """One path of an action, for claims to look at."""

    before: State
    after: State
    result: Any
    """What the action returned."""


Claims = Callable[[Run], Iterator[Claim]]
Assumption = Callable[[State], Iterator[Any]]


def nothing_more(state: State) -> Iterator[Any]:
    """Assumes the invariant only."""
    yield from ()


@frozen
class Scenario:
    """From which states an action is looked at; the invariant is always assumed."""

    action: Action
    shape: Shape
    assume: Assumption = nothing_more
    is_slow: bool = False
    """Whether it is left out unless asked for."""
    is_core: bool = True
    """Whether it is looked at when time is short, too."""

    @property
    def label(self) -> str:
        """What it is called in a table."""
        extra = "" if self.assume is nothing_more else f", {first_line(self.assume.__doc__)}"
        slow = " (slow)" if self.is_slow else ""
        return f"{self.action.__name__} from {self.shape.label}{extra}{slow}"

    def precondition(self, state: State) -> list[Any]:
        """The invariant, and what the scenario assumes beside it."""
        facts = [fact for _, fact in instances(state.scheduler, state.steps)]
        return facts + list(self.assume(state))


@frozen(kw_only=True)
class BoundedTheorem(Theorem):
    """A theorem about all paths of some scenarios."""

    scenarios: tuple[Scenario, ...]
    claims: Claims

    def about(self, scenarios: tuple[Scenario, ...]) -> BoundedTheorem:
        """The same, claimed of some scenarios only."""
        return attrs.evolve(self, scenarios=scenarios, bounds=labels_of(scenarios))


def labels_of(scenarios: tuple[Scenario, ...]) -> str:
    """What they are called in a table."""
    return "; ".join(scenario.label for scenario in scenarios)


def bounded(
    *scenarios: Scenario,
    mutants: tuple[str, ...],
    assumptions: tuple[str, ...] = (),
    expected: Verdict = "proved",
) -> Callable[[Claims], BoundedTheorem]:
    """Registers a theorem: the decorated function yields what it claims of one path.

    Its name and the first line of its docstring are the theorem's.
    """

    def decorate(claims: Claims) -> BoundedTheorem:
        def prove(export: ObligationSink, say: Say = be_quiet) -> Proof:
            return prove_bounded([each], export=export, say=say)[0]

        each = BoundedTheorem(
            name=claims.__name__,
            statement=first_line(claims.__doc__),
            scope="bounded",
            assumptions=assumptions,
            bounds=labels_of(scenarios),
            prove=prove,
            mutants=mutants,
            expected=expected,
            scenarios=scenarios,
            claims=claims,
        )
        register(each)
        return each

    return decorate


def prove_bounded(
    theorems: Iterable[BoundedTheorem],
    *,
    with_slow: bool = False,
    export: ObligationSink = ignore,
    say: Say = be_quiet,
) -> list[Proof]:
    """Proves theorems, each scenario once for all that share it."""
    proofs = {each.name: (each, Proof(each.name)) for each in theorems}
    scenarios = dict.fromkeys(s for each, _ in proofs.values() for s in each.scenarios)
    for scenario in scenarios:
        if scenario.is_slow and not with_slow:
            continue
        about = [
            _Open(each, proof)
            for each, proof in proofs.values()
            if scenario in each.scenarios and proof.failure is None
        ]
        if about:
            _Exploration(scenario, about, export, say).run()
    return [proof for _, proof in proofs.values()]


@define
class _Open:
    """A theorem that no path of this scenario has refuted yet."""

    theorem: BoundedTheorem
    proof: Proof


@frozen
class _Claimed:
    """A path that was taken, and what is claimed of it."""

    number: int
    condition: tuple[z3.BoolRef, ...]
    claims: list[tuple[_Open, list[Claim]]]

    def as_goal(self) -> Any:
        """All that is claimed of whoever goes this way."""
        facts = [fact for _, some in self.claims for _, fact in some]
        return implies(conjunction(*self.condition), conjunction(*facts))


@define
class _Exploration:
    """All paths of one scenario, and what its theorems claim of each."""

    scenario: Scenario
    about: list[_Open]
    export: ObligationSink
    say: Say
    executor: Executor = field(factory=Executor)
    judge: PatientSolver = field(factory=PatientSolver)
    """Knows the precondition; the executor's solver is on its way along a path."""
    open_paths: list[_Claimed] = field(factory=list)
    num_questions: int = 0
    """To the judge."""
    before: State = field(init=False)
    precondition: tuple[z3.BoolRef, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.before = make_state(self.scenario.shape, integer)
        with injected():
            facts = self.scenario.precondition(self.before)
        self.precondition = tuple(term(fact) for fact in facts)
        self.judge.add(*self.precondition)

    def run(self) -> None:
        """Explores until all paths are done, or every theorem is refuted."""
        started, sharers = time.monotonic(), list(self.about)
        reason = self._explore()
        for each in self.about:
            if reason is None:
                each.proof.looked_at.append(self.scenario.label)
            else:
                each.proof.undecided.append(f"{self.scenario.label}: {reason}")
        for each in sharers:
            each.proof.num_paths += self.executor.num_paths
            each.proof.num_queries += self.executor.num_queries + self.num_questions
            # The exploration is shared, so its time is shared out.
            each.proof.seconds += (time.monotonic() - started) / len(sharers)

    def _explore(self) -> str | None:
        """Looks at every path; returns why the solver gave up, if it did."""
        reason = None
        try:
            for path in self.executor.paths(self._setup, self._body):
                self._look_at(path)
                self.say(f"{self.scenario.label}: {self.executor.num_paths} paths")
                if not self.about:
                    break
        except UndecidedError as error:
            reason = str(error)
        self._settle()
        return reason

    def _setup(self) -> tuple[State, list[Any]]:
        return make_state(self.scenario.shape, integer), list(self.precondition)

    def _body(self, state: State) -> Any:
        with injected():
            return call(self.scenario.action, state)

    def _look_at(self, path: Path) -> None:
        check_replay(self.scenario.shape, self.scenario.action, path)
        self.open_paths.append(
            _Claimed(self.executor.num_paths, path.condition, self._claims_of(path))
        )
        # Few at first, so that what is wrong is found early.
        if len(self.open_paths) >= min(self.executor.num_paths, NUM_PATHS_AT_ONCE):
            self._settle()

    def _claims_of(self, path: Path) -> list[tuple[_Open, list[Claim]]]:
        """What is to be shown of a path, by theorem; what was assumed in these words is not."""
        run = Run(self.before, path.state, path.result)
        if isinstance(run.result, Raised):
            return [(each, list(claims_of(each.theorem, run))) for each in self.about]
        # A plain truth is none of those: the run has decided it.
        known = {fact.ast.value for fact in self.precondition} - {term(True).ast.value}
        return [
            (each, [claim for claim in each.theorem.claims(run) if _address(claim) not in known])
            for each in self.about
        ]

    def _settle(self) -> None:
        """Asks about the open paths, all at once; one by one only where that is no proof."""
        paths, self.open_paths = self.open_paths, []
        goals = [each.as_goal() for each in paths]
        if paths and self._ask(z3.Not(conjunction(*goals))) != z3.unsat:
            for each, goal in zip(paths, goals, strict=True):
                if self._ask(z3.Not(term(goal))) != z3.unsat:
                    self._settle_one_by_one(each)
            self.about = [each for each in self.about if each.proof.failure is None]
        for each in paths:
            self._close(each)

    def _settle_one_by_one(self, path: _Claimed) -> None:
        for each, claims in path.claims:
            for claim, fact in claims:
                if each.proof.failure is None:
                    self._settle_claim(path, each, claim, fact)

    def _settle_claim(self, path: _Claimed, each: _Open, claim: str, fact: Any) -> None:
        facts = [*path.condition, z3.Not(term(fact))]
        answer = self._ask(*facts)
        if answer == z3.unknown:
            reason = self.judge.reason_unknown()
            place = f"{self.scenario.label}, path {path.number}"
            each.proof.undecided.append(f"{claim}, {place}: {reason}")
        elif answer == z3.sat:
            each.proof.failure = self._explain(each.theorem, claim, [*self.precondition, *facts])

    def _close(self, path: _Claimed) -> None:
        for each, claims in path.claims:
            each.proof.num_claims += len(claims)
        parts = tuple(
            _part(each, some) for each, some in path.claims if some and each.proof.failure is None
        )
        if parts:
            name = f"{self.scenario.label}, path {path.number}"
            goal = conjunction(*[part.goal for part in parts])
            self.export(Obligation(name, self.precondition + path.condition, goal, parts))

    def _ask(self, *facts: z3.BoolRef) -> z3.CheckSatResult:
        self.num_questions += 1
        self.judge.push()
        self.judge.add(*facts)
        answer = self.judge.check()
        self.judge.pop()
        return answer

    def _explain(self, theorem: BoundedTheorem, claim: str, facts: list[z3.BoolRef]) -> Failure:
        shape, action = self.scenario.shape, self.scenario.action
        model = find_small_model(facts, wishes_of(self.before))

        def fails(make: Callable[[], State]) -> bool:
            before, after = make(), make()
            if not all(self.scenario.precondition(before)):
                return False
            run = Run(before, after, call(action, after))
            return not all(fact for _, fact in claims_of(theorem, run))

        if not fails(lambda: make_state(shape, values_of(model))):
            raise ReplayError(f"{claim}: refuted on symbols, and yet it holds on plain integers")
        start = FailingStart(shape, model, fails)
        return Failure(claim, model, explain(shape, action, model), start)


def claims_of(theorem: BoundedTheorem, run: Run) -> Iterator[Claim]:
    """What a theorem claims of a run; of one that raises, nothing but that it should not."""
    if isinstance(run.result, Raised):
        yield "no call raises", False
    else:
        yield from theorem.claims(run)


def _address(claim: Claim) -> int:
    """Where the fact is; equal terms are one."""
    address: int = term(claim[1]).ast.value
    return address


def _part(each: _Open, claims: list[Claim]) -> Part:
    goal = conjunction(*[fact for _, fact in claims])
    return Part(each.theorem.name, tuple(claim for claim, _ in claims), goal)
