"""All that it takes to check a scheduler with pytest: one line, once there is an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from checkers.machine import scheduler_machine

LESSON = str(Path(__file__).with_name("lesson.toml"))

TestToyScheduler = scheduler_machine("examples.toy_adapter:make_toy", ["plain", LESSON]).TestCase


def test_the_lessons_program_lets_a_job_starve() -> None:
    """The program of the lesson is caught where its own comment says what it lacks."""
    machine = scheduler_machine("examples.toy_adapter:make_lesson", [LESSON])
    with pytest.raises(AssertionError, match="grants_are_maximal"):
        run_state_machine_as_test(machine)
