"""Walks in a process of their own."""

from __future__ import annotations

import io
import signal

import pytest
from rich.console import Console

from checkers.beside import Walks, walking_beside
from checkers.commands import explore_until, walk
from checkers.engines import load_engine
from checkers.errors import HarnessError
from checkers.progress import Progress
from checkers.search import Plan
from tests.checkers.planted import TINY, EndsItsProcess, LosesABlock

PLAN = Plan(num_walks=3, length=40)


def name_of(make):
    """An engine, as the command line takes it."""
    return f"{make.__module__}:{make.__name__}"


def walk_beside(engine, out, plan=PLAN, progress=None):
    """What the walks of another process come to."""
    progress = progress or Progress(Console(file=io.StringIO()))
    with walking_beside(Walks(engine, 10.0, [TINY], plan, out)) as beside:
        return beside.result(progress)


@pytest.mark.parametrize("engine", ["fast", name_of(LosesABlock)])
def test_they_say_what_walks_of_this_process_say(engine, tmp_path):
    """The verdict, the facts and the counterexample are the same, wherever the walks are made."""
    theirs = walk_beside(engine, tmp_path)
    ours = walk(load_engine(engine), [TINY], PLAN, Progress(Console(file=io.StringIO())), tmp_path)
    for check in (theirs, ours):
        check.facts.pop("engine_steps_per_cpu_s")
    assert (ours.verdict, ours.facts) == (theirs.verdict, theirs.facts)
    assert (ours.counterexample, ours.path) == (theirs.counterexample, theirs.path)


def test_an_engine_that_ends_its_process_takes_nobody_along(tmp_path):
    """It is one sentence of ours, and this process goes on."""
    with pytest.raises(HarnessError, match="ended its process with exit code 7, by the engine"):
        walk_beside(name_of(EndsItsProcess), tmp_path)


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_ctrl_c_keeps_the_walks_that_were_made(handler, tmp_path):
    """The process is told to end, also below a command that was born to ignore it."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        check = interrupted_walk(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ("undetermined", "Ctrl-C") == (check.verdict, check.facts["interrupted_by"])
    assert 0 < check.facts["num_walks"] < 1_000_000


def interrupted_walk(out):
    """What endless walks come to, once the command is told to end."""

    class Pressing(Progress):
        """Presses Ctrl-C at the first word of progress."""

        presses = 1

        def say(self, text):
            """Presses, once."""
            if self.presses:
                self.presses = 0
                raise KeyboardInterrupt

    endless = Plan(num_walks=1_000_000, length=40)
    return walk_beside("fast", out, endless, Pressing(Console(file=io.StringIO())))


def test_the_process_ends_with_the_block(tmp_path):
    """Whoever does not ask for the result leaves no process behind."""
    plan = Plan(num_walks=1_000_000, length=40)
    with walking_beside(Walks("fast", 10.0, [TINY], plan, tmp_path)) as beside:
        assert beside.process.is_alive()
    assert not beside.process.is_alive()


def test_whether_they_have_found_something_is_known_at_once(tmp_path):
    """Asking does not wait for endless walks; once they have, it is so, and the result is there."""
    progress = Progress(Console(file=io.StringIO()))
    endless = Plan(num_walks=1_000_000, length=40)
    with walking_beside(Walks("fast", 10.0, [TINY], endless, tmp_path)) as beside:
        assert not beside.has_found(progress)
    with walking_beside(Walks(name_of(LosesABlock), 10.0, [TINY], PLAN, tmp_path)) as beside:
        assert "violated" == beside.result(progress).verdict
        assert beside.has_found(progress)


def test_what_is_left_to_explore_is_said(tmp_path):
    """Once the walks have found something, the settings that are left are named, and not held."""
    answers = iter([False, True])
    progress = Progress(Console(file=io.StringIO()))
    done, left = explore_until(lambda: next(answers), [TINY, TINY, TINY], progress, tmp_path)
    assert ("holds", "undetermined") == (done.verdict, left.verdict)
    assert [TINY.name, TINY.name] == left.facts["left"]
