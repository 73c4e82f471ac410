"""Which lines of a change a run has reached, and with which operands.

Entry point: `Reach`. Only code that holds such lines is followed, and nothing once all of them are
reached, each operand having been something at least once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from attrs import define, frozen

from checkers.patch.operands import Operand

Lines = dict[str, list[int]]
"""Line numbers by file."""
Operands = dict[str, list[Operand]]
"""The same of what lines work with."""
Key = tuple[str, int, str]
"""A function: its file, its first line, its name."""


@frozen
class Absent:
    """An operand that was nothing whenever its line ran, if it did, and how it looked."""

    operand: Operand
    values: list[str]


@frozen
class Lack:
    """What runs have not shown, by file."""

    lines: Lines
    operands: dict[str, list[Absent]]


class Reach:
    """Lines that are to be reached; `left` holds those that have not been."""

    def __init__(self, lines: Lines, operands: Operands | None = None) -> None:
        self.lines = lines
        self.left = {path: set(numbers) for path, numbers in lines.items() if numbers}
        # By file and line: what was nothing so far, and how it looked.
        self.absent: dict[str, dict[int, dict[Operand, dict[str, None]]]] = {}
        for path, wanted in (operands or {}).items():
            for operand in wanted:
                rows = self.absent.setdefault(path, {})
                rows.setdefault(operand.line, {})[operand] = {}
        self._lines_of: dict[Key, set[int]] = {}

    def missing(self) -> Lack:
        """What has not been reached, or only with nothing, in order."""
        return Lack(
            {path: sorted(numbers) for path, numbers in self.left.items() if numbers},
            {
                path: [Absent(o, [*values]) for row in rows.values() for o, values in row.items()]
                for path, rows in self.absent.items()
                if rows
            },
        )

    def reached(self) -> list[tuple[str, int]]:
        """What has been reached: file and line."""
        return [
            (path, line)
            for path, numbers in self.lines.items()
            for line in numbers
            if line not in self.left.get(path, ())
        ]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks which lines the block reaches; costs nothing when none is left."""
        if not self._is_done():
            sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(None)

    def note(self, path: str, line: int) -> None:
        """Notes that a line runs."""
        left = self.left.get(path)
        if left and line in left:
            left.discard(line)
            self._end_if_done()

    def look(self, path: str, line: int, names: Mapping[str, Any]) -> None:
        """Looks at the operands of a line, beside the variables of its function."""
        row = self.absent[path][line]
        for operand, values in list(row.items()):
            look = operand.look(names)
            if look:
                values[look] = None
            elif look is not None:
                del row[operand]
        if not row:
            del self.absent[path][line]
            self._end_if_done()

    def _is_done(self) -> bool:
        return not any(self.left.values()) and not any(self.absent.values())

    def _end_if_done(self) -> None:
        if self._is_done():
            sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        path = frame.f_code.co_filename
        left, absent = self.left.get(path, ()), self.absent.get(path, ())
        if not left and not absent:
            return None
        lines = self._find_lines(frame.f_code)
        if lines.isdisjoint(left) and lines.isdisjoint(absent):
            return None
        return _Follower(self, path).on_event

    def _find_lines(self, code: CodeType) -> set[int]:
        key = (code.co_filename, code.co_firstlineno, code.co_qualname)
        if key not in self._lines_of:
            self._lines_of[key] = {line for _, _, line in code.co_lines() if line}
        return self._lines_of[key]


@define
class _Follower:
    """Follows one call of a function, line by line."""

    reach: Reach
    path: str
    line: int = 0
    """Which runs."""

    def on_event(self, frame: FrameType, event: str, arg: object) -> Any:
        """Notes a line that begins; its operands are looked at before it runs and afterwards.

        Afterwards, a name that the line itself binds has its value.
        """
        if event in ("line", "return"):
            absent = self.reach.absent.get(self.path, {})
            if self.line in absent:
                self.reach.look(self.path, self.line, frame.f_locals)
            if event == "line":
                self.line = frame.f_lineno
                self.reach.note(self.path, self.line)
                if self.line in absent:
                    self.reach.look(self.path, self.line, frame.f_locals)
        return self.on_event
