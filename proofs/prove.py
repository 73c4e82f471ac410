"""Proving a choice of theorems, and what came of it.

Entry points: `select_theorems`, `prove_theorems`, and `Outcome`.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import attrs
from attrs import frozen

import proofs.theorems  # noqa: F401  (fills the registry)
from proofs.bounded import BoundedTheorem, prove_bounded
from proofs.reach import Way, find_way
from proofs.theorem import (
    THEOREMS,
    Obligation,
    ObligationSink,
    Part,
    Proof,
    Say,
    Theorem,
    be_quiet,
    ignore,
)

Verdict = Literal["holds", "violated", "undetermined"]


CORE = (
    "the_initial_state_satisfies_the_invariant",
    "add_request_preserves_the_invariant",
    "schedule_preserves_the_invariant",
    "update_from_output_preserves_the_invariant",
    "abort_preserves_the_invariant",
    "budgets_are_kept",
    "nobody_overtakes",
    "no_admission_after_preemption",
    "any_number_blocks_are_never_used_twice",
)
"""The heart of it, in a quarter of a minute."""


class UnknownTheoremError(ValueError):
    """A name that no theorem has; the message lists those there are."""


@frozen
class Outcome:
    """What came of one theorem."""

    theorem: Theorem
    proof: Proof
    way: Way | None = None
    """Of a refuted theorem: what came of looking for a run to the state that refutes it.

    None if the counterexample is a run already.
    """

    @property
    def verdict(self) -> Verdict:
        """Whether it came out as the theorem says: a claim known to be wrong must be refuted."""
        if self.proof.verdict == self.theorem.expected:
            return "holds"
        return "undetermined" if self.proof.verdict == "undetermined" else "violated"

    def to_json(self) -> dict[str, Any]:
        """Plain data for machines."""
        theorem, proof = self.theorem, self.proof
        failure = proof.failure
        return {
            "name": theorem.name,
            "statement": theorem.statement,
            "scope": theorem.scope,
            "bounds": theorem.bounds,
            "looked_at": list(proof.looked_at),
            "assumptions": list(theorem.assumptions),
            "expected": theorem.expected,
            "verdict": proof.verdict,
            "claims": proof.num_claims,
            "paths": proof.num_paths,
            "queries": proof.num_queries,
            "seconds": round(proof.seconds, 3),
            "failed_obligation": None if failure is None else failure.obligation,
            "counterexample": [] if failure is None else list(failure.lines),
            "way": None if self.way is None else self.way.kind,
            "way_says": None if self.way is None else self.way.sentence,
            "run": [] if self.way is None else list(self.way.run),
            "undecided": list(proof.undecided),
        }


def select_theorems(names: Sequence[str], *, with_slow: bool) -> list[Theorem]:
    """The named theorems, or else all; raises `UnknownTheoremError`.

    A slow theorem is left out unless it is named, or asked for.
    """
    for name in names:
        if name not in THEOREMS:
            near = difflib.get_close_matches(name, THEOREMS, n=3)
            raise UnknownTheoremError(
                f"no theorem is called {name!r}; choose from {', '.join(near or sorted(THEOREMS))}"
            )
    if names:
        return [THEOREMS[name] for name in dict.fromkeys(names)]
    return [each for each in THEOREMS.values() if with_slow or not each.is_slow]


def select_core() -> list[Theorem]:
    """The theorems of `CORE`, about their smaller states."""
    chosen = [THEOREMS[name] for name in CORE]
    return [
        each.about(tuple(some for some in each.scenarios if some.is_core))
        if isinstance(each, BoundedTheorem)
        else each
        for each in chosen
    ]


def prove_theorems(
    theorems: Sequence[Theorem],
    *,
    with_slow: bool = False,
    export: ObligationSink = ignore,
    say: Say = be_quiet,
) -> Iterator[Outcome]:
    """Proves theorems: the bounded ones together, since they share paths, then each other one."""
    about = [each for each in theorems if isinstance(each, BoundedTheorem)]
    proved = prove_bounded(about, with_slow=with_slow, export=export, say=say)
    for bounded, proof in zip(about, proved, strict=True):
        yield Outcome(bounded, proof, _look_for_run(proof, say))
    for theorem in theorems:
        if not isinstance(theorem, BoundedTheorem):
            say(theorem.name)
            started = time.monotonic()
            proof = theorem.prove(partial(_hand_on, export, theorem.name), say)
            proof.seconds = time.monotonic() - started
            yield Outcome(theorem, proof)


def _look_for_run(proof: Proof, say: Say) -> Way | None:
    if proof.failure is None or proof.failure.start is None:
        return None
    say(f"{proof.name}: looking for a run to the state that refutes it")
    return find_way(proof.failure.start)


def _hand_on(export: ObligationSink, theorem: str, obligation: Obligation) -> None:
    """Says whose an obligation is that no other theorem shares."""
    part = Part(theorem, (obligation.name,), obligation.goal)
    export(attrs.evolve(obligation, parts=(part,)))
