"""Makes checks one by one, prints each at once, and ends with the exit code.

Entry point: `report_checks`, which every command ends in.
"""

# ruff: noqa: PLC0415  (what prints is imported when there is something to print)

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from checkers.errors import HarnessError

if TYPE_CHECKING:
    from rich.console import Console

    from checkers.progress import Progress
    from checkers.report import Check

CTRL_C = "Ctrl-C"


def report_checks(
    command: str,
    checks: Callable[[Progress], Iterator[Check]],
    form: str,
    scope: str | Callable[[Sequence[Check]], str],
) -> NoReturn:
    """Runs the checks one by one, prints each at once, and exits with the worst verdict.

    What it holds for may depend on the checks.
    """
    from rich.console import Console

    from checkers.progress import Progress
    from checkers.report import Reporter

    reporter = Reporter(command, form, "", make_console(), time.monotonic())
    # What an engine prints is no part of the report.
    with Progress(Console(stderr=True)) as progress, contextlib.redirect_stdout(sys.stderr):
        try:
            for check in checks(progress):
                reporter.add(check)
                if check.facts.get("interrupted_by") == CTRL_C:
                    reporter.stop(CTRL_C)
                    break
        except KeyboardInterrupt:
            reporter.stop(CTRL_C)
        except HarnessError as error:
            if not reporter.checks:
                raise
            reporter.fault = str(error)
            reporter.stop(reporter.fault)
    reporter.scope = scope if isinstance(scope, str) else scope(reporter.checks)
    sys.exit(reporter.finish())


def make_console() -> Console:
    """A console on the stdout of now, whatever is redirected later."""
    from rich.console import Console

    class _Console(Console):
        """Ends where nobody reads on."""

        def on_broken_pipe(self) -> None:
            """Nobody reads on, as with `| head`: that is no finding, and no success."""
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
            sys.exit(3)

    return _Console(file=sys.stdout, soft_wrap=True, emoji=False)
