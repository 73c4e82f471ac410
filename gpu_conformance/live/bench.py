"""One value of one axis, for one live engine: computed, compared, and judged.

Entry point: `LiveBench.run`. The baseline is each request alone, its prompt whole, nothing cached.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
from attrs import field, frozen

from checkers.errors import EngineFault, HarnessError
from checkers.run import Verdict
from gpu_conformance.faults import format_end
from gpu_conformance.live.compare import Comparison, compare
from gpu_conformance.live.interface import LiveEngine, Served
from gpu_conformance.registry import Axis, NotHere, Value
from gpu_conformance.way import BLOCK_SIZE, Arrival, Sights, Way, make_way
from gpu_conformance.work import Work, make_requests
from spec.interface import NewRequest

WORK = Work((1, 17, 64, 65, 129, 140, 260, 260), 24)
"""Around blocks of 16 and 32 tokens, and budgets of 17 and 64; the last three begin alike."""


@frozen(kw_only=True)
class LiveSubject:
    """Who is under test, and by which measure."""

    name: str
    """As given on the command line."""
    dtype: str
    device: str
    engine: LiveEngine
    tolerance: float
    """Of log-probabilities."""


@frozen(kw_only=True)
class LiveOutcome:
    """What came of one value."""

    axis: str
    value: Value
    comparison: Comparison
    sights: Sights = field(factory=Sights)
    is_reached: bool = False
    error: str = ""
    """What the engine raised, or that it gave no answer."""
    trace: str = ""
    """The last lines of the traceback."""
    left_out: str = ""
    """Why it was not run."""

    @property
    def verdict(self) -> Verdict:
        """Nothing is said of a value that did not show, or of tokens that were not."""
        if self.error or self.comparison.faults:
            return "violated"
        return "holds" if self.is_reached and self.comparison.tally.num_tokens else "undetermined"


class LiveBench:
    """A live engine, its workload, and what it computes for each request alone.

    Raises `HarnessError` if it cannot even do that, `EngineFault` if it hangs or ends in it.
    """

    def __init__(self, subject: LiveSubject, requests: Iterable[NewRequest]) -> None:
        self.subject = subject
        # By other names than those in `work.SAMPLING`: everybody takes the greatest.
        self.requests = tuple(
            attrs.evolve(request, request_id=f"p{number}")
            for number, request in enumerate(requests)
        )
        self.alone = self._compute_alone()

    def run(self, axis: Axis, value: Value) -> LiveOutcome:
        """Runs one value of an axis, while all else is plain: all arrive at once, none is cut."""

        def make_outcome(comparison: Comparison | None = None, **given: Any) -> LiveOutcome:
            compared = comparison or Comparison(self.subject.tolerance)
            return LiveOutcome(axis=axis.name, value=value, comparison=compared, **given)

        try:
            served = self._serve(self._make_way(axis, value))
        except NotHere as reason:
            return make_outcome(left_out=str(reason))
        except EngineFault as fault:
            return make_outcome(error=fault.evidence, trace=fault.traceback)
        is_reached = axis.is_reached(served.sights, value)
        return make_outcome(self._compare(served), sights=served.sights, is_reached=is_reached)

    def _make_way(self, axis: Axis, value: Value) -> Way:
        """Raises `NotHere` if the value means other requests, or ends some of them."""
        way = axis.apply(make_way(self.requests), value)
        if way.aborts or way.recording is not None:
            raise NotHere("only whole answers to the usual requests are compared")
        return self._fit(way)

    def _compute_alone(self) -> Served:
        """Each arrives when those before it have ended."""
        apart = max(request.max_tokens for request in self.requests) + 1
        way = make_way(self.requests)
        arrivals = [Arrival(request, n * apart) for n, request in enumerate(self.requests)]
        try:
            served = self._serve(self._fit(attrs.evolve(way, arrivals=tuple(arrivals))))
        except NotHere as reason:
            raise HarnessError(
                f"{self.subject.name} cannot compute each request alone, so there is nothing to "
                f"compare with: {reason}"
            ) from reason
        for request in self.requests:
            if request.request_id not in served.answers:
                raise EngineFault("engine_answers", f"gave {request.request_id} alone no answer")
        return served

    def _serve(self, way: Way) -> Served:
        """Asks the engine. Raises `EngineFault` for whatever it raises, or for no answer."""
        try:
            served = self.subject.engine.serve(way)
        except (HarnessError, NotHere, EngineFault):
            raise
        except Exception as error:
            evidence = f"{type(error).__name__}: {error}"
            raise EngineFault("engine_raises", evidence, format_end(error)) from error
        if not isinstance(served, Served):
            evidence = f"serve() returned a {type(served).__name__}, expected Served"
            raise EngineFault("engine_answers", evidence)
        return served

    def _fit(self, way: Way) -> Way:
        """Cuts the same room into blocks that suit the engine, unless others are asked for."""
        config, size = way.config, self.subject.engine.block_size
        if config.block_size != BLOCK_SIZE:
            return way
        num_blocks = -(-config.num_blocks * config.block_size // size)
        return attrs.evolve(
            way, config=attrs.evolve(config, block_size=size, num_blocks=num_blocks)
        )

    def _compare(self, served: Served) -> Comparison:
        lengths = {r.request_id: len(r.prompt_token_ids) for r in self.requests}
        return compare(served.answers, self.alone.answers, lengths, self.subject.tolerance)


def make_live_requests() -> list[NewRequest]:
    """The usual requests."""
    return make_requests(WORK)
