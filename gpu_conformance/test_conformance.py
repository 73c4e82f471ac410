"""The suite as plain pytest: `pytest gpu_conformance --device cpu`, a test for each value."""

from __future__ import annotations

import pytest

from gpu_conformance.bench import Bench
from gpu_conformance.command import choose_axes, choose_values
from gpu_conformance.conftest import get_order
from gpu_conformance.registry import Axis, Value
from gpu_conformance.report import check_axis, check_baseline, check_control


def test_the_baseline_is_accurate(bench: Bench, pytestconfig: pytest.Config) -> None:
    """What each request computes alone is what float64 says, and not always the same."""
    check = check_baseline(bench, get_order(pytestconfig).arguments)
    assert check.verdict == "holds", "\n".join([*check.findings, check.explanation])


def test_every_bit_is_as_alone(
    bench: Bench, axis: Axis, value: Value, pytestconfig: pytest.Config
) -> None:
    """Each row of logits and KV, and each token, is what its request computes alone."""
    outcome = bench.run(axis, value)
    if outcome.left_out:
        pytest.skip(outcome.left_out)
    check = check_axis(bench, axis, [outcome], get_order(pytestconfig).arguments)
    assert check.verdict == "holds", "\n".join([*check.findings, check.explanation])


def test_the_control_fails(control: Bench) -> None:
    """Ordinary torch differs somewhere, as expected, so that a difference can be seen at all."""
    values = [
        (axis, choose_values(axis, given, is_slow=False, is_control=True)[0])
        for axis, given in choose_axes(())
    ]
    outcomes = [control.run(axis, value) for axis, value in values]
    check = check_control(control, outcomes)
    assert check.verdict == "holds", check.findings
