"""From provers to a verdict: everything discharged is proved, else a run decides.

Entry point: `settle`. What the solver leaves open is refuted if a random run of the spec on plain
integers shows that it is wrong; otherwise it stays undetermined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proofs.symbolic.prover import Discharged, Prover
from proofs.theorem import Failure, ObligationSink, Proof, Say
from proofs.unbounded.invariant import Part
from proofs.unbounded.state import DIALECTS
from proofs.unbounded.watch import Judge, find_breach


def settle(
    proof: Proof,
    export: ObligationSink,
    parts: Iterable[Part],
    judges: Sequence[Judge] = (),
) -> None:
    """Fills in a proof from its parts; the first that is not proved is looked for in runs."""
    for label, dialect, prover in parts:
        take(proof, export, prover)
        if prover.unproved is not None:
            # What is asked of one policy may be wrong of the other, and so with a cache.
            alike = [each for each in DIALECTS if each.kind == dialect.kind]
            others = [each for each in alike if each != dialect]
            failure = find_breach([dialect, *others], judges, say_open(proof, label))
            decide(proof, label, prover.unproved, failure)
            return


def say_open(proof: Proof, label: str) -> Say:
    """Says that something was not proved, and what is being done about it."""
    beginning = f"{label} is not proved; random runs are looked through for a breach"
    return lambda run: proof.say(f"{beginning}: {run}")


def take(proof: Proof, export: ObligationSink, prover: Prover) -> None:
    """Adds up what a prover did."""
    for each in prover.discharged:
        export(each.obligation)
    proof.num_claims += len(prover.discharged)
    proof.num_paths += prover.num_paths
    proof.num_queries += prover.num_queries


def decide(proof: Proof, label: str, unproved: Discharged, failure: Failure | None) -> None:
    """Files what was not proved as refuted by a run, or as undecided."""
    proof.failure = failure
    if failure is None:
        proof.undecided.append(f"{label}, {unproved.obligation.name}: {unproved.answer}")
