"""Walks in a process of their own, so that a second core is used while the first explores.

Entry point: `walking_beside`. The process has the engine to itself: what an engine prints, or
does to its own process, takes nobody along.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from attrs import define, frozen
from rich.console import Console

from checkers import commands
from checkers.configs import Setting
from checkers.engines import load_engine
from checkers.errors import HarnessError
from checkers.processes import describe_end, start_process
from checkers.progress import Progress
from checkers.report import Check
from checkers.search import Plan

TELL_S = 1.0
"""How often the process says how far it is; rarely, since nobody may be listening yet."""


@frozen
class Walks:
    """What the process is asked for."""

    engine: str
    engine_timeout: float
    settings: list[Setting]
    plan: Plan
    out: Path | None


@define
class Beside:
    """The process, seen from outside."""

    process: BaseProcess
    connection: Connection

    def result(self, progress: Progress) -> Check:
        """Waits for the walks. On Ctrl-C they end, and what was walked is reported.

        Raises `HarnessError` for a fault of ours, or if the process has ended.
        """
        try:
            return self._wait(progress)
        except KeyboardInterrupt:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid or 0, signal.SIGINT)
            return self._wait(progress)

    def _wait(self, progress: Progress) -> Check:
        while True:
            try:
                answer = self.connection.recv()
            except (EOFError, ConnectionResetError):
                raise HarnessError(
                    f"what walks beside {describe_end(self.process)}, by the engine or for want of "
                    "memory; walk with schedcheck search to see where"
                ) from None
            if isinstance(answer, Check):
                return answer
            if isinstance(answer, HarnessError):
                raise answer
            progress.say(answer)


@contextlib.contextmanager
def walking_beside(walks: Walks) -> Iterator[Beside]:
    """Walks for as long as the block lasts, and no longer."""
    process, connection = start_process(_serve, walks)
    try:
        yield Beside(process, connection)
    finally:
        process.kill()
        process.join()
        connection.close()


class _Teller(Progress):
    """Tells the command, not the terminal."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(Console(stderr=True))
        self.connection = connection
        self.told_at = 0.0

    def say(self, text: str) -> None:
        """Sends it on, now and then."""
        if time.monotonic() - self.told_at > TELL_S:
            self.told_at = time.monotonic()
            self.connection.send(text)


def _serve(connection: Connection, walks: Walks) -> None:
    os.setsid()
    # A command started in the background ignores Ctrl-C, and would pass that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # What an engine prints is no part of the report.
    sys.stdout = sys.stderr
    with contextlib.suppress(BrokenPipeError):  # The command has ended, and asks for no answer.
        connection.send(_walk(walks, _Teller(connection)))


def _walk(walks: Walks, progress: Progress) -> Check | HarnessError:
    try:
        engine = load_engine(walks.engine, walks.engine_timeout)
        return commands.walk(engine, walks.settings, walks.plan, progress, walks.out)
    except HarnessError as error:
        return error
    except Exception:  # noqa: BLE001  (the command says so, and exits as for any fault of ours)
        return HarnessError(f"the walks: {traceback.format_exc()}")
