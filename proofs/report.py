"""What `prove` has to say, as a table or as JSON.

Entry point: `Report`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from checkers.table import align
from proofs.export import Export
from proofs.prove import Outcome, Verdict
from proofs.recheck import Recheck

EXIT_CODES: dict[Verdict, int] = {"holds": 0, "violated": 1, "undetermined": 3}
SCOPE = (
    "bounded theorems cover the states that they name, unbounded ones any number of requests; both "
    "any integers, but for what is explored state by state, and none of what is off by default "
    "(drafts, adapters, grammars, pauses); assumptions: docs/proofs.md"
)
HEADLINES: dict[Verdict, str] = {
    "holds": "ok",
    "violated": "FAILED",
    "undetermined": "UNDETERMINED",
}
HEADER = ("theorem", "scope", "states", "claims", "paths", "time", "verdict")
CLAIMS = (
    "a claim is one thing that a theorem says of one path, or of one point of a loop that is cut: "
    "shown of all numbers at once; where pairs of states are explored, it is one comparison"
)


@frozen
class Report:
    """All theorems that were asked for, and what cvc5 says of them."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    recheck: Recheck | None = None
    """None if cvc5 was not asked."""
    export: Export | None = None
    """None if nothing was exported."""
    left: tuple[str, ...] = ()
    """The theorems that Ctrl-C came before."""

    @property
    def verdict(self) -> Verdict:
        """The worst: a theorem that came out otherwise, or a solver that disagrees, outweighs."""
        verdicts = {outcome.verdict for outcome in self.outcomes} | self._verdicts_of_recheck()
        if "violated" in verdicts:
            return "violated"
        is_open = "undetermined" in verdicts or self.left or not self.outcomes
        return "undetermined" if is_open else "holds"

    def to_text(self) -> str:
        """A table, the counterexamples, and a last line that says how far the verdict reaches."""
        places = self._number_states()
        rows = [HEADER, *[_row(outcome, places) for outcome in self.outcomes]]
        lines = align(rows)
        lines += [f"states {number:>2}  {label}" for label, number in places.items()]
        lines.append(CLAIMS)
        for outcome in self.outcomes:
            lines += _details(outcome)
        lines += self._lines_of_recheck()
        if self.export is not None:
            num_files = len(self.export.entries)
            lines.append(f"{num_files:,} obligations are in {self.export.folder}; see index.json")
        if self.left:
            lines.append(f"Ctrl-C came before {', '.join(self.left)}")
        headline = HEADLINES[self.verdict]
        return "\n".join([*lines, f"{headline} in {self.seconds:.1f} s; {SCOPE}"])

    def to_json(self) -> str:
        """The same for machines."""
        document: dict[str, Any] = {
            "verdict": self.verdict,
            "seconds": round(self.seconds, 3),
            "scope": SCOPE,
            "interrupted_before": list(self.left),
            "theorems": [outcome.to_json() for outcome in self.outcomes],
        }
        if self.recheck is not None:
            document["recheck"] = {
                "solver": "cvc5",
                "confirmed": self.recheck.num_confirmed,
                "unconfirmed": self.recheck.unconfirmed,
            }
        if self.export is not None:
            document["export"] = {
                "folder": str(self.export.folder),
                "obligations": len(self.export.entries),
            }
        return json.dumps(document, indent=2)

    def _number_states(self) -> dict[str, int]:
        """A number for each kind of states from which every path was taken."""
        labels = [label for outcome in self.outcomes for label in outcome.proof.looked_at]
        return {label: number for number, label in enumerate(dict.fromkeys(labels), 1)}

    def _verdicts_of_recheck(self) -> set[Verdict]:
        unconfirmed = [] if self.recheck is None else self.recheck.unconfirmed
        return {"violated" if answer == "sat" else "undetermined" for _, answer in unconfirmed}

    def _lines_of_recheck(self) -> Iterator[str]:
        if self.recheck is not None:
            yield (
                f"cvc5 confirms {self.recheck.num_confirmed:,} obligations; one is all that is "
                "claimed of a path"
            )
            for name, answer in self.recheck.unconfirmed:
                yield f"cvc5 answers {answer}, not unsat: {name}"


def _row(outcome: Outcome, places: dict[str, int]) -> tuple[str, ...]:
    theorem, proof = outcome.theorem, outcome.proof
    as_expected = " (as it should be)" if outcome.verdict == "holds" else " (it should not be)"
    return (
        theorem.name,
        theorem.scope,
        _describe_states(outcome, places),
        f"{proof.num_claims:,}",
        f"{proof.num_paths:,}",
        f"{proof.seconds:.1f} s",
        proof.verdict + (as_expected if "refuted" in {proof.verdict, theorem.expected} else ""),
    )


def _describe_states(outcome: Outcome, places: dict[str, int]) -> str:
    """The numbers of the states that a theorem covers, neighbours as a range."""
    if outcome.theorem.scope == "unbounded":
        return "any number"
    numbers = sorted(places[label] for label in outcome.proof.looked_at)
    firsts = [number for number in numbers if number - 1 not in numbers]
    lasts = [number for number in numbers if number + 1 not in numbers]
    ranges = zip(firsts, lasts, strict=True)
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges) or "-"


def _details(outcome: Outcome) -> Iterator[str]:
    failure = outcome.proof.failure
    if failure is not None:
        yield f"{outcome.theorem.name}: {outcome.theorem.statement}"
        yield f"  refuted: {failure.obligation}"
        yield from (f"    {line}" for line in failure.lines)
        yield from (f"  assuming that {each}" for each in outcome.theorem.assumptions)
    if outcome.way is not None:
        yield f"  {outcome.way.sentence}"
        yield from (f"    {line}" for line in outcome.way.run)
    for reason in outcome.proof.undecided:
        yield f"{outcome.theorem.name}: undetermined: {reason}"
