"""A foreign runner in a process of its own: one that ends its process takes no verdict along.

Entry point: `conform_apart`. torch is imported there, and not here.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console

from checkers.errors import HarnessError
from checkers.processes import describe_end, end_session, lead_session, start_process
from checkers.progress import Progress
from checkers.report import Check

DONE = None
"""Said last: that nothing follows is not for a runner to say."""


def conform_apart(order: dict[str, Any], progress: Progress) -> Iterator[Check]:
    """Yields what `conform_all` yields for an order; at the end, how its process has ended.

    Raises whatever that raises.
    """
    # Not a daemon, since a runner may have processes of its own.
    process, connection = start_process(_serve, order, is_daemon=False)
    said = ""
    try:
        while (word := connection.recv()) is not DONE:
            if isinstance(word, Exception):
                raise word
            if isinstance(word, Check):
                yield word
            else:
                said = word
                progress.say(said)
    except (EOFError, ConnectionResetError):
        yield _check_end(order["backends"], describe_end(process), said)
    finally:
        end_session(process)
        connection.close()


def _check_end(backends: tuple[str, ...], end: str, said: str) -> Check:
    evidence = f"the runner {end}, in: {said or 'its import'}"
    return Check(
        title=f"conform  {' '.join(backends)}",
        verdict="violated",
        lines=("what comes after that was not looked at",),
        facts={"end": end, "in": said},
        findings=(evidence,),
    )


class _Teller(Progress):
    """Tells the command, not the terminal."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(Console(stderr=True))
        self.connection = connection

    def say(self, text: str) -> None:
        """Sends it on."""
        self.connection.send(text)


def _serve(connection: Connection, order: dict[str, Any]) -> None:
    lead_session()
    try:
        from gpu_conformance.command import Order, conform_all  # noqa: PLC0415  (torch)

        for check in conform_all(Order(**order), _Teller(connection)):
            connection.send(check)
    except HarnessError as error:
        connection.send(error)
    except Exception:  # noqa: BLE001  (the command says so, and exits as for any fault of ours)
        connection.send(RuntimeError(traceback.format_exc()))
    else:
        connection.send(DONE)
