"""The registry of bugs in the runner: one decorated function each, which replaces one method.

Entry points: the decorator `bug`, and `BUGS` once `gpu_conformance.bugs` is imported. Registering
refuses duplicate names and missing docstrings.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from checkers.planting import Method
from gpu_conformance.divergence import Nature
from gpu_conformance.registry import Value
from spec.registry import identify


@frozen
class Bug:
    """A mistake that somebody made, or might make, in one method of the runner."""

    name: str
    rule: str
    """What the runner does wrong."""
    kind: str
    """The name of the file that the bug stands in."""
    plant: Callable[[Method], Method]
    """Makes the wrong method out of the right one."""
    target: str
    """The method: `module:Class.method`, or `module:function`."""
    axis: str
    value: Value
    """Where it shows."""
    nature: Nature
    """What the first difference must be called."""
    sources: tuple[str, ...]
    """Public bugs of runners that are of this kind; none if we made it up."""


BUGS: dict[str, Bug] = {}
"""By name, in the order of their definition."""


def bug(
    *, target: str, axis: str, value: Value, nature: Nature = "logic", source: str = ""
) -> Callable[[Callable[[Method], Method]], Callable[[Method], Method]]:
    """Registers a bug under its function's name; its docstring says what goes wrong.

    `source` names public bugs, a comma between them. Raises `ValueError` for a duplicate or an
    undocumented one.
    """

    def register(plant: Callable[[Method], Method]) -> Callable[[Method], Method]:
        name, rule = identify(plant, BUGS)
        BUGS[name] = Bug(
            name,
            rule,
            plant.__module__.rpartition(".")[2],
            plant,
            target,
            axis,
            value,
            nature,
            tuple(source.split(", ")) if source else (),
        )
        return plant

    return register
