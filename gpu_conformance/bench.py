"""One value of one axis, for one subject: run, compared, and judged.

Entry point: `Bench.run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import field, frozen

from checkers.errors import EngineFault
from checkers.run import Verdict
from gpu_conformance.alone import Alone, compute_alone
from gpu_conformance.faults import RunnerFault
from gpu_conformance.follow import follow
from gpu_conformance.ledger import Ledger
from gpu_conformance.oracle import Difference, Oracle, Tally
from gpu_conformance.registry import Axis, NotHere, Value
from gpu_conformance.steps import Guess
from gpu_conformance.subject import Subject, check_fits
from gpu_conformance.way import Sights, Way, make_way
from gpu_conformance.work import VOCAB_SIZE
from spec.interface import NewRequest

WRONG_DRAFT_EVERY = 3
"""Of drafts, every third is wrong, so that some are accepted and some rejected."""


@frozen(kw_only=True)
class Outcome:
    """What came of one value."""

    axis: str
    value: Value
    subject: Subject
    way: Way | None = None
    """None if the value has no meaning here."""
    tally: Tally = field(factory=Tally)
    sights: Sights = field(factory=Sights)
    first: Difference | None = None
    schedule_faults: tuple[str, ...] = ()
    """What is wrong with the schedule itself, and so is no fault of the runner."""
    is_reached: bool = False
    left_out: str = ""
    """Why it was not run."""

    @property
    def name(self) -> str:
        """As pytest calls it."""
        return f"{self.axis}-{self.value}-{self.subject.name}".replace(" ", "_")

    @property
    def verdict(self) -> Verdict:
        """Nothing is said of a value that did not show, or of rows and tokens that were not."""
        if self.first is not None:
            return "violated"
        return "holds" if self.is_reached and self.tally.num_tokens else "undetermined"


class Bench:
    """A subject, its workload, and what each request of it computes alone."""

    def __init__(
        self, subject: Subject, requests: Iterable[NewRequest], engine: str = "fast"
    ) -> None:
        self.subject = subject
        self.requests = tuple(requests)
        self.engine = engine
        self._alone: dict[tuple[object, ...], Alone] = {}

    def run(self, axis: Axis, value: Value) -> Outcome:
        """Runs one value of an axis, while all else is at its baseline."""
        try:
            way = self.make_way(axis, value)
            return self.follow(axis, value, way)
        except NotHere as reason:
            return Outcome(axis=axis.name, value=value, subject=self.subject, left_out=str(reason))

    def make_way(self, axis: Axis, value: Value) -> Way:
        """The plain way with one thing changed. Raises `NotHere` if that has no meaning."""
        way = axis.apply(make_way(self.requests, self.engine), value)
        check_fits(self.subject, way.requests)
        return way

    def follow(self, axis: Axis, value: Value, way: Way) -> Outcome:
        """Runs a way, and compares every step."""
        oracle, ledger = Oracle({}), Ledger(way)
        try:
            alone = {r.request_id: self.compute_alone(r) for r in way.requests}
            oracle = Oracle(alone, self.subject.limit_s)
            follow(way, self.subject, oracle, ledger, make_guess(oracle.alone))
        except RunnerFault as fault:
            oracle.note(fault.evidence, fault.trace)
        except EngineFault as fault:
            oracle.note(f"the engine {way.engine!r}: {fault.evidence}", fault.traceback.rstrip())
        return Outcome(
            axis=axis.name,
            value=value,
            subject=self.subject,
            way=way,
            tally=oracle.tally,
            sights=ledger.sights,
            first=oracle.first,
            schedule_faults=tuple(ledger.faults),
            is_reached=axis.is_reached(ledger.sights, value),
        )

    def compute_alone(self, request: NewRequest) -> Alone:
        """What a request computes alone; the same for whoever asks the same under the same name."""
        key = (request.request_id, request.prompt_token_ids, request.max_tokens)
        if key not in self._alone:
            like = next(iter(self._alone.values()), None)
            self._alone[key] = compute_alone(self.subject, request, like)
        return self._alone[key]


def make_guess(alone: Mapping[str, Alone]) -> Guess:
    """Guesses what a request computes alone, but for every third token."""

    def guess(request_id: str, position: int) -> list[int]:
        right = alone[request_id].token_ids[position:]
        return [
            (token_id + (place % WRONG_DRAFT_EVERY == 0)) % VOCAB_SIZE
            for place, token_id in enumerate(right, position)
        ]

    return guess
