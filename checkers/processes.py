"""Processes that work for a command: an interpreter of their own, and a connection to it.

Entry points: `start_process`; `describe_end` for one that has ended by itself. One that runs what
may start others calls `lead_session`, and is ended by `end_session`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")


def start_process(
    serve: Callable[..., None], *arguments: Any, is_daemon: bool = True
) -> tuple[BaseProcess, Connection]:
    """Starts `serve(connection, *arguments)`; it ends with this process, if it is a daemon.

    Ctrl-C is for the command alone, which then tells or ends the process: it is born with SIGINT
    blocked.
    """
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=serve, args=(theirs, *arguments), daemon=is_daemon)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    theirs.close()
    return process, ours


def describe_end(process: BaseProcess) -> str:
    """How a process that answers no more came to its end: by a signal, or with an exit code."""
    process.join()
    code = process.exitcode
    assert code is not None, "it has ended"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended its process with exit code {code}"


def end_session(process: BaseProcess) -> None:
    """Ends a process that leads a session, and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.kill()
    process.join()


# ---- in the process ------------------------------------------------------------------------------


def lead_session() -> None:
    """Makes this process lead a session that ends with the command, and print to stderr.

    What is printed, from whatever language, is no part of the report.
    """
    os.setsid()
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def _end_with_the_command() -> None:
    """Ends this process, and whatever it has started, once the command is gone."""
    command = multiprocessing.parent_process()
    assert command is not None, "this process was started by one"
    command.join()
    os.killpg(0, signal.SIGKILL)
