"""Answers beside those of the baseline: tokens exactly, log-probabilities within a tolerance.

Entry point: `compare`. Two candidates that lie closer than twice the tolerance may change places by
rounding alone: such a *tie* is told, and is no fault; what follows on it answers another question,
and is left out. Any other difference is one of *logic*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import define, field, frozen

from gpu_conformance.live.interface import Answer
from gpu_conformance.oracle import Tally

TOLERANCES = {"float32": 1e-4, "bfloat16": 1e-1}
"""How far a log-probability may be off, by number type. With logits of some units, ordinary torch
was seen to be off by 2e-6 and 3e-2; a model with greater logits needs more."""


@frozen
class Parting:
    """Where an answer departs from the baseline's."""

    request_id: str
    number: int
    """Of the token of the output, from 0."""
    position: int
    """Of that token in the request, prompt included."""
    evidence: str
    is_tie: bool

    def describe(self) -> str:
        """In one sentence."""
        nature = "a tie, within rounding" if self.is_tie else "logic, not rounding"
        place = f"{self.request_id}, output {self.number} (position {self.position})"
        return f"{place}: {self.evidence}: {nature}"


@define
class Comparison:
    """What was compared for all requests of a way."""

    tolerance: float
    tally: Tally = field(factory=Tally)
    """Its rows are the places of outputs, each with the log-probabilities of some candidates."""
    worst: float = 0.0
    """The greatest difference of a log-probability, of those within the tolerance."""
    num_left_out: int = 0
    """Tokens after a difference, of which nothing can be said."""
    partings: list[Parting] = field(factory=list)

    def count(self, seen: Place) -> None:
        """Enters one place."""
        self.tally.num_tokens += 1
        self.tally.num_differing_tokens += seen.token_id != seen.expected
        self.tally.num_rows += 1
        if seen.off <= self.tolerance:
            self.worst = max(self.worst, seen.off)
        else:
            self.tally.num_differing_rows += 1

    @property
    def ties(self) -> list[Parting]:
        """Who parts by rounding."""
        return [parting for parting in self.partings if parting.is_tie]

    @property
    def faults(self) -> list[Parting]:
        """Who parts otherwise."""
        return [parting for parting in self.partings if not parting.is_tie]


def compare(
    answers: Mapping[str, Answer],
    expected: Mapping[str, Answer],
    num_prompt_tokens: Mapping[str, int],
    tolerance: float,
) -> Comparison:
    """Compares all answers, each up to its first difference."""
    found = Comparison(tolerance)
    for name, num_tokens in num_prompt_tokens.items():
        answer = answers.get(name, Answer((), ()))
        num_places = max(len(answer.token_ids), len(expected[name].token_ids))
        for number in range(num_places):
            seen = look(answer, expected[name], number)
            found.count(seen)
            evidence = seen.describe(tolerance)
            if evidence:
                is_tie = seen.is_tie(tolerance)
                found.partings.append(Parting(name, number, num_tokens + number, evidence, is_tie))
                found.num_left_out += num_places - number - 1
                break
    return found


@frozen
class Place:
    """What stands at one place of an output, and what stands there alone; None is nothing."""

    token_id: int | None
    expected: int | None
    off: float
    """How far log-probabilities are apart at most."""
    gap: float
    """How far below the token that stands there alone this one is, there."""

    def is_tie(self, tolerance: float) -> bool:
        """Whether another token is what rounding explains: both may be off by the tolerance."""
        return self.off <= tolerance and self.gap <= 2 * tolerance

    def describe(self, tolerance: float) -> str:
        """What differs; "" if nothing does."""
        if self.token_id is None or self.expected is None:
            return f"{_say(self.token_id)}, alone {_say(self.expected)}"
        off = f"log-probabilities are off by {self.off:.1e}"
        if self.token_id != self.expected:
            gap = f"{self.gap:.1e}" if math.isfinite(self.gap) else "more than the candidates show"
            return f"{self.token_id}, alone {self.expected}, there {gap} ahead; {off}"
        return "" if self.off <= tolerance else f"{off}, {tolerance:.0e} may be"


def look(answer: Answer, expected: Answer, number: int) -> Place:
    """Looks at one place of both outputs."""
    if number >= min(len(answer.token_ids), len(expected.token_ids)):
        here, there = answer.token_ids[number:], expected.token_ids[number:]
        return Place(next(iter(here), None), next(iter(there), None), math.inf, math.inf)
    token_id, other_id = answer.token_ids[number], expected.token_ids[number]
    logprobs, others = answer.get_logprobs(number), expected.get_logprobs(number)
    return Place(
        token_id, other_id, find_off(logprobs, others), find_gap(others, other_id, token_id)
    )


def find_off(logprobs: Mapping[int, float], others: Mapping[int, float]) -> float:
    """How far the candidates that both name are apart at most; infinite if that is no number."""
    shared = logprobs.keys() & others.keys()
    differences = [abs(logprobs[token_id] - others[token_id]) for token_id in shared]
    if not differences or any(math.isnan(difference) for difference in differences):
        return math.inf
    return max(differences)


def find_gap(logprobs: Mapping[int, float], first: int, second: int) -> float:
    """How far the second lies below the first; infinite if it is not among the candidates."""
    if first not in logprobs or second not in logprobs:
        return math.inf
    return logprobs[first] - logprobs[second]


def _say(token_id: int | None) -> str:
    return "nothing" if token_id is None else str(token_id)
