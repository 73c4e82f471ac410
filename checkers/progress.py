"""Progress on stderr: a live line on a terminal, a line now and then elsewhere.

Entry point: `Progress`.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

QUIET_S = 10.0
"""How often a log, which is no terminal, gets a line."""


class Progress:
    """Says what is being done. Used as a context; never writes to stdout."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status: Status | None = None
        self._said_at = time.monotonic()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._status = self.console.status("", spinner="line")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Shows what is being done now."""
        if self._status is not None:
            self._status.update(Text(text))
        elif time.monotonic() - self._said_at > QUIET_S:
            self._said_at = time.monotonic()
            self.console.print(Text(text), soft_wrap=True)
