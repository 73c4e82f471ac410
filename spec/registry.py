"""The registries of invariants and witnesses: one decorated function each.

A name is the identity in code, on the command line and in a report; the docstring's first line is
the rule that a report prints. Registering refuses duplicate names and missing docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import TypeVar

from attrs import frozen

from spec.interface import SchedulerConfig, SchedulerOutput
from spec.model import ACTION_NAMES, Schedule, Transition

Check = Callable[[SchedulerConfig, Transition], Iterator[str]]
"""Yields one sentence of evidence per breach."""
Sighting = Callable[[SchedulerConfig, Transition], bool]

EVERY_ACTION: tuple[type, ...] = tuple(ACTION_NAMES)


@frozen
class Invariant:
    """What must always hold."""

    name: str
    rule: str
    """One sentence, in the present tense."""
    check: Check
    on: tuple[type, ...]
    """The actions after which it is looked at; it cannot break at others."""
    needs: tuple[str, ...]
    """Fields that an engine may not have; without them it is not checked."""
    of_state: bool
    """Whether it judges only the state after the action: an explorer asks once per state."""
    is_claim: bool
    """Whether it is only checked where a setting asks for it: it does not hold everywhere."""
    source: str

    def is_observable(self, config: SchedulerConfig, seen: Transition) -> bool:
        """Whether the engine shows what this invariant needs."""
        for name in self.needs:
            # Where nothing is drafted there are no drafts to show.
            is_missed = name != "num_draft_tokens" or config.num_speculative_tokens > 0
            if is_missed and not _is_shown(seen, name):
                return False
        return True


@frozen
class Witness:
    """What must sometimes happen, or the checks have looked at too little."""

    name: str
    rule: str
    is_seen: Sighting
    on: tuple[type, ...]


INVARIANTS: dict[str, Invariant] = {}
"""By name, in the order of their definition."""
WITNESSES: dict[str, Witness] = {}
"""By name, in the order of their definition."""

AnyCheck = TypeVar("AnyCheck", bound=Check)
AnySighting = TypeVar("AnySighting", bound=Sighting)


def invariant(
    *,
    source: str,
    on: tuple[type, ...] = EVERY_ACTION,
    needs: tuple[str, ...] = (),
    of_state: bool = False,
    is_claim: bool = False,
) -> Callable[[AnyCheck], AnyCheck]:
    """Registers a check by name. Raises `ValueError` for a duplicate or an undocumented one."""

    def register(check: AnyCheck) -> AnyCheck:
        name, rule = identify(check, INVARIANTS)
        INVARIANTS[name] = Invariant(name, rule, check, on, needs, of_state, is_claim, source)
        return check

    return register


def witness(*, on: tuple[type, ...] = (Schedule,)) -> Callable[[AnySighting], AnySighting]:
    """Registers a sighting by name. Raises `ValueError` for a duplicate or an undocumented one."""

    def register(sighting: AnySighting) -> AnySighting:
        name, rule = identify(sighting, WITNESSES)
        WITNESSES[name] = Witness(name, rule, sighting, on)
        return sighting

    return register


def identify(function: Callable[..., object], taken: Container[str]) -> tuple[str, str]:
    """Returns the name and the rule of what is to be registered: its docstring's first line.

    Every registry asks here. Raises `ValueError` for a duplicate or an undocumented one.
    """
    name = function.__name__
    if name in taken:
        raise ValueError(f"{name} is registered twice; choose another name")
    if not function.__doc__:
        raise ValueError(f"{name} has no docstring; its first line is the rule that reports print")
    return name, function.__doc__.strip().splitlines()[0]


def _is_shown(seen: Transition, name: str) -> bool:
    if name in {"worker", "published_faults"}:
        return getattr(seen, name) is not None
    if name in SchedulerOutput.__slots__:
        return seen.outcome.output is not None and getattr(seen.outcome.output, name) is not None
    for request in seen.after.requests.values():
        # An engine shows a field for all of its requests, or for none.
        return getattr(request, name) is not None
    return True
