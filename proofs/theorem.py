"""A theorem: what it says, how far it reaches, how it is proved, and what would break it.

Entry points: `THEOREMS`, the registry, `theorem`, which registers a proof, and `Proof`, what came
out. A verdict has three values; what a solver cannot decide is undetermined, never proved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import z3
from attrs import define, field, frozen

from proofs.reach import FailingStart

Say = Callable[[str], None]
"""Tells somebody what is being done."""


def be_quiet(text: str) -> None:
    """Says nothing about progress."""


Scope = Literal["bounded", "unbounded"]
Verdict = Literal["proved", "refuted", "undetermined"]


@frozen
class Part:
    """What one theorem claims in an obligation."""

    theorem: str
    claims: tuple[str, ...]
    goal: z3.BoolRef


@frozen
class Obligation:
    """One thing to show: the hypotheses imply the goal."""

    name: str
    hypotheses: tuple[z3.BoolRef, ...]
    goal: z3.BoolRef
    parts: tuple[Part, ...] = ()
    """The goal by theorem, where it is known who claims it."""

    def to_smt2(self) -> str:
        """The obligation as SMT-LIB 2: unsatisfiable exactly if it holds."""
        solver = z3.Solver()
        solver.add(*self.hypotheses, z3.Not(self.goal))
        text: str = solver.to_smt2()
        return text


@frozen
class Failure:
    """An obligation that does not hold."""

    obligation: str
    model: z3.ModelRef
    """Numbers for which the hypotheses hold and the goal does not."""
    lines: tuple[str, ...] = ()
    """The failing state in small numbers, and how the spec comes to it, rule by rule."""
    start: FailingStart | None = None
    """The failing state, to look for a run to it; None if the lines are a run already."""


@define
class Proof:
    """What came of proving a theorem; whoever proves it fills this in."""

    name: str
    num_claims: int = 0
    """What was shown; of each path, all claims are one obligation."""
    num_paths: int = 0
    num_queries: int = 0
    seconds: float = 0.0
    looked_at: list[str] = field(factory=list)
    """Of a bounded theorem: the states whose paths were all taken."""
    failure: Failure | None = None
    undecided: list[str] = field(factory=list)
    """Obligations on which the solver gave up, and why."""
    say: Say = field(default=be_quiet, eq=False, repr=False)
    """Is told what takes long."""

    @property
    def verdict(self) -> Verdict:
        """Refuted by a model; undetermined if anything is open, or if nothing was obliged."""
        if self.failure is not None:
            return "refuted"
        return "undetermined" if self.undecided or not self.num_claims else "proved"


ObligationSink = Callable[[Obligation], None]
"""Takes every obligation that is discharged, so that somebody else may check it again."""


def ignore(obligation: Obligation) -> None:
    """Lets an obligation go."""


class Prove(Protocol):
    """How a theorem is proved."""

    def __call__(self, export: ObligationSink, say: Say = be_quiet) -> Proof:
        """Proves it; hands on each obligation, and says what it is doing."""


@frozen(kw_only=True)
class Theorem:
    """What is claimed, for which states, and what must break it."""

    name: str
    statement: str
    """One sentence."""
    scope: Scope
    assumptions: tuple[str, ...]
    bounds: str
    """Of a bounded theorem: the states that it is about, slow ones included."""
    prove: Prove
    mutants: tuple[str, ...]
    """Names in `proofs.mutants.MUTANTS`; each must be refuted."""
    expected: Verdict = "proved"
    """"refuted" for a claim that people make and that is wrong; its model is the point."""
    is_slow: bool = False


THEOREMS: dict[str, Theorem] = {}
"""By name, in the order of registration; import `proofs.theorems` to fill it."""


def register(each: Theorem) -> Theorem:
    """Puts a theorem into the registry; refuses duplicate names and missing statements."""
    assert each.name not in THEOREMS, f"theorem {each.name} exists; choose another name"
    assert each.statement, f"theorem {each.name} has no statement; write its docstring"
    assert each.mutants or each.expected == "refuted", (
        f"theorem {each.name} names no mutant; say what would break it"
    )
    THEOREMS[each.name] = each
    return each


def unbounded(
    *, mutants: tuple[str, ...], assumptions: tuple[str, ...] = (), is_slow: bool = False
) -> Callable[[Callable[[Proof, ObligationSink], None]], Theorem]:
    """Registers a proof for any number of requests; it fills in a `Proof`, given where to export.

    The function's name and the first line of its docstring are the theorem's.
    """

    def decorate(run: Callable[[Proof, ObligationSink], None]) -> Theorem:
        name = run.__name__

        def prove(export: ObligationSink, say: Say = be_quiet) -> Proof:
            proof = Proof(name, say=say)
            run(proof, export)
            return proof

        return register(
            Theorem(
                name=name,
                statement=first_line(run.__doc__),
                scope="unbounded",
                assumptions=assumptions,
                bounds="any number of requests, any integers",
                prove=prove,
                mutants=mutants,
                is_slow=is_slow,
            )
        )

    return decorate


def first_line(docstring: str | None) -> str:
    """The first line of a docstring; empty if there is none."""
    return (docstring or "").partition("\n")[0]
