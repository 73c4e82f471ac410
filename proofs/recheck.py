"""Every obligation once more, by a solver that shares no code with the first: cvc5.

Entry points: `Recheck`, to which obligations are exported, and `ask_cvc5`. What crosses over is
SMT-LIB text and nothing else, so a fault of z3, or of our use of it, does not cross with it. Other
processes ask, so that cvc5 checks what is proved while z3 proves the next.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import takewhile
from typing import Self

import z3
from attrs import define, field, frozen

from proofs.theorem import Obligation

TIMEOUT_MS = 20_000
NUM_PROCESSES = 2
NUM_PATHS_AT_ONCE = 25
"""How many paths one question is about; five times as fast as a question for each."""


@frozen
class _Question:
    """Something that must be unsatisfiable, given what a text assumes."""

    about: tuple[Obligation, ...]
    """Who holds if it is; if not, each of them is asked about by itself."""
    formula: z3.BoolRef


@define
class Recheck:
    """Asks cvc5 about each obligation, and keeps what it does not confirm.

    It is complete when its `with` block is left.
    """

    num_confirmed: int = 0
    unconfirmed: list[tuple[str, str]] = field(factory=list)
    """An obligation for which cvc5 does not say unsat, and what it says."""
    _open: list[Obligation] = field(factory=list)
    """Those that will share a text."""
    _asked: list[tuple[list[_Question], Future[list[str]]]] = field(factory=list)
    _pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        # A forked process would inherit the first solver.
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(NUM_PROCESSES, spawn, initializer=_end_on_interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        assert self._pool is not None, "it was entered"
        try:
            if kind is None:
                self._finish()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, obligation: Obligation) -> None:
        """Takes an obligation to be checked again."""
        if self._open and not _may_share(self._open, obligation):
            self._send()
        self._open.append(obligation)

    def _send(self) -> None:
        obligations, self._open = self._open, []
        shared = _shared_hypotheses(obligations)
        if all(len(each.hypotheses) == len(shared) for each in obligations):
            questions = [_Question((each,), z3.Not(each.goal)) for each in obligations]
        else:
            exceptions = [
                z3.And(*each.hypotheses[len(shared) :], z3.Not(each.goal)) for each in obligations
            ]
            questions = [_Question(tuple(obligations), z3.Or(*exceptions))]
        self._asked.append((questions, self._submit(shared, questions)))

    def _submit(
        self, hypotheses: Sequence[z3.BoolRef], questions: list[_Question]
    ) -> Future[list[str]]:
        assert self._pool is not None, "obligations are taken inside of the `with` block"
        text = to_smt2(hypotheses, [each.formula for each in questions])
        return self._pool.submit(ask_cvc5, text)

    def _finish(self) -> None:
        """Waits for all answers, and files them in the order of the questions."""
        if self._open:
            self._send()
        for questions, future in self._asked:
            for question, answer in zip(questions, future.result(), strict=True):
                self._file(question, answer)

    def _file(self, question: _Question, answer: str) -> None:
        if answer == "unsat":
            self.num_confirmed += len(question.about)
        else:
            for each in question.about:
                self._file_claim_by_claim(each)

    def _file_claim_by_claim(self, obligation: Obligation) -> None:
        """Asks about one obligation; what is too hard together may be easy claim by claim."""
        questions = [_Question((obligation,), z3.Not(each)) for each in _claims_in(obligation.goal)]
        answers = set(self._submit(obligation.hypotheses, questions).result()) - {"unsat"}
        if answers:
            answer = "sat" if "sat" in answers else min(answers)
            self.unconfirmed.append((obligation.name, answer))
        else:
            self.num_confirmed += 1


def _claims_in(goal: z3.BoolRef) -> list[z3.BoolRef]:
    if not z3.is_and(goal):
        return [goal]
    return [claim for each in goal.children() for claim in _claims_in(each)]


def _may_share(some: list[Obligation], other: Obligation) -> bool:
    """Whether an obligation goes into a text with others: it assumes the same, or is a path more.

    Without quantifiers many paths are one question; with them, each goal is asked by itself.
    """
    first = some[0].hypotheses
    if len(_shared_hypotheses([some[0], other])) == len(first) == len(other.hypotheses):
        return _shared_hypotheses(some) == list(first)
    is_quantified = any(map(z3.is_quantifier, (*first, *other.hypotheses)))
    return not is_quantified and len(some) < NUM_PATHS_AT_ONCE


def _shared_hypotheses(some: Sequence[Obligation]) -> list[z3.BoolRef]:
    """The first hypotheses, as far as they are the same in all."""
    columns = zip(*[each.hypotheses for each in some], strict=False)
    same = takewhile(lambda column: all(column[0].eq(each) for each in column), columns)
    return [column[0] for column in same]


def to_smt2(hypotheses: Sequence[z3.BoolRef], questions: Sequence[z3.BoolRef]) -> str:
    """Writes SMT-LIB 2: the hypotheses, and a `check-sat` for each question."""
    asserted = [*hypotheses, *questions]
    asts = [each.as_ast() for each in asserted]
    others = (z3.Ast * (len(asts) - 1))(*asts[:-1])
    context = z3.main_ctx().ref()
    whole = z3.Z3_benchmark_to_smtlib_string(
        context, "", "", "unknown", "", len(others), others, asts[-1]
    )
    head, *asserts = whole.replace("(check-sat)", "").split("\n(assert")
    if len(asserts) != len(asserted):
        raise ValueError(f"z3 writes {len(asserts)} assertions of {len(asserted)}; nothing is sent")
    given, asked = asserts[: len(hypotheses)], asserts[len(hypotheses) :]
    lines = [head, *[f"(assert{each}" for each in given]]
    lines += [f"(push 1)\n(assert{each}\n(check-sat)\n(pop 1)" for each in asked]
    return "\n".join(lines)


def ask_cvc5(smt2: str) -> list[str]:
    """Runs an SMT-LIB text through cvc5's parser and solver; returns its answers, in order."""
    # An extra, so it is not needed to load this file.
    import cvc5  # noqa: PLC0415

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(TIMEOUT_MS))
    solver.setLogic("ALL")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, smt2, "obligation")
    answers = []
    while not (command := parser.nextCommand()).isNull():
        answers.append(command.invoke(solver, parser.getSymbolManager()).strip())
    return [answer for answer in answers if answer]


def _end_on_interrupt() -> None:
    """Lets Ctrl-C end a process at once and silently; who started it says what there is to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
