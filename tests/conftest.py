"""What every test shares: Hypothesis profiles, `--no-skip`, and that Ctrl-C is heard."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# "ci" finds the same things every time, within the minutes of a push; "deep" is for a night. One is
# chosen with HYPOTHESIS_PROFILE=deep, or with Hypothesis's own --hypothesis-profile deep.
settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    # A loaded machine is slow, which says nothing about a test.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep", parent=settings.get_profile("ci"), derandomize=False, max_examples=2000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# A job in the background is born to ignore Ctrl-C, and would pass that on to the commands that are
# interrupted here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--no-skip`."""
    parser.addoption(
        "--no-skip", action="store_true", help="fail a test that would skip, with its reason"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turns the skip of a test into a failure under `--no-skip`."""
    report = yield
    # An expected failure is reported as skipped, too, but it did run.
    if not hasattr(report, "wasxfail"):
        _refuse_skip(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Turns the skip of a whole file into a failure under `--no-skip`."""
    report = yield
    _refuse_skip(collector.config, report)
    return report


def _refuse_skip(config: pytest.Config, report: Any) -> None:
    if config.getoption("--no-skip") and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"--no-skip: {report.nodeid} would skip: {report.longrepr[2]}"
