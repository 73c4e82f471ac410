"""Why a row sees other KV than alone: where it was written, and where it is read.

Entry point: `find_cause`. Slots are numbers as in a step: block id * block_size + offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    """Where the runner reads each of them; what its block table does not reach is not there."""
    expected_slots: Mapping[int, int]
    """Where the scheduler's words put each of them, as far as its block table goes."""


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
    misplaced = find_misplaced(earlier, block_size)
    if misplaced is not None:
        return misplaced
    for position in reading.positions:
        slot, expected_slot = reading.slots.get(position), reading.expected_slots.get(position)
        if slot != expected_slot:
            actual, expected = _name(slot, block_size), _name(expected_slot, block_size)
            evidence = f"KV of position {position} is read from {actual}, and lies in {expected}"
            return Cause(reading.step, reading.request_id, reading.position, evidence)
    return _find_first_written({write.slot: write for write in earlier}, reading)


def find_misplaced(writes: Iterable[Write], block_size: int) -> Cause | None:
    """Finds the first write that went elsewhere than the scheduler's words say; None without."""
    write = next((write for write in writes if write.is_misplaced), None)
    if write is None:
        return None
    actual, expected = _name(write.slot, block_size), _name(write.expected_slot, block_size)
    evidence = f"its KV is written to {actual}, and belongs in {expected}"
    return Cause(write.step, write.request_id, write.position, evidence)


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


def _name(slot: int | None, block_size: int) -> str:
    if slot is None:
        return "no block"
    block_id, offset = divmod(slot, block_size)
    return f"block {block_id}, slot {offset}"
