"""Which lines of a change a run has reached, and with which operands.

Entry point: `Reach`. Only code that holds such lines is followed, and nothing once all of them are
reached, each operand having been something at least once. What runs may be asked for itself, too,
whether it touches the change: one of the lines, with all that this line works with.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any

from attrs import define, field, frozen

from checkers.patch.conditions import OneWay
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
    conditions: dict[str, list[OneWay]] = field(factory=dict)


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
        self.operands = operands or {}
        self._is_touched = True
        # By file and line: what must still be something before the change is touched.
        self._untouched: dict[str, dict[int, set[Operand]]] = {}
        self._lines_of: dict[Key, set[int]] = {}

    def ask(self) -> None:
        """Asks whether what runs from now on touches the change."""
        self._is_touched, self._untouched = False, self._all_untouched()

    def answer(self) -> bool:
        """Whether it did; nothing is asked any more."""
        is_touched, self._is_touched, self._untouched = self._is_touched, True, {}
        return is_touched

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
        """Looks which lines the block reaches; costs little when none is left."""
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

    def is_looked_at(self, path: str, line: int) -> bool:
        """Whether anything is to be known of the operands of a line."""
        return line in self.absent.get(path, ()) or line in self._untouched.get(path, ())

    def look(self, path: str, line: int, names: Mapping[str, Any]) -> None:
        """Looks at the operands of a line, beside the variables of its function."""
        rows = self.absent.get(path, {})
        for operand, values in list(rows.get(line, {}).items()):
            look = operand.look(names)
            if look:
                values[look] = None
            elif look is not None:
                del rows[line][operand]
        if not rows.get(line, True):
            del rows[line]
        untouched = self._untouched.get(path, {}).get(line)
        if untouched is not None:
            untouched -= {operand for operand in untouched if operand.look(names) == ""}
            if not untouched:
                self._is_touched, self._untouched = True, {}
        self._end_if_done()

    def _all_untouched(self) -> dict[str, dict[int, set[Operand]]]:
        wanted: defaultdict[str, dict[int, set[Operand]]] = defaultdict(dict)
        for path, lines in self.lines.items():
            wanted[path] = {line: set() for line in lines}
        for path, operands in self.operands.items():
            for operand in operands:
                wanted[path].setdefault(operand.line, set()).add(operand)
        return wanted

    def _is_done(self) -> bool:
        is_reached = not any(self.left.values()) and not any(self.absent.values())
        return is_reached and self._is_touched

    def _end_if_done(self) -> None:
        if self._is_done():
            sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        path = frame.f_code.co_filename
        left, absent = self.left.get(path, ()), self.absent.get(path, ())
        untouched = self._untouched.get(path, ())
        if not left and not absent and not untouched:
            return None
        is_apart = self._find_lines(frame.f_code).isdisjoint
        if is_apart(left) and is_apart(absent) and is_apart(untouched):
            return None
        return _Follower(self, path).on_event

    def _find_lines(self, code: CodeType) -> set[int]:
        key = (code.co_filename, code.co_firstlineno, code.co_qualname)
        if key not in self._lines_of:
            self._lines_of[key] = {line for _, _, line in code.co_lines() if line}
        return self._lines_of[key]


class Watched:
    """An engine that is watched while it is called: most of a walk is the work of others."""

    def __init__(self, make: Callable[[Any], Any], reach: Reach, config: Any) -> None:
        self._reach = reach
        with reach.watching():
            self._engine = make(config)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A call of the engine."""
        return partial(self._call, getattr(self._engine, name))

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        with self._reach.watching():
            return method(*arguments)


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
            self._look(frame)
            if event == "line":
                self.line = frame.f_lineno
                self.reach.note(self.path, self.line)
                self._look(frame)
        return self.on_event

    def _look(self, frame: FrameType) -> None:
        if self.reach.is_looked_at(self.path, self.line):
            self.reach.look(self.path, self.line, frame.f_locals)
