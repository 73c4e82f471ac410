"""Proofs about states with a bounded number of requests and any integers.

Entry points: `bounded`, which registers a theorem from its claims, and `prove_bounded`, which
proves several at once: theorems that share a scenario share its paths.

Trust: on every path, a start that goes this way is built from plain integers and run through the
unchanged spec; decisions, answers and every number must come out as the symbols say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import z3
from attrs import define, field, frozen

from proofs.counterexample import explain, find_small_model
from proofs.invariant import instances
from proofs.replay import ReplayError, check_replay
from proofs.symbolic.executor import Executor, Path, UndecidedError
from proofs.symbolic.state import Shape, State, injected, make_state, values_of
from proofs.symbolic.values import conjunction, integer, term
from proofs.theorem import (
    Failure,
    Obligation,
    ObligationSink,
    Proof,
    Theorem,
    Verdict,
    first_line,
    ignore,
    register,
)

Action = Callable[[State], Any]
Claim = tuple[str, Any]
"""What is claimed, and whether it holds: a plain or a symbolic truth."""


@frozen
class Run:
    """One path of an action, for claims to look at."""

    before: State
    after: State
    result: Any
    """What the action returned."""


Claims = Callable[[Run], Iterator[Claim]]
Assumption = Callable[[State], Iterator[Any]]


def be_quiet(text: str) -> None:
    """Says nothing about progress."""


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

    @property
    def label(self) -> str:
        """What it is called in a table."""
        extra = "" if self.assume is nothing_more else f", {first_line(self.assume.__doc__)}"
        return self.shape.label + extra + (" (slow)" if self.is_slow else "")

    def precondition(self, state: State) -> list[Any]:
        """The invariant, and what the scenario assumes beside it."""
        facts = [fact for _, fact in instances(state.scheduler, state.steps)]
        return facts + list(self.assume(state))


@frozen(kw_only=True)
class BoundedTheorem(Theorem):
    """A theorem about all paths of some scenarios."""

    scenarios: tuple[Scenario, ...]
    claims: Claims


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
        def prove(export: ObligationSink) -> Proof:
            return prove_bounded([each], export=export)[0]

        each = BoundedTheorem(
            name=claims.__name__,
            statement=first_line(claims.__doc__),
            scope="bounded",
            assumptions=assumptions,
            bounds="; ".join(scenario.label for scenario in scenarios),
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
    say: Callable[[str], None] = be_quiet,
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


@define
class _Exploration:
    """All paths of one scenario, and what its theorems claim of each."""

    scenario: Scenario
    about: list[_Open]
    export: ObligationSink
    say: Callable[[str], None]
    executor: Executor = field(factory=Executor)
    before: State = field(init=False)
    precondition: tuple[z3.BoolRef, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.before = make_state(self.scenario.shape, integer)
        with injected():
            facts = self.scenario.precondition(self.before)
        self.precondition = tuple(term(fact) for fact in facts)

    def run(self) -> None:
        """Explores until all paths are done, or every theorem is refuted."""
        started, sharers = time.monotonic(), list(self.about)
        try:
            for path in self.executor.paths(self._setup, self._body):
                self._look_at(path)
                self.say(f"{self.scenario.label}: {self.executor.num_paths} paths")
                if not self.about:
                    break
        except UndecidedError as error:
            for each in self.about:
                each.proof.undecided.append(f"{self.scenario.label}: {error}")
        else:
            for each in self.about:
                each.proof.looked_at.append(self.scenario.label)
        for each in sharers:
            each.proof.num_paths += self.executor.num_paths
            each.proof.num_queries += self.executor.num_queries
            # The exploration is shared, so its time is shared out.
            each.proof.seconds += (time.monotonic() - started) / len(sharers)

    def _setup(self) -> tuple[State, list[Any]]:
        return make_state(self.scenario.shape, integer), list(self.precondition)

    def _body(self, state: State) -> Any:
        with injected():
            return self.scenario.action(state)

    def _look_at(self, path: Path) -> None:
        check_replay(self.scenario.shape, self.scenario.action, path)
        run = Run(self.before, path.state, path.result)
        claims = [(each, list(each.theorem.claims(run))) for each in self.about]
        # Mostly one question answers for all theorems.
        every_fact = conjunction(*[fact for _, some in claims for _, fact in some])
        if self.executor.check(z3.Not(every_fact)) != z3.unsat:
            for each, some in claims:
                self._settle_one_by_one(each, some)
            self.about = [each for each in self.about if each.proof.failure is None]
        proved = [fact for each, some in claims if each.proof.failure is None for _, fact in some]
        for each, some in claims:
            each.proof.num_obligations += len(some)
        if proved:
            name = f"{self.scenario.label}, path {self.executor.num_paths}"
            facts = self.precondition + path.condition
            self.export(Obligation(name, facts, conjunction(*proved)))

    def _settle_one_by_one(self, each: _Open, claims: list[Claim]) -> None:
        for claim, fact in claims:
            answer = self.executor.check(z3.Not(term(fact)))
            if answer == z3.unknown:
                reason = self.executor.solver.reason_unknown()
                place = f"{self.scenario.label}, path {self.executor.num_paths}"
                each.proof.undecided.append(f"{claim}, {place}: {reason}")
            elif answer == z3.sat:
                each.proof.failure = self._explain(each.theorem, claim, fact)
                return

    def _explain(self, theorem: BoundedTheorem, claim: str, fact: Any) -> Failure:
        shape, action = self.scenario.shape, self.scenario.action
        model = find_small_model([*self.executor.solver.assertions(), z3.Not(term(fact))])
        before, after = (make_state(shape, values_of(model)) for _ in range(2))
        plain = dict(theorem.claims(Run(before, after, action(after))))
        if plain.get(claim, True):
            raise ReplayError(f"{claim}: refuted on symbols, and yet it holds on plain integers")
        return Failure(claim, model, explain(shape, action, model))
