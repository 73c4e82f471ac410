"""Why a row sees other KV than alone: where it was written, and where it is read.

Entry point: `find_cause`. Slots are numbers as in a step: block id * block_size + offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen


@frozen
class Write:
    """The KV of one token, stored."""

    step: int
    request_id: str
    position: int
    slot: int
    """Where the runner put it."""
    expected_slot: int
    """Where the scheduler's words put it."""

    @property
    def is_misplaced(self) -> bool:
        """Whether it lies where nobody looks for it, and over what somebody else may need."""
        return self.slot != self.expected_slot


@frozen
class Reading:
    """A row that sees KV other than alone."""

    step: int
    request_id: str
    position: int
    positions: tuple[int, ...]
    """Of the KV that differs."""
    slots: Mapping[int, int]
    """Where the runner reads each of them."""
    expected_slots: Mapping[int, int]
    """Where the scheduler's words put each of them."""


@frozen
class Cause:
    """What is at fault: the first write, in the order of execution, or the reading itself."""

    step: int
    request_id: str
    position: int
    evidence: str


def find_cause(writes: Sequence[Write], reading: Reading, block_size: int) -> Cause:
    """Finds the earliest write at fault, of those up to the step that reads: `writes` in order."""
    earlier = [write for write in writes if write.step <= reading.step]
    for write in earlier:
        if write.is_misplaced:
            actual, expected = _name(write.slot, block_size), _name(write.expected_slot, block_size)
            evidence = f"its KV is written to {actual}, and belongs in {expected}"
            return Cause(write.step, write.request_id, write.position, evidence)
    for position in reading.positions:
        slot, expected_slot = reading.slots[position], reading.expected_slots[position]
        if slot != expected_slot:
            actual, expected = _name(slot, block_size), _name(expected_slot, block_size)
            evidence = f"KV of position {position} is read from {actual}, and lies in {expected}"
            return Cause(reading.step, reading.request_id, reading.position, evidence)
    return _find_first_written({write.slot: write for write in earlier}, reading)


def _find_first_written(last: Mapping[int, Write], reading: Reading) -> Cause:
    """All is where it belongs: of the KV that differs, what was written first, and for whom."""
    written = {slot: last[slot] for slot in reading.expected_slots.values() if slot in last}
    if not written:
        evidence = f"KV of position {reading.positions[0]} is read, and nobody wrote it"
        return Cause(reading.step, reading.request_id, reading.position, evidence)
    write = min(written.values(), key=lambda each: (each.step, each.position))
    evidence = f"its KV was written in step {write.step}, and other data is there"
    owner = reading.expected_slots.get(write.position)
    if (write.request_id, owner) != (reading.request_id, write.slot):
        evidence = f"its KV was written in step {write.step}, where {reading.request_id} reads, too"
    return Cause(write.step, write.request_id, write.position, evidence)


def _name(slot: int, block_size: int) -> str:
    block_id, offset = divmod(slot, block_size)
    return f"block {block_id}, slot {offset}"
