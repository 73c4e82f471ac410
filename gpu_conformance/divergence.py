"""Where a run first departs from what a request computes alone, and of what kind that is.

Entry point: `find_divergence`. Both are run again with a look at every row of every layer. Rows are
ordered such that all that the first differing one was computed from is the same as alone: what
differs there happened there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs
import torch
from attrs import frozen

from checkers.errors import EngineFault, HarnessError
from gpu_conformance.bench import Bench, make_guess
from gpu_conformance.faults import RunnerFault
from gpu_conformance.follow import follow
from gpu_conformance.ledger import Ledger, Part
from gpu_conformance.placement import Reading, find_cause, find_misplaced
from gpu_conformance.subject import DTYPES
from gpu_conformance.trace import KV_IN_SIGHT, RETURNED, Key, Trace
from gpu_conformance.way import Way, make_way

Tensor = torch.Tensor
Nature = Literal["numeric", "logic"]

MEANING: dict[Nature, str] = {
    "numeric": "the same input, summed in another order",
    "logic": "the same input, and yet other data",
}
MIN_TOLERANCE = 1e-4
"""What another order of sums may change, as a share of a row's length: the rounding of its type,
and no less than this."""
COPIED = ("embedding", KV_IN_SIGHT, RETURNED)
"""Stages without sums, so that no order of them explains a difference."""
LOGITS = ("logits", RETURNED)
"""Stages whose rows are all that tokens are sampled from."""
Place = tuple[int, int, int]
"""Layer, stage and position: a row of a request that is alone."""


@frozen
class Divergence:
    """The first row that differs."""

    key: Key
    part: Part
    block_size: int
    num_rows: int
    """How many rows of that layer and stage differ."""
    nature: Nature
    size: str
    """By how much the row differs."""
    logits: str
    """What became of the logits."""

    def describe(self) -> str:
        """In a few lines."""
        key, part = self.key, self.part
        index, slot = divmod(key.position, self.block_size)
        place = f"{key.request_id}, position {key.position}, chunk {part.start} to {part.end - 1}"
        place += f" of step {key.step}, block {part.block_ids[index]}, slot {slot}"
        num_rows = "1 row differs" if self.num_rows == 1 else f"{self.num_rows:,} rows differ"
        stage = f"layer {key.layer}, {key.stage_name}; {num_rows} there"
        return "\n".join(
            [
                f"first differs  {place}",
                f"in             {stage}",
                f"by             {self.size}",
                f"logits         {self.logits}",
                f"verdict        {self.nature}: {MEANING[self.nature]}",
            ]
        )


def find_divergence(bench: Bench, way: Way) -> Divergence | None:
    """Finds the first row that differs; None if none does while somebody looks.

    A run in which the runner gives up is looked at as far as it came. Raises `HarnessError` where
    a look shows nothing that can be told.
    """
    looked = _trace(bench, way, frozenset())
    differing = looked.find_differing()
    if not differing and looked.fault:
        raise HarnessError(f"while somebody looks, {looked.fault}, and no row differs before that")
    if not differing:
        return None
    first = differing[0]
    kept = _trace(bench, way, frozenset({first.stage_name, *LOGITS}))
    if first not in kept.find_differing():
        raise HarnessError(
            f"{first.request_id}, position {first.position}, of step {first.step}, differs in "
            f"layer {first.layer}, {first.stage_name}, and not when it is looked at again: "
            "the runner does not compute the same twice"
        )
    row, other = kept.run.rows[first], kept.get_other(first)
    tolerance = max(MIN_TOLERANCE, torch.finfo(DTYPES[bench.subject.dtype]).eps)
    is_numeric = first.stage_name not in COPIED and _compare(row, other) <= tolerance
    key, size = _locate(kept.run, first, row, other, way.config.block_size)
    return Divergence(
        key=key,
        part=kept.run.parts[key.step, key.request_id],
        block_size=way.config.block_size,
        num_rows=sum((k.layer, k.stage) == (first.layer, first.stage) for k in differing),
        nature="numeric" if is_numeric else "logic",
        size=size,
        logits=_describe_logits(kept, differing),
    )


# ---- both runs, seen through ---------------------------------------------------------------------


@frozen(eq=False)
class _Traced:
    """A run, and its requests alone."""

    run: Trace
    alone: dict[str, Trace]
    places: dict[str, dict[Place, Key]]
    """The rows of each request alone."""
    num_same: dict[str, int]
    """How many tokens each request has in the run that it has alone, up to the first other one."""
    fault: str
    """Why the run ended early; "" if it did not."""

    def find_differing(self) -> list[Key]:
        """The rows that differ though their tokens do not, the first one first."""
        return sorted(key for key, value in self.run.hashes.items() if self._differs(key, value))

    def get_other(self, key: Key) -> Tensor:
        """The same row, alone."""
        place = (key.layer, key.stage, key.position)
        return self.alone[key.request_id].rows[self.places[key.request_id][place]]

    def _differs(self, key: Key, value: int) -> bool:
        name = key.request_id
        other = self.places[name].get((key.layer, key.stage, key.position))
        if other is None or key.position >= self.num_same[name]:
            return False
        return value != self.alone[name].hashes[other]


def _trace(bench: Bench, way: Way, keep: frozenset[str]) -> _Traced:
    alone = {request.request_id: bench.compute_alone(request) for request in way.requests}
    run, ledger, fault = Trace(keep), Ledger(way), ""
    try:
        follow(way, bench.subject, run, ledger, make_guess(alone))
    except (RunnerFault, EngineFault) as error:
        fault = error.evidence
    traces = {request.request_id: Trace(keep) for request in way.requests}
    for request in way.requests:
        lonely = make_way([request])
        follow(lonely, bench.subject, traces[request.request_id], Ledger(lonely))
    return _Traced(
        run,
        traces,
        {name: _index(trace) for name, trace in traces.items()},
        {name: _count_same(each.token_ids, ledger.token_ids[name]) for name, each in alone.items()},
        fault,
    )


def _index(trace: Trace) -> dict[Place, Key]:
    return {(key.layer, key.stage, key.position): key for key in trace.hashes}


def _count_same(token_ids: list[int], others: tuple[int, ...]) -> int:
    pairs = zip(token_ids, others, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    return min(len(token_ids), len(others)) if same is None else same


# ---- how much two rows differ, and why -----------------------------------------------------------


def _locate(run: Trace, first: Key, row: Tensor, other: Tensor, block_size: int) -> tuple[Key, str]:
    """Which row the report is about, and what is wrong with it."""
    if first.stage_name == KV_IN_SIGHT:
        return _trace_back(run, first, row, other, block_size)
    if first.stage_name == RETURNED:
        return first, _describe_returned(run, first, row, other)
    if first.stage_name == "attention" and row.isnan().any():
        return _find_unwritten(run, first, block_size) or (first, _describe_size(row, other))
    return first, _describe_size(row, other)


def _compare(row: Tensor, other: Tensor) -> float:
    """How far a row is off, as a share of its length; NaN is as far as can be."""
    off = (row.double() - other.double()).norm() / other.double().norm()
    return float(off.nan_to_num(nan=torch.inf))


def _trace_back(
    run: Trace, reader: Key, row: Tensor, other: Tensor, block_size: int
) -> tuple[Key, str]:
    """From a row that sees other KV to that KV: which it is, and what is wrong with it."""
    num_seen = min(len(row), len(other))
    differing = (row[:num_seen] != other[:num_seen]).nonzero().flatten().tolist()
    # A block table that is too short shows fewer positions.
    wrong = (*differing, *range(num_seen, max(len(row), len(other))))
    table = run.tables[reader.step, reader.request_id]
    expected = run.parts[reader.step, reader.request_id].block_ids

    def find_slots(block_ids: Sequence[int]) -> dict[int, int]:
        within = [p for p in wrong if p < len(block_ids) * block_size]
        return {p: block_ids[p // block_size] * block_size + p % block_size for p in within}

    reading = Reading(
        reader.step,
        reader.request_id,
        reader.position,
        wrong,
        find_slots(table),
        find_slots(expected),
    )
    cause = find_cause(run.writes, reading, block_size)
    key = attrs.evolve(
        reader, step=cause.step, request_id=cause.request_id, position=cause.position
    )
    seen = f"; {len(wrong)} positions are wrong for" if len(wrong) > 1 else "; it is wrong for"
    seen += f" {reader.request_id}, position {reader.position}, of step {reader.step}"
    if len(row) != len(other):
        seen += f", which sees KV of {len(row)} positions, alone of {len(other)}"
    return key, cause.evidence + seen


def _find_unwritten(run: Trace, first: Key, block_size: int) -> tuple[Key, str] | None:
    """A later position of the chunk whose KV went elsewhere: where it belongs, NaN was left.

    A token is not to see it, but kernels multiply what is masked by 0, and that leaves NaN as is.
    """
    later = [
        write
        for write in run.writes
        if (write.step, write.request_id) == (first.step, first.request_id)
        and write.position > first.position
    ]
    cause = find_misplaced(later, block_size)
    if cause is None:
        return None
    seen = f"{first.request_id}, position {first.position}, is NaN by it"
    return (
        attrs.evolve(first, position=cause.position),
        f"{cause.evidence}, which stays NaN; {seen}, though all KV in its own sight is right",
    )


def _describe_returned(run: Trace, returned: Key, row: Tensor, other: Tensor) -> str:
    """Whose row of logits a request was given in place of its own."""
    owner = run.find_owner(returned)
    if owner is None:
        return f"{_describe_size(row, other)}; it is no row that was computed"
    step = "" if owner.step == returned.step else f", of step {owner.step}"
    return f"the row returned is that of {owner.request_id}, position {owner.position}{step}"


def _describe_size(row: Tensor, other: Tensor) -> str:
    if row.isnan().any():
        return "NaN: it has read what nobody wrote"
    if other.isnan().any():
        return "alone it is NaN, which is no measure"
    greatest = float((row.double() - other.double()).abs().max())
    return f"up to {greatest:.1e}, {_compare(row, other):.1e} of the row's length"


def _describe_logits(kept: _Traced, differing: list[Key]) -> str:
    key = next((key for key in differing if key.stage_name in LOGITS), None)
    if key is None:
        return "none differ"
    row, other = kept.run.rows[key], kept.get_other(key)
    greatest = other.topk(2).values
    token, expected = int(row.argmax()), int(other.argmax())
    fate = f"still {token}" if token == expected else f"{token} instead of {expected}"
    gap = f"the two greatest are {float(greatest[0] - greatest[1]):.1e} apart"
    place = f"of {key.request_id}, position {key.position}"
    if other.isnan().any():
        return f"{place}, NaN alone; the greatest is {token}"
    off = "NaN" if row.isnan().any() else f"by up to {float((row - other).abs().max()):.1e}"
    return f"{place}, {off}; {gap}, the greatest is {fate}"
