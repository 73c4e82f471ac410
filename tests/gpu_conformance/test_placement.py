from __future__ import annotations

import attrs
import pytest

from gpu_conformance.placement import Cause, Reading, Write, find_cause

SIZE = 4
OWN = [Write(0, "a", position, 4 + position, 4 + position) for position in range(3)]
OTHER = Write(1, "b", 0, 8, 8)


def make_reading(slots=(4, 5, 6), expected=(4, 5, 6), positions=(0, 1, 2)):
    """Request a reads its first positions in step 2, from its position 3."""
    places = [{position: each[position] for position in positions} for each in (slots, expected)]
    return Reading(2, "a", 3, positions, *places)


@pytest.mark.parametrize(
    ("expected", "writes", "reading"),
    [
        (
            Cause(
                1, "b", 0, "its KV is written to block 1, slot 1, and belongs in block 2, slot 0"
            ),
            [*OWN, Write(1, "b", 0, 5, 8), Write(2, "b", 1, 6, 9)],
            make_reading(),
        ),
        (
            Cause(
                2,
                "a",
                3,
                "KV of position 1 is read from block 2, slot 0, and lies in block 1, slot 1",
            ),
            [*OWN, OTHER],
            make_reading(slots=(4, 8, 6)),
        ),
        (
            Cause(2, "a", 3, "KV of position 2 is read from no block, and lies in block 1, slot 2"),
            [*OWN, OTHER],
            attrs.evolve(make_reading(), slots={0: 4, 1: 5}),
        ),
        (
            Cause(0, "a", 1, "its KV was written in step 0, and other data is there"),
            OWN,
            make_reading(positions=(1,)),
        ),
        (
            Cause(1, "b", 0, "its KV was written in step 1, where a reads, too"),
            [*OWN, OTHER],
            make_reading(slots=(8, 5, 6), expected=(8, 5, 6), positions=(0,)),
        ),
        (
            Cause(2, "a", 3, "KV of position 2 is read, and nobody wrote it"),
            OWN[:2],
            make_reading(positions=(2,)),
        ),
    ],
)
def test_what_is_at_fault_is_told(expected, writes, reading):
    """A misplaced write comes before a wrong table, and both before what was overwritten."""
    assert expected == find_cause(writes, reading, SIZE)


def test_what_was_written_later_is_not_at_fault():
    """A write after the step that reads cannot be what it read."""
    late = Write(3, "b", 0, 5, 8)
    assert "b" != find_cause([*OWN, late], make_reading(), SIZE).request_id
