"""Ctrl-C that is not lost.

Entry point: `kept_interrupts`. z3 gives terms back in `__del__`, from which no error gets out:
Python reports it and goes on. A proof is often in there, and one Ctrl-C in ten had no effect.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

PAUSE_S = 0.01
"""So long until it comes again; by then the place that swallowed it is left."""


@contextlib.contextmanager
def kept_interrupts() -> Iterator[None]:
    """Sends Ctrl-C again, as often as it takes, where it came in the middle of a `__del__`."""
    report = sys.unraisablehook

    def send_again(ignored: sys.UnraisableHookArgs) -> None:
        if ignored.exc_type is KeyboardInterrupt:
            threading.Timer(PAUSE_S, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            report(ignored)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = report
