from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from checkers.machine import scheduler_machine
from examples.block_names import BlockNames
from examples.lesson_scheduler import Job, LessonScheduler

# Collected here, so that the example runs with our profile.
from examples.test_toy_scheduler import (  # noqa: F401
    LESSON,
    TestToyScheduler,
    test_the_lessons_program_lets_a_job_starve,
)
from examples.toy_adapter import ToyAdapter
from examples.toy_scheduler import ToyScheduler


def run_the_lesson():
    """Runs the lesson's four jobs to their end; yields what each step schedules, and its note."""
    lesson = LessonScheduler(block_size=16, token_budget=64, max_seqs=3, total_blocks=12)
    for name, prompt, max_new in (("A", 40, 4), ("B", 100, 2), ("C", 90, 2), ("D", 10, 2)):
        lesson.submit(Job(name, prompt, max_new))
    while lesson.queue or lesson.active:
        yield lesson.begin_step(), lesson.note
        lesson.end_step(dict.fromkeys("ABCD", 0))


def test_the_program_does_what_the_lesson_says():
    """B is read in three chunks while A goes on; C does not fit, and D waits behind it."""
    assert list(run_the_lesson()) == [
        ({"A": 40, "B": 24}, ""),
        ({"A": 1, "B": 63}, ""),
        ({"A": 1, "B": 13}, "C needs 6 blocks, 2 free: stop admitting"),
        ({"A": 1, "B": 1}, "C needs 6 blocks, 2 free: stop admitting"),
        ({"C": 64}, ""),
        ({"C": 26, "D": 10}, ""),
        ({"C": 1, "D": 1}, ""),
    ]


class ForgetsBlocks(ToyScheduler):
    """Gives back one block too few."""

    def _drop(self, job):
        super()._drop(job)
        self.free -= 1


class HasRoomForAll(ToyScheduler):
    """Counts out blocks that are not there."""

    def _has_room(self, job, need):
        return True


@pytest.mark.parametrize(
    ("toy", "rule"),
    [
        (ForgetsBlocks, "blocks_are_conserved"),
        (HasRoomForAll, "no_block_is_free_and_held|blocks_are_conserved"),
    ],
)
def test_the_adapter_does_not_hide_a_wrong_count(toy, rule):
    """The toy has no block ids, and still the rules of blocks find a toy that counts wrongly."""
    machine = scheduler_machine(lambda config: ToyAdapter(config, toy), [LESSON])
    with pytest.raises(AssertionError, match=rf"^error\[({rule})\]"):
        run_state_machine_as_test(machine)


def test_names_follow_counts():
    """A name goes out when a count grows, comes back when it shrinks, and is nobody else's."""
    names = BlockNames(3)
    assert names.follow({"a": 1, "b": 1}) == {"a": [1], "b": [2]}
    assert names.follow({"a": 2, "b": 0}) == {"a": [3], "b": []}
    assert (names.tables, names.free) == ({"a": [1, 3], "b": []}, [2])
    assert names.follow({"c": 4}) == {"c": [2, 1, 3, 4]}
