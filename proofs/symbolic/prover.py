"""Obligations in the middle of a run: what must hold where, for every path of ordinary Python.

Entry point: `Prover.prove`. Unlike in `proofs.symbolic.executor`, facts may be quantified here, so
a solver may say `unknown`: at a fork both sides are then taken, and an obligation is then
undetermined, never proved.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import z3
from attrs import define, field, frozen

from proofs.symbolic.patience import ask_afresh, configure
from proofs.symbolic.values import CURRENT, SymBool, SymInt, term
from proofs.theorem import Obligation

# Quantifiers are instantiated by their patterns only, so that answers come fast and alike.
OPTIONS = {"auto_config": False, "mbqi": False}
IS_INCOMPLETE = "incomplete quantifiers"
"""Of an answer that no patience changes: every pattern has had its turn."""


class PathDoneError(Exception):
    """Nothing is left to show on this path."""


class FrameError(Exception):
    """A loop changes what the loop rule was told that it keeps; nothing is proved then."""


class _UnprovedError(Exception):
    """A goal was not proved, so the rest does not matter."""


@frozen
class Discharged:
    """An obligation, and what the solver made of it."""

    obligation: Obligation
    place: str
    """Where in the run it came up."""
    clause: str
    """What is claimed."""
    answer: z3.CheckSatResult
    """Of the hypotheses and the negated goal: unsat is proved, `unknown` is not."""

    @property
    def is_proved(self) -> bool:
        """Whether the goal follows."""
        return bool(self.answer == z3.unsat)


@define
class _Decision:
    taken: bool
    is_other_open: bool


@define
class Prover:
    """Runs a body along every path and discharges what it obliges on the way."""

    branch_limit: int = 15_000
    """What the solver may spend on a fork, in its own units, which no machine changes."""
    limit: int = 6_000_000
    """The same for an obligation."""
    discharged: list[Discharged] = field(factory=list)
    num_paths: int = 0
    num_queries: int = 0
    seconds: float = 0.0
    place: str = ""
    """Where the run is; obligations are filed under it."""

    _facts: list[z3.BoolRef] = field(factory=list)
    _num_told: int = 0
    """How many of the facts the solver knows; it is told the others before it is asked."""
    _trail: list[_Decision] = field(factory=list)
    _depth: int = 0
    _num_names: int = 0
    _first_arrivals: dict[str, tuple[tuple[bool, ...], tuple[Any, ...]]] = field(factory=dict)
    _solver: z3.Solver = field(factory=z3.SimpleSolver)
    _reason: str = ""
    """Why the last answer is not known."""

    def prove(self, body: Callable[[], None]) -> None:
        """Runs `body` once for each path; it assumes, forks and obliges through this prover.

        The first goal that is not proved ends the proof.
        """
        start = time.perf_counter()
        configure(self._solver, self.limit, OPTIONS)
        CURRENT.brancher = self
        try:
            with contextlib.suppress(_UnprovedError):
                self._run(body)
                while self._next_path():
                    self._run(body)
        finally:
            CURRENT.brancher = None
            self.seconds += time.perf_counter() - start

    @property
    def unproved(self) -> Discharged | None:
        """The obligation that the solver did not prove, if there is one."""
        return next((each for each in self.discharged if not each.is_proved), None)

    def branch(self, condition: z3.BoolRef) -> bool:
        """Takes a side of a decision; one that the solver cannot rule out is taken, too."""
        condition = z3.simplify(condition)
        if z3.is_true(condition) or z3.is_false(condition):
            return bool(z3.is_true(condition))
        place, self._depth = self._depth, self._depth + 1
        if place == len(self._trail):
            self._trail.append(self._decide(condition))
        taken = self._trail[place].taken
        self.assume(condition if taken else z3.Not(condition))
        return taken

    def assume(self, *facts: Any) -> None:
        """Takes facts for granted on the rest of this path."""
        self._facts += [term(fact) for fact in facts]

    def oblige(self, clause: str, goal: Any) -> None:
        """Discharges a goal, and goes on from there: if it is not proved, nothing is."""
        self.oblige_all(lambda: {clause: goal})
        self.assume(goal)

    def oblige_all(self, make_claims: Callable[[], Mapping[str, Any]]) -> None:
        """Discharges named goals, unless a path came through here before and did it."""
        if self._depth < len(self._trail):
            return
        known = {fact.ast.value for fact in self._facts}
        for clause, goal in make_claims().items():
            goal_term = term(goal)
            if goal_term.ast.value in known:
                # A run left it alone.
                continue
            answer = self._ask_patiently(z3.Not(goal_term))
            obligation = Obligation(f"{self.place}: {clause}", tuple(self._facts), goal_term)
            self.discharged.append(Discharged(obligation, self.place, clause, answer))
            if answer != z3.unsat:
                raise _UnprovedError

    def rename(self, hint: str, value: Any) -> Any:
        """Returns a constant that stands for a term, so that patterns hold constants only."""
        constant = self.fresh(hint, value.sort())
        self.assume(constant == value)
        return constant

    def name_for_all_paths(self, name: str, value: Any) -> Any:
        """Gives an integer a name that does not depend on the path; at most once per path."""
        constant = z3.Int(name)
        self.assume(constant == term(value))
        return SymInt(constant)

    def fresh(self, hint: str, sort: z3.SortRef) -> Any:
        """Returns a constant of which nothing is known."""
        self._num_names += 1
        return z3.Const(f"{hint}!{self._num_names}", sort)

    def any_integer(self, hint: str) -> SymInt:
        """Returns any integer."""
        return SymInt(self.fresh(hint, z3.IntSort()))

    def any_truth(self, hint: str) -> bool:
        """Takes both sides of a truth of which nothing is known."""
        return bool(SymBool(self.fresh(hint, z3.BoolSort())))

    def forget(self, place: str, kept: tuple[Any, ...]) -> None:
        """Forgets all facts; only the first path that comes here goes on, since all look alike.

        They do if the terms that are kept from before are the same on each, which is checked.
        """
        decisions = tuple(decision.taken for decision in self._trail[: self._depth])
        first, same = self._first_arrivals.setdefault(place, (decisions, kept))
        if not (len(kept) == len(same) and all(map(z3.eq, kept, same))):
            raise FrameError(f"paths come to {place} with different terms; let the loop write them")
        if first != decisions:
            raise PathDoneError
        self._drop_facts()

    def _run(self, body: Callable[[], None]) -> None:
        self._depth = self._num_names = 0
        self._drop_facts()
        with contextlib.suppress(PathDoneError):
            body()
        self.num_paths += 1

    def _drop_facts(self) -> None:
        self._facts = []
        if self._num_told:
            self._solver.reset()
            self._num_told = 0

    def _decide(self, condition: z3.BoolRef) -> _Decision:
        if self._ask(condition, self.branch_limit) == z3.unsat:
            return _Decision(taken=False, is_other_open=False)
        cannot_fail = self._ask(z3.Not(condition), self.branch_limit) == z3.unsat
        return _Decision(taken=True, is_other_open=not cannot_fail)

    def _ask_patiently(self, question: z3.BoolRef) -> z3.CheckSatResult:
        """Asks, and asks once more afresh if the limit came first: what a question costs varies."""
        answer = self._ask(question, self.limit)
        if answer != z3.unknown or IS_INCOMPLETE in self._reason:
            return answer
        self.num_queries += 1
        return ask_afresh([*self._facts, question], OPTIONS, self.limit).verdict

    def _ask(self, question: z3.BoolRef, limit: int) -> z3.CheckSatResult:
        self.num_queries += 1
        self._solver.add(*self._facts[self._num_told :])
        self._num_told = len(self._facts)
        self._solver.set("rlimit", limit)
        self._solver.push()
        self._solver.add(question)
        answer = self._solver.check()
        self._reason = self._solver.reason_unknown() if answer == z3.unknown else ""
        self._solver.pop()
        return answer

    def _next_path(self) -> bool:
        while self._trail and not self._trail[-1].is_other_open:
            self._trail.pop()
        if not self._trail:
            return False
        self._trail[-1] = _Decision(not self._trail[-1].taken, is_other_open=False)
        return True
