"""One side of a change, as the command sees it: a process that is asked, watched and ended.

Entry point: `Side.ask`; `Side.send` and `Side.collect` are its halves, for two sides at once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from attrs import define, field, frozen

from checkers.errors import HarnessError
from checkers.patch.protocol import MEMORY_EXIT_CODE, Job, pack
from checkers.patch.sources import INSTALLED

START_S = 60.0
"""A machine may be busy, but not for so long."""
IMPORT_CALLS = 10
"""An import may take as long as so many calls of the engine."""
ABORT_S = 2.0
MAX_DETAIL_LINES = 15

OnLine = Callable[[str, Any], None]
"""Told of each `at` and `walk` on the way to an answer."""


@frozen
class Death:
    """How a process came to its end."""

    side: str
    doing: str
    """What it was asked for."""
    setting: int | None
    """In which setting; None while it was imported."""
    number: int | None
    """In which walk, if it walked."""
    how: str
    detail: str
    """The end of what it wrote to stderr: the traceback, mostly."""


class SideDied(Exception):  # noqa: N818  (becomes a finding)
    """The process has ended, or was ended since it did not answer."""

    def __init__(self, death: Death) -> None:
        super().__init__(death.how)
        self.death = death


class Refused(HarnessError):  # noqa: N818  (its message is for the user)
    """The engine cannot be imported, or an input makes no sense to the process."""


@define
class Side:
    """A process with one version of the engine."""

    name: str
    """`base` or `head`."""
    job: Job
    process: subprocess.Popen[str] = field(init=False)
    _lines: queue.SimpleQueue[Any] = field(init=False)
    _errors: IO[bytes] = field(init=False)
    _ids: itertools.count[int] = field(factory=itertools.count, init=False)
    _at: int | None = field(default=None, init=False)

    def start(self) -> None:
        """Starts the process; it has not loaded the engine yet."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        paths = [self.job.folder, str(INSTALLED), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "checkers.patch.child"],
            cwd=self.job.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # Ctrl-C is for the command alone, which then ends this.
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "PYTHONHASHSEED": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        self._lines = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def load(self) -> Any:
        """Imports the engine; returns which lines are still to be reached.

        Raises `Refused` if the import fails, `SideDied` if it does worse.
        """
        self.ask("hello", START_S)
        return self.ask("load", IMPORT_CALLS * self.job.engine_timeout, job=pack(self.job))

    def close(self) -> None:
        """Ends the process, and whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None, "both are pipes"
                stream.close()
        self._errors.close()

    def ask(self, verb: str, limit_s: float, /, **values: Any) -> Any:
        """Asks, and waits for the answer. Raises `SideDied` if none comes in time."""
        return self.collect(self.send(verb, **values), verb, limit_s, values)

    def send(self, verb: str, **values: Any) -> int:
        """Asks without waiting; returns the number of the question."""
        self._at = values.get("setting")
        number = next(self._ids)
        assert self.process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):  # That it has ended is found out in a moment.
            self.process.stdin.write(json.dumps({"id": number, "verb": verb, **values}) + "\n")
            self.process.stdin.flush()
        return number

    def collect(
        self,
        number: int,
        verb: str,
        limit_s: float,
        values: dict[str, Any],
        on_line: OnLine | None = None,
    ) -> Any:
        """Waits for the answer to a question; what is left of earlier ones is passed over."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise self._died(verb, values, f"did not answer within {limit_s:.0f} s") from None
            if line is None:
                raise self._died(verb, values, "")
            if line.pop("id") != number:
                continue
            ((kind, value),) = line.items()
            if kind == "done":
                return value
            if kind == "refused":
                raise Refused(value)
            if kind == "bug":
                raise RuntimeError(f"in the process of {self.name}:\n{value}")
            if kind == "at":
                self._at = value
            if on_line is not None:
                on_line(kind, value)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        lines = self._lines
        assert process.stdout is not None, "it is a pipe"
        with contextlib.suppress(ValueError, OSError):  # Closed from outside.
            for line in process.stdout:
                with contextlib.suppress(json.JSONDecodeError):  # The last words of one that died.
                    lines.put(json.loads(line))
        lines.put(None)

    def _died(self, verb: str, values: dict[str, Any], how: str) -> SideDied:
        """Ends the process, if it has not ended itself, and says how it was."""
        if how:
            self._abort()
        code = self.process.wait()
        self._errors.seek(0)
        written = self._errors.read().decode(errors="replace")
        lines = written.replace(f"{self.job.folder}{os.sep}", "").strip().splitlines()
        detail = "\n".join(lines[:MAX_DETAIL_LINES])
        how = how or self._describe_end(code, written)
        return SideDied(Death(self.name, verb, self._at, values.get("number"), how, detail))

    def _abort(self) -> None:
        """Ends the process so that it says where it was; one that does not listen is killed."""
        self.process.send_signal(signal.SIGABRT)
        try:
            self.process.wait(ABORT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _describe_end(self, code: int, written: str) -> str:
        if "Timeout (" in written:
            return f"did not return from a call within {self.job.engine_timeout:g} s"
        if code == MEMORY_EXIT_CODE:
            return f"needed more than {self.job.memory_mib} MiB"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended its process with exit code {code}"
