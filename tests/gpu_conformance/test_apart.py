"""A foreign runner may end its process, and takes no verdict along."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from checkers.cli import main

SUPPORT = "tests.gpu_conformance.support"


def report_on(runner, *options):
    """The command's report on a foreign runner, and its exit code."""
    backend = ("--backend", f"{SUPPORT}:{runner}", "--axis", "batch_size=2")
    result = CliRunner().invoke(main, ["conform", *backend, "--format", "json", *options])
    return json.loads(result.stdout), result.exit_code


@pytest.mark.parametrize(
    ("runner", "end"),
    [("Exits", "ended its process with exit code 0"), ("Killed", "was ended by SIGKILL")],
)
def test_a_runner_that_ends_its_process_is_a_finding(runner, end):
    """How it ended and what was computed is told, behind what had been found before."""
    document, exit_code = report_on(runner)
    assert (1, "violated") == (exit_code, document["verdict"])
    before, last = document["checks"]
    assert "holds" == before["verdict"]
    told = f"the runner {end}, in: conform {SUPPORT}:{runner}-own: batch_size 2"
    assert [told] == last["findings"]


def test_what_a_runner_prints_is_no_part_of_the_report():
    """Whatever it writes to stdout, the report can be read, and is the same as without."""
    document, exit_code = report_on("Prints")
    assert (0, 3) == (exit_code, len(document["checks"]))


def test_what_cannot_be_a_runner_is_refused_in_one_sentence():
    """The process says why, and the command ends as for any wrong usage."""
    options = ("--backend", f"{SUPPORT}:Nobody")
    result = CliRunner().invoke(main, ["conform", *options])
    assert 2 == result.exit_code
    assert "has no attribute 'Nobody'; name a module that can" in result.stderr
