from __future__ import annotations

import attrs
import pytest

from checkers.errors import HarnessError
from gpu_conformance import report
from gpu_conformance.bench import Bench, Outcome
from gpu_conformance.command import Order
from gpu_conformance.faults import RunnerFault
from gpu_conformance.ledger import Part
from gpu_conformance.oracle import Difference, Tally
from gpu_conformance.registry import AXES
from gpu_conformance.report import check_axis, check_baseline, check_control, check_matrix
from gpu_conformance.way import make_way
from gpu_conformance.work import WORKS, make_requests
from tests.gpu_conformance.support import make_bench, run

WAY = make_way(make_requests(WORKS["tiny"]))
ARGUMENTS = Order().arguments
TRACE = 'Traceback (most recent call last):\n  raise RuntimeError("gone")\nRuntimeError: gone'
GONE = Difference("no answer", 3, None, -1, "the runner raises RuntimeError: gone", TRACE)


@pytest.fixture(scope="module")
def bench():
    """Our runner with few requests."""
    return make_bench()


def make_outcome(bench, **given):
    """One that holds, but for what is given."""
    usual = {
        "axis": "batch_size",
        "value": 2,
        "subject": bench.subject,
        "way": WAY,
        "tally": Tally(1200, 0, 30, 0),
        "is_reached": True,
    }
    return Outcome(**{**usual, **given})


def test_what_holds_is_one_line(bench):
    """An axis on which nothing differs says how much was compared, and at which values."""
    check = check_axis(bench, AXES["batch_size"], [make_outcome(bench)], ARGUMENTS)
    assert ("holds", "conform  batch_size  tile float32") == (check.verdict, check.title)
    assert ("compared    1,200 rows, 0 differ; 30 tokens, 0 differ; 2",) == check.lines


def test_a_value_that_did_not_show_is_no_success(bench):
    """Of two values, one not reached makes the axis undetermined."""
    outcomes = [make_outcome(bench), make_outcome(bench, value=5, is_reached=False)]
    check = check_axis(bench, AXES["batch_size"], outcomes, ARGUMENTS)
    assert "undetermined" == check.verdict
    assert ("batch_size=5: the value did not show, so nothing was tested",) == check.findings


def test_values_that_are_left_out_are_told(bench):
    """What has no meaning here is named with its reason, and is no verdict."""
    left = make_outcome(bench, value=3, left_out="no such thing", is_reached=False)
    check = check_axis(bench, AXES["batch_size"], [make_outcome(bench), left], ARGUMENTS)
    assert ("holds", "left out    3: no such thing") == (check.verdict, check.lines[1])


def test_an_axis_of_which_nothing_has_run_is_no_success(bench):
    """Where all values are left out, nothing was compared: the axis and the matrix say so."""
    left = make_outcome(bench, left_out="no such thing", is_reached=False, tally=Tally())
    check = check_axis(bench, AXES["batch_size"], [left], ARGUMENTS)
    assert "undetermined" == check.verdict
    matrix = check_matrix([left], ["tile-float32 without batch_size: no such thing"])
    assert "undetermined" == matrix.verdict
    assert ("nothing was compared", "tile-float32 without batch_size: no such thing") == (
        matrix.findings
    )


def test_a_finding_tells_how_to_see_it_again(bench):
    """A runner that gave no answer is a finding, with the command line of this very value."""
    outcome = make_outcome(bench, first=GONE, tally=Tally(1, 0, 1, 0))
    check = check_axis(bench, AXES["batch_size"], [outcome], ARGUMENTS)
    assert "violated" == check.verdict
    told = "no answer: the runner raises RuntimeError: gone"
    assert (f"batch_size=2: {told}",) == check.findings
    assert f"{told}\n{TRACE}" in check.explanation
    assert "compared    1 row, 0 differ; 1 token, 0 differ; 2" == check.lines[0]
    assert "1 0 0 (no answer)" in check_matrix([outcome], []).lines[1]
    assert check.explanation.endswith(
        "schedcheck conform --device cpu --model tiny --engine fast --backend tile --dtype float32 "
        "--axis batch_size=2"
    )


def test_a_runner_that_computes_nothing_alone_is_one_finding(bench):
    """Who raised is told once, with the traceback and how to see it again; no axis is run."""

    def make(way, num_blocks):
        raise_at_once = bench.subject.make(way, num_blocks)
        raise_at_once.execute = None
        return raise_at_once

    broken = Bench(attrs.evolve(bench.subject, make=make), bench.requests)
    check = check_baseline(broken, ARGUMENTS)
    assert "violated" == check.verdict
    assert "no answer: r0 alone: the runner raises TypeError" in check.findings[0]
    for part in ("error[alone]: tile float32", "Traceback", "--backend tile --dtype float32"):
        assert part in check.explanation


