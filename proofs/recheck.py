"""Every obligation once more, by a solver that shares no code with the first: cvc5.

Entry points: `Recheck`, to which obligations are exported, and `ask_cvc5`. What crosses over is
SMT-LIB text and nothing else, so a fault of z3, or of our use of it, does not cross with it.
"""

from __future__ import annotations

from attrs import define, field

from proofs.theorem import Obligation

TIMEOUT_MS = 20_000


@define
class Recheck:
    """Asks cvc5 about each obligation at once, and keeps what it does not confirm."""

    num_confirmed: int = 0
    unconfirmed: list[tuple[str, str]] = field(factory=list)
    """An obligation for which cvc5 does not say unsat, and what it says."""

    def __call__(self, obligation: Obligation) -> None:
        """Checks an obligation again."""
        answer = ask_cvc5(obligation.to_smt2())
        if answer == "unsat":
            self.num_confirmed += 1
        else:
            self.unconfirmed.append((obligation.name, answer))


def ask_cvc5(smt2: str) -> str:
    """Runs an SMT-LIB text through cvc5's parser and solver; returns its answer to `check-sat`."""
    # An extra, so it is not needed to load this file.
    import cvc5  # noqa: PLC0415

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(TIMEOUT_MS))
    solver.setLogic("ALL")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, smt2, "obligation")
    answers = []
    while not (command := parser.nextCommand()).isNull():
        answers.append(command.invoke(solver, parser.getSymbolManager()))
    return "".join(answers).strip()
