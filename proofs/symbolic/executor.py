"""Every feasible path of a piece of ordinary Python, and what holds at the end of each.

Entry point: `Executor.paths`. The code is run again for each path, depth first; a prefix of
decisions is replayed, the solver's stack follows it, and a cached model tells one side of a new
decision for free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import z3
from attrs import define, frozen

from proofs.symbolic.patience import PatientSolver
from proofs.symbolic.values import CURRENT, term

State = TypeVar("State")
Result = TypeVar("Result")


class UndecidedError(Exception):
    """The solver could not say whether a side of a decision is feasible; nothing is proved then."""


class UnsteadyError(RuntimeError):
    """The code asked something else when it was run again, so its paths cannot be told apart."""


class VacuousError(ValueError):
    """The precondition has no model, so whatever is claimed would hold of nothing."""


@frozen
class Path:
    """One way through the code."""

    state: Any
    """After the run."""
    result: Any
    """What the code returned."""
    decisions: tuple[bool, ...]
    condition: tuple[z3.BoolRef, ...]
    """What was decided; with the precondition, exactly the starts that go this way."""
    model: z3.ModelRef
    """A start that goes this way."""


@define
class _Decision:
    asked: z3.BoolRef
    """As the code put it."""
    taken: bool
    condition: z3.BoolRef
    """As taken."""
    other: z3.BoolRef | None
    """The side still to be explored; None if there is none."""
    other_model: z3.ModelRef | None
    is_pushed: bool


class _Simplified:
    """A condition, in short; it is kept itself, so that no other gets its address."""

    __slots__ = ("condition", "simple", "truth")

    def __init__(self, condition: z3.BoolRef) -> None:
        self.condition = condition
        self.simple: z3.BoolRef = z3.simplify(condition)
        is_decided = z3.is_true(self.simple) or z3.is_false(self.simple)
        self.truth: bool | None = z3.is_true(self.simple) if is_decided else None


class Executor:
    """Explores the paths of one piece of code from one symbolic start."""

    def __init__(self) -> None:
        self.solver = PatientSolver()
        self.num_paths = 0
        self.num_queries = 0
        self._trail: list[_Decision] = []
        self._depth = 0
        self._model: z3.ModelRef | None = None
        self._simplified: dict[int, _Simplified] = {}

    def paths(
        self,
        setup: Callable[[], tuple[State, list[Any]]],
        body: Callable[[State], Result],
    ) -> Iterator[Path]:
        """Yields every feasible path; `setup` builds the start and its precondition, always alike.

        Raises `UndecidedError` if the solver gives up, and `VacuousError` if no start satisfies the
        precondition.
        """
        is_first, is_done = True, False
        while not is_done:
            self._depth = 0
            state, precondition = setup()
            if is_first:
                self._begin(precondition)
                is_first = False
            CURRENT.brancher = self
            try:
                result = body(state)
            finally:
                CURRENT.brancher = None
            self.num_paths += 1
            yield self._path(state, result)
            is_done = not self._next_path()

    def check(self, *assumptions: z3.BoolRef) -> z3.CheckSatResult:
        """Asks the solver on the current path."""
        self.num_queries += 1
        return self.solver.check(*assumptions)

    def branch(self, condition: z3.BoolRef) -> bool:
        """Takes a side of a decision: the replayed one, the only feasible one, or the model's."""
        known = self._simplify(condition)
        if known.truth is not None:
            return known.truth
        place, self._depth = self._depth, self._depth + 1
        if place < len(self._trail):
            return self._replay(self._trail[place], condition)
        return self._decide(condition, known.simple)

    def _simplify(self, condition: z3.BoolRef) -> _Simplified:
        """Simplifies, once for all paths."""
        address = condition.ast.value
        if address not in self._simplified:
            self._simplified[address] = _Simplified(condition)
        return self._simplified[address]

    def _replay(self, decision: _Decision, asked: z3.BoolRef) -> bool:
        # Simplified, equal terms may look different.
        if not asked.eq(decision.asked):
            raise UnsteadyError(f"asked is {asked}, in the run before it was {decision.asked}")
        return decision.taken

    def _begin(self, precondition: list[Any]) -> None:
        self.solver.add(*[term(fact) for fact in precondition])
        answer = self.check()
        if answer == z3.unknown:
            raise UndecidedError(f"{self.solver.reason_unknown()} at the precondition")
        if answer == z3.unsat:
            raise VacuousError("no start satisfies the precondition, so everything would hold")
        self._model = self.solver.model()

    def _decide(self, asked: z3.BoolRef, condition: z3.BoolRef) -> bool:
        model = self._current_model()
        taken = bool(z3.is_true(model.eval(condition, model_completion=True)))
        side, other = (condition, z3.Not(condition)) if taken else (z3.Not(condition), condition)
        answer = self.check(other)
        if answer == z3.unknown:
            raise UndecidedError(f"{self.solver.reason_unknown()} at {condition}")
        is_forced = answer == z3.unsat
        other_model = None if is_forced else self.solver.model()
        if not is_forced:
            self.solver.push()
            self.solver.add(side)
        still_open = None if is_forced else other
        decision = _Decision(asked, taken, side, still_open, other_model, not is_forced)
        self._trail.append(decision)
        return taken

    def _current_model(self) -> z3.ModelRef:
        if self._model is None:
            if self.check() != z3.sat:
                raise UndecidedError(f"{self.solver.reason_unknown()} on a path taken before")
            self._model = self.solver.model()
        return self._model

    def _path(self, state: Any, result: Any) -> Path:
        return Path(
            state,
            result,
            tuple(decision.taken for decision in self._trail),
            tuple(decision.condition for decision in self._trail),
            self._current_model(),
        )

    def _next_path(self) -> bool:
        """Takes the other side of the last decision that has one open; False if there is none."""
        while self._trail and self._trail[-1].other is None:
            if self._trail.pop().is_pushed:
                self.solver.pop()
        if not self._trail:
            return False
        last = self._trail[-1]
        assert last.other is not None, "the loop stopped there"
        self.solver.pop()
        self.solver.push()
        self.solver.add(last.other)
        last.taken, last.condition, last.other = not last.taken, last.other, None
        self._model, last.other_model = last.other_model, None
        return True
