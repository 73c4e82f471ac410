"""The registry of axes: one decorated function each, in a file of its own under `axes/`.

Entry points: the decorator `axis`, and `AXES` once `gpu_conformance.axes` is imported. A name is
the identity in code, on the command line and in a report. Registering refuses duplicate names,
missing docstrings, and values that are listed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from gpu_conformance.way import Sights, Way
from spec.registry import identify

Value = int | str
Apply = Callable[[Way, Value], Way]
"""Changes a way so that it takes the value. Raises `NotHere` where it cannot."""
Reached = Callable[[Sights, Value], bool]


class NotHere(Exception):  # noqa: N818  (no error: the report says why a value is left out)
    """A value has no meaning here: for this workload, backend or device. The message says why."""


@frozen
class Axis:
    """One thing about scheduling that must leave every bit alone."""

    name: str
    rule: str
    """What is varied, in one sentence."""
    baseline: Value
    """What it is while other things vary, and while each request is computed alone."""
    values: tuple[Value, ...]
    few: tuple[Value, ...]
    """Those for a backend that takes seconds for a step."""
    apply: Apply
    is_reached: Reached
    """Whether what was seen shows the value at work; else nothing was tested."""
    greatest: int = 1024
    """The greatest number that can be named beside those that are listed."""
    takes_paths: bool = False
    """Whether a file can be named, too."""
    stands_for: Callable[[Value], str] = str
    """What a value is, where its name does not say so."""


AXES: dict[str, Axis] = {}
"""By name, in the order of their definition."""


def axis(
    *,
    baseline: Value,
    values: Sequence[Value],
    is_reached: Reached,
    few: Sequence[Value] = (),
    greatest: int = 1024,
    takes_paths: bool = False,
    stands_for: Callable[[Value], str] = str,
) -> Callable[[Apply], Apply]:
    """Registers an axis under its function's name; its docstring says what is varied."""

    def register(apply: Apply) -> Apply:
        name, rule = identify(apply, AXES)
        if len({baseline, *values}) != len(values) + 1:
            raise ValueError(f"{name} lists a value twice, or its baseline; list others only")
        if not set(few) <= set(values):
            raise ValueError(f"{name} lists few={tuple(few)}, not all of them values; take some")
        AXES[name] = Axis(
            name,
            rule,
            baseline,
            tuple(values),
            tuple(few),
            apply,
            is_reached,
            greatest,
            takes_paths,
            stands_for,
        )
        return apply

    return register
