from __future__ import annotations

import math

import pytest

from gpu_conformance.live.compare import compare
from gpu_conformance.live.interface import Answer
from gpu_conformance.oracle import Tally

TOLERANCE = 0.1
ALONE = Answer((7, 8, 9), ({7: -1.0, 5: -1.15}, {8: -1.0, 5: -2.0}, {9: -1.0, 5: -2.0}))


def compare_one(*places, alone=ALONE):
    """One answer of places (token, log-probabilities), for a prompt of 4 tokens."""
    answer = Answer(tuple(token for token, _ in places), tuple(found for _, found in places))
    return compare({"p0": answer}, {"p0": alone}, {"p0": 4}, TOLERANCE)


SAME = tuple(zip(ALONE.token_ids, ALONE.logprobs, strict=True))


def test_the_same_is_clean():
    """Three places that are as alone are three places, three tokens, and nothing else."""
    found = compare_one(*SAME)
    assert (Tally(3, 0, 3, 0), 0.0, []) == (found.tally, found.worst, found.partings)


def test_what_is_off_within_the_tolerance_is_told():
    """A log-probability may be off a little, and how much at most is said."""
    found = compare_one(*SAME[:2], (9, {9: -1.05, 5: -2.0}))
    assert (Tally(3, 0, 3, 0), []) == (found.tally, found.partings)
    assert pytest.approx(0.05) == found.worst


def test_what_is_off_beyond_the_tolerance_is_a_fault():
    """The same token with another log-probability is a fault, with its place."""
    found = compare_one(SAME[0], (8, {8: -1.2, 5: -2.0}), SAME[2])
    (fault,) = found.faults
    assert ("p0", 1, 5) == (fault.request_id, fault.number, fault.position)
    assert "log-probabilities are off by 2.0e-01, 1e-01 may be" == fault.evidence
    assert (Tally(2, 1, 2, 0), 1) == (found.tally, found.num_left_out)


def test_two_that_lie_close_may_change_places():
    """Another token within twice the tolerance is a tie, and what follows on it is left out."""
    found = compare_one((5, {5: -1.06, 7: -1.09}), (1, {1: -3.0}), (2, {2: -3.0}))
    (tie,) = found.ties
    assert "p0, output 0 (position 4): 5, alone 7, there 1.5e-01 ahead" in tie.describe()
    assert tie.describe().endswith("a tie, within rounding")
    assert ([], Tally(1, 0, 1, 1), 2) == (found.faults, found.tally, found.num_left_out)


@pytest.mark.parametrize(
    ("token_id", "logprobs"),
    [
        # Far behind alone, though near by its own account.
        (5, {5: -1.0, 8: -1.0}),
        # Not among the candidates that are known.
        (6, {6: -0.9, 8: -1.0}),
    ],
)
def test_another_token_without_a_tie_is_a_fault(token_id, logprobs):
    """What rounding does not explain is logic."""
    found = compare_one(SAME[0], (token_id, logprobs))
    (fault,) = found.faults
    assert fault.describe().endswith("logic, not rounding")


def test_a_tie_with_log_probabilities_that_are_off_is_a_fault():
    """Two that lie close alone are no excuse if one of them is far off."""
    assert [] != compare_one((5, {5: -0.5, 7: -1.0})).faults


def test_an_answer_that_ends_early_or_late_is_a_fault():
    """One token too few, one too many, and none at all."""
    short, long = compare_one(*SAME[:2]), compare_one(*SAME, (3, {3: -1.0}))
    assert ["nothing, alone 9"] == [fault.evidence for fault in short.faults]
    assert ["3, alone nothing"] == [fault.evidence for fault in long.faults]
    none = compare({}, {"p0": ALONE}, {"p0": 4}, TOLERANCE)
    assert ["nothing, alone 7"] == [fault.evidence for fault in none.faults]


@pytest.mark.parametrize("logprobs", [{7: math.nan, 5: -1.15}, {}, {3: -1.0}])
def test_what_is_no_number_is_off(logprobs):
    """NaN, no log-probabilities, or none in common are no equality."""
    assert "off by inf" in compare_one((7, logprobs)).faults[0].evidence
