"""Which lines of a change a run has reached.

Entry point: `Reach`. Only code that holds such lines is followed, and nothing once all of them are
reached.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

Lines = dict[str, list[int]]
"""Line numbers by file."""
Key = tuple[str, int, str]
"""A function: its file, its first line, its name."""


class Reach:
    """Lines that are to be reached; `left` holds those that have not been."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.left = {path: set(numbers) for path, numbers in lines.items() if numbers}
        self._lines_of: dict[Key, set[int]] = {}

    def missing(self) -> Lines:
        """What has not been reached, in order."""
        return {path: sorted(numbers) for path, numbers in self.left.items() if numbers}

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
        if any(self.left.values()):
            sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        left = self.left.get(frame.f_code.co_filename)
        if not left or left.isdisjoint(self._find_lines(frame.f_code)):
            return None
        return self._on_line

    def _on_line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            left = self.left[frame.f_code.co_filename]
            left.discard(frame.f_lineno)
            if not left and not any(self.left.values()):
                sys.settrace(None)
        return self._on_line

    def _find_lines(self, code: CodeType) -> set[int]:
        key = (code.co_filename, code.co_firstlineno, code.co_qualname)
        if key not in self._lines_of:
            self._lines_of[key] = {line for _, _, line in code.co_lines() if line}
        return self._lines_of[key]
