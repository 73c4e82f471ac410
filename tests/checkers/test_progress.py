from __future__ import annotations

import io

from rich.console import Console

from checkers import progress
from checkers.progress import Progress


def console_of(*, is_terminal):
    """A console, and what is written to it."""
    written = io.StringIO()
    return Console(file=written, force_terminal=is_terminal, width=80), written


def test_a_log_is_left_alone_at_first():
    """What ends soon says nothing to a log."""
    console, written = console_of(is_terminal=False)
    with Progress(console) as shown:
        shown.say("working")
    assert "" == written.getvalue()


def test_a_log_gets_a_line_now_and_then(monkeypatch):
    """What takes long says so, a line at a time, without colour and without cursor movements."""
    monkeypatch.setattr(progress, "QUIET_S", -1.0)
    console, written = console_of(is_terminal=False)
    with Progress(console) as shown:
        shown.say("working [on] it")
        shown.say("still :x: working")
    assert "working [on] it\nstill :x: working\n" == written.getvalue()


def test_a_terminal_has_a_live_line():
    """On a terminal what is being done stands in one line, which is gone afterwards."""
    console, written = console_of(is_terminal=True)
    with Progress(console) as shown:
        shown.say("working on [/it]")
        shown._status._live.refresh()
    assert "working on [/it]" in written.getvalue()
    assert "\x1b" in written.getvalue()
    assert written.getvalue().rstrip().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")
