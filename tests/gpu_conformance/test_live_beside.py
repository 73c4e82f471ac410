"""Engines in processes of their own, each ended in another way."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from checkers.errors import EngineFault, HarnessError
from gpu_conformance.live.beside import EngineBeside
from gpu_conformance.live.interface import Served
from gpu_conformance.registry import NotHere
from gpu_conformance.way import Sights, make_way
from gpu_conformance.work import Work, make_requests

WAY = make_way(make_requests(Work((3,), 1)))


class Does:
    """An engine that does what its model is called."""

    block_size = 32

    def __init__(self, model, dtype, device):
        self.todo = model

    def serve(self, way):
        """Answers nobody, or does something else."""
        verb, _, path = self.todo.partition(" ")
        if verb == "leave":
            os._exit(7)
        elif verb == "refuse":
            raise NotHere("not asked like that")
        elif verb == "raise":
            raise ValueError("no memory")
        elif verb == "hang":
            child = subprocess.Popen(["sleep", "600"])  # noqa: S607
            Path(path).write_text(str(child.pid))
            child.wait()
        return Served({}, Sights())


def start(todo, limit_s=60.0):
    """Such an engine, beside."""
    return closing(EngineBeside(f"{__name__}:Does", todo, "float32", "cpu", limit_s))


def is_running(pid):
    """Whether a process is still there, and more than its exit code."""
    try:
        return "(sleep) Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_an_engine_beside_is_served_like_any_other():
    """Ways and answers pass as they are, and so does what it cannot be asked for."""
    with start("answer") as engine:
        assert (32, Served({}, Sights())) == (engine.block_size, engine.serve(WAY))
    with start("refuse") as engine, pytest.raises(NotHere, match="not asked like that"):
        engine.serve(WAY)


def test_what_an_engine_beside_raises_is_told_with_its_traceback():
    """The fault names the error, and the line that raised it."""
    with (
        start("raise") as engine,
        pytest.raises(EngineFault, match="ValueError: no memory") as told,
    ):
        engine.serve(WAY)
    assert 'raise ValueError("no memory")' in told.value.traceback


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes by /proc")
def test_an_engine_that_hangs_is_ended_with_what_it_has_started(tmp_path):
    """It did not answer in time; neither its process nor that of its own is left behind."""
    path = tmp_path / "pid"
    with start(f"hang {path}", limit_s=4.0) as engine:
        with pytest.raises(EngineFault, match="did not answer within 4 s"):
            engine.serve(WAY)
        pid = int(path.read_text())
        for _ in range(100):
            if not is_running(pid):
                break
            time.sleep(0.1)
        assert not is_running(pid)


def test_an_engine_that_ends_its_process_is_started_again():
    """How it ended is told; the next question goes to another process."""
    with start("leave") as engine:
        for _ in range(2):
            with pytest.raises(EngineFault, match="ended its process with exit code 7"):
                engine.serve(WAY)


def test_an_engine_that_is_not_there_is_wrong_usage():
    """What cannot be imported, or is no engine, is told in one sentence."""
    missing = EngineBeside("no.such:Engine", "tiny", "float32", "cpu", 60.0)
    with closing(missing), pytest.raises(HarnessError, match=r"no\.such:Engine cannot be imported"):
        missing.serve(WAY)
