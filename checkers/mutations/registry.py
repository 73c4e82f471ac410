"""The registry of planted bugs: one decorated function each, which replaces one named method.

Entry points: the decorator `mutation`, `MUTATIONS` once `checkers.mutations.bugs` is imported, and
`planted`, which puts a bug into our engine. Registering refuses duplicate names and missing
docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

from attrs import frozen

from checkers.configs import Setting, change_setting, load_settings
from checkers.liveness import NAME
from checkers.planting import Method, planted_at
from spec.registry import identify

Checker = Literal["search", "liveness"]
"""Random walks in lockstep with the spec, or the states of a setting and their loops."""


@frozen
class Mutation:
    """A mistake that somebody made, or might make, in one method of our engine."""

    name: str
    rule: str
    """What the engine does wrong."""
    kind: str
    """What it gets wrong: the name of the file that the bug stands in."""
    plant: Callable[[Method], Method]
    """Makes the wrong method out of the right one."""
    target: str
    """The method: `module:Class.method`, or `module:function`."""
    setting: Setting
    """Where it shows."""
    caught_by: str
    """The rule that must notice: an invariant, `same_as_spec`, an engine's fault, or liveness."""
    sources: tuple[str, ...]
    """Public bugs of serving engines that are of this kind; none if we made it up."""
    is_rare: bool
    """Whether no short run shows it to its rule: the walks then go on where the spec differs."""

    @property
    def checker(self) -> Checker:
        """Who has to look."""
        return "liveness" if self.caught_by == NAME else "search"


MUTATIONS: dict[str, Mutation] = {}
"""By name, in the order of their definition."""


def mutation(
    *,
    target: str,
    setting: str,
    caught_by: str,
    changes: tuple[str, ...] = (),
    source: str = "",
    is_rare: bool = False,
) -> Callable[[Callable[[Method], Method]], Callable[[Method], Method]]:
    """Registers a bug under its function's name; its docstring says what goes wrong.

    `changes` are `field=value` pairs that the named setting needs for the bug to show, and `source`
    names public bugs, a comma between them. Raises `ValueError` for a duplicate or an undocumented
    one.
    """

    def register(plant: Callable[[Method], Method]) -> Callable[[Method], Method]:
        name, rule = identify(plant, MUTATIONS)
        MUTATIONS[name] = Mutation(
            name,
            rule,
            plant.__module__.rpartition(".")[2],
            plant,
            target,
            change_setting(load_settings()[setting], changes, ()),
            caught_by,
            tuple(source.split(", ")) if source else (),
            is_rare,
        )
        return plant

    return register


def planted(wrong: Mutation) -> AbstractContextManager[None]:
    """Puts a bug into our engine for as long as the block lasts."""
    return planted_at(wrong.target, wrong.plant)