def test_tokens_alone_are_said_to_be_weaker(bench):
    """Of a runner without bits the report says that tokens were all there was."""
    outcome = make_outcome(bench, tally=Tally(0, 0, 35, 0))
    check = check_axis(bench, AXES["batch_size"], [outcome], ARGUMENTS)
    assert "weaker      this runner shows no bits, so tokens alone were compared" == check.lines[1]


def test_what_is_sampled_from_equal_rows_is_named(bench):
    """Where tokens differ and no row does, sampling is at fault, and the place is told."""
    part = Part("r1", 0, 7, 0, True, True, (1,))
    first = Difference("token", 2, part, 7, "token: 124, alone 38")
    outcome = make_outcome(bench, first=first, tally=Tally(9, 0, 3, 1))
    explanation = check_axis(bench, AXES["batch_size"], [outcome], ARGUMENTS).explanation
    assert "no row differs, so what is sampled from equal rows does: r1, position 7" in explanation
    assert "token: 124, alone 38" in explanation


PART = Part("r1", 0, 7, 0, True, True, (1,))
OTHER_KV = Difference("KV", 2, PART, 6, "another row than alone")


def explain(bench, monkeypatch, found, way=WAY):
    """The check of a row that differs, where a look into it comes to what is given."""

    def find(bench, way):
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(report, "find_divergence", find)
    outcome = make_outcome(bench, way=way, first=OTHER_KV, tally=Tally(9, 1, 3, 0))
    return check_axis(bench, AXES["batch_size"], [outcome], ARGUMENTS)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (RuntimeError("sizes differ"), "could not be explained: RuntimeError: sizes differ\n"),
        (HarnessError("not the same twice"), "could not be explained: not the same twice\nagain "),
        (RunnerFault("r0 alone: gone"), "could not be explained: r0 alone: gone\nagain "),
    ],
)
def test_an_explanation_that_fails_costs_no_verdict(bench, monkeypatch, found, told):
    """Whatever goes wrong while a finding is explained is told beside it."""
    check = explain(bench, monkeypatch, found)
    assert "violated" == check.verdict
    assert 1 == len(check.findings)
    assert f"block 1, slot 6): KV: another row than alone\n{told}" in check.explanation
    is_ours = isinstance(found, RuntimeError)
    assert is_ours == ("which is a bug of schedcheck; please report it" in check.explanation)
    assert "--axis batch_size=2" in check.explanation


def test_a_runner_that_is_right_the_second_time_is_told(bench, monkeypatch):
    """Where nothing differs while somebody looks, nor in another run, that is said."""
    check = explain(bench, monkeypatch, None)
    assert "the runner does not compute the same twice; at first r1" in check.explanation


@pytest.mark.parametrize(("device", "is_told"), [("cpu", False), ("cuda", True)])
def test_what_shows_without_looking_only_is_told(bench, monkeypatch, device, is_told):
    """Where a row differs only if nobody looks, that is said, and that graphs are off meanwhile."""
    graphed = Bench(attrs.evolve(bench.subject, device=device), bench.requests)
    monkeypatch.setattr(graphed, "follow", lambda *_: make_outcome(bench, first=OTHER_KV))
    way = attrs.evolve(WAY, graph_bucket=64)
    text = explain(graphed, monkeypatch, None, way).explanation
    assert "no row differs while somebody looks: it shows without looking only" in text
    assert is_told == ("recorded graphs are off while somebody looks; r1" in text)


def test_the_control_must_fail(bench):
    """A negative control that finds nothing is a finding; one that fails is as expected."""
    good = check_control(bench, [make_outcome(bench)])
    bad = check_control(bench, [make_outcome(bench, first=GONE)])
    assert ("violated", "holds") == (good.verdict, bad.verdict)
    assert "expected to fail, and did not" in good.findings[0]
    assert bad.lines[0].startswith("fails       as expected: 1,200 rows")


def test_ordinary_torch_fails():
    """The real control differs on some axis of its first values, and only in the last bits."""
    plain = make_bench("plain")
    outcomes = [
        run(plain, axis, AXES[axis].values[0]) for axis in ("prefill_chunk_size", "preemption")
    ]
    assert "holds" == check_control(plain, outcomes).verdict


def test_the_matrix_has_a_cell_for_each_axis_and_subject(bench):
    """Rows, rows that differ, tokens that differ; a dash where nothing was run."""
    other = attrs.evolve(bench.subject, dtype="bfloat16", is_control=True)
    outcomes = [
        make_outcome(bench, tally=Tally(1200, 2, 30, 1)),
        make_outcome(bench, subject=other, axis="batch_order"),
    ]
    header, size, order, note = check_matrix(outcomes, ["triton is left out"]).lines
    assert ["tile-float32", "tile-bfloat16", "(control)"] == header.split()
    assert ["batch_size", "1,200", "2", "1", "–"] == size.split()
    assert ["batch_order", "–", "1,200", "0", "0"] == order.split()
    assert "triton is left out" == note
