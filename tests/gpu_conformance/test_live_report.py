from __future__ import annotations

import attrs
import pytest

import gpu_conformance.axes  # noqa: F401  (registers)
from gpu_conformance.live.bench import LiveBench, LiveOutcome, LiveSubject
from gpu_conformance.live.compare import Comparison, Parting
from gpu_conformance.live.interface import Answer, Served
from gpu_conformance.live.report import check_alone, check_live_axis, check_live_matrix
from gpu_conformance.oracle import Tally
from gpu_conformance.registry import AXES
from gpu_conformance.way import Sights
from gpu_conformance.work import Work, make_requests

ALONE = Sights(num_steps=6, longest_chunk=20, max_num_reqs=1)
TIE = Parting("p0", 3, 20, "5, alone 7, there 1.0e-05 ahead", is_tie=True)


class Says:
    """An engine that answers the same, and shows what it is told to show."""

    block_size = 16

    def __init__(self, sights):
        self.sights = sights

    def serve(self, way):
        """Answers every request."""
        answers = {r.request_id: Answer((1, 2), ({1: -1.0}, {2: -1.0})) for r in way.requests}
        return Served(answers, self.sights)


def make_subject(sights=ALONE, dtype="float32"):
    """Such an engine under test."""
    return LiveSubject(name="says", dtype=dtype, device="cpu", engine=Says(sights), tolerance=1e-4)


def make_outcome(**given):
    """One that holds, but for what is given."""
    comparison = Comparison(1e-4, Tally(30, 0, 30, 0))
    usual = {"axis": "batch_size", "value": 2, "comparison": comparison, "is_reached": True}
    return LiveOutcome(**{**usual, **given})


@pytest.mark.parametrize(
    ("verdict", "changes"),
    [
        ("holds", {}),
        ("undetermined", {"max_num_reqs": 2}),
        ("undetermined", {"num_partial_chunks": 1}),
        ("undetermined", {"num_hit_tokens": 16}),
    ],
)
def test_a_baseline_is_alone_whole_and_uncached(verdict, changes):
    """A baseline that was not computed as it should be says nothing of what is held against it."""
    subject = make_subject(attrs.evolve(ALONE, **changes))
    check = check_alone(LiveBench(subject, make_requests(Work((3, 20), 2))))
    assert verdict == check.verdict
    assert "baseline    2 requests, 4 tokens in 6 steps" == check.lines[0]


def test_a_tie_is_told_and_is_no_finding():
    """Who parts by rounding is named, with what could not be compared after it."""
    comparison = Comparison(1e-4, Tally(30, 0, 30, 1), 2e-5, 9, [TIE])
    outcome = make_outcome(comparison=comparison)
    check = check_live_axis(make_subject(), AXES["batch_size"], [outcome], "")
    assert ("holds", ()) == (check.verdict, check.findings)
    assert "1 token differs, 1 at ties; off by up to 2.0e-05" in check.lines[0]
    assert "p0, output 3 (position 20): 5, alone 7" in check.lines[1]
    assert check.lines[2].endswith("9 tokens after a difference are left out")


def test_a_value_that_did_not_show_is_no_success():
    """Of two values, one not reached makes the axis undetermined."""
    outcomes = [make_outcome(), make_outcome(value=5, is_reached=False)]
    check = check_live_axis(make_subject(), AXES["batch_size"], outcomes, "")
    assert "undetermined" == check.verdict
    assert ("batch_size=5: the value did not show, so nothing was tested",) == check.findings


def test_the_matrix_has_a_cell_for_each_axis_and_number_type():
    """Places, those beyond the tolerance, tokens that differ, ties; a dash where nothing ran."""
    tie = make_outcome(comparison=Comparison(1e-4, Tally(1200, 2, 1200, 3), partings=[TIE]))
    other = make_outcome(axis="preemption", left_out="no such thing")
    pairs = [(make_subject(), tie), (make_subject(dtype="bfloat16"), other)]
    check = check_live_matrix(pairs)
    header, size, preemption = check.lines
    assert ["float32", "bfloat16"] == header.split()
    assert ["batch_size", "1,200", "2", "3", "(1)", "–"] == size.split()
    assert ["preemption", "–", "–"] == preemption.split()
    assert "holds" == check.verdict


def test_a_matrix_of_nothing_is_no_success():
    """If all was left out, nothing was compared."""
    left = make_outcome(left_out="no such thing", is_reached=False)
    check = check_live_matrix([(make_subject(), left)])
    assert ("undetermined", ("nothing was compared",)) == (check.verdict, check.findings)
