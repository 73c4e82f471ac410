"""A solver for many short questions, and a second try where it gives up.

Entry points: `PatientSolver`, and `ask_afresh`, the second try. What a question costs depends on
what the process has asked before: z3 numbers its terms, and goes through them by their numbers. So
the second try is in a context that holds nothing but the question, where it costs the same in every
process, and may spend more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import z3
from attrs import frozen

LIMIT = 20_000_000
"""What the solver may spend on one question, in its own units, which no machine changes."""
AFRESH = 5
"""How many times as much a second try may spend."""
OLD_ARITHMETIC = {"arith.solver": 2}
"""The older of z3's two ways to do arithmetic: twice as fast on most of our questions."""


@frozen
class Answer:
    """What came of the second try."""

    verdict: z3.CheckSatResult
    model: z3.ModelRef | None
    """Of terms as they were asked; None unless there is one."""
    reason: str
    """Why it is not known, if it is not."""


def ask_afresh(facts: Iterable[z3.BoolRef], options: Mapping[str, object], limit: int) -> Answer:
    """Asks whether facts can be true together, where nothing has been asked before.

    `limit` is what the first try was allowed to spend.
    """
    context = z3.Context()
    solver = z3.SimpleSolver(ctx=context)
    configure(solver, AFRESH * limit, options)
    solver.add(*[fact.translate(context) for fact in facts])
    verdict = solver.check()
    model = solver.model().translate(z3.main_ctx()) if verdict == z3.sat else None
    reason = f"given up twice: {solver.reason_unknown()}" if verdict == z3.unknown else ""
    return Answer(verdict, model, reason)


def configure(solver: z3.Solver, limit: int, options: Mapping[str, object]) -> None:
    """Says what a solver may spend, and how it works."""
    solver.set("rlimit", limit)
    # Ctrl-C is Python's: z3 would answer unknown, and nobody would stop.
    solver.set("ctrl_c", False)
    for name, value in options.items():
        solver.set(name, value)


class PatientSolver(z3.Solver):  # type: ignore[misc]
    """A solver for many short questions about linear integers."""

    def __init__(self) -> None:
        context = z3.main_ctx()
        super().__init__(z3.Z3_mk_simple_solver(context.ref()), context)
        configure(self, LIMIT, OLD_ARITHMETIC)
        self._second: Answer | None = None

    def check(self, *assumptions: z3.BoolRef) -> z3.CheckSatResult:
        """Asks, and asks again if it gives up: afresh, and with the newer arithmetic."""
        first: z3.CheckSatResult = super().check(*assumptions)
        self._second = None
        if first != z3.unknown:
            return first
        self._second = ask_afresh([*self.assertions(), *assumptions], {}, LIMIT)
        return self._second.verdict

    def model(self) -> z3.ModelRef:
        """What makes the facts true that were asked about last."""
        return super().model() if self._second is None else self._second.model

    def reason_unknown(self) -> str:
        """Why it gave up."""
        return super().reason_unknown() if self._second is None else self._second.reason
