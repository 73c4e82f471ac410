"""Situations: short runs, each with the witnesses that its last action shows."""

from __future__ import annotations

from collections.abc import Callable

from spec.interface import SchedulerConfig
from spec.transition import Transition

Situation = Callable[[], tuple[SchedulerConfig, Transition]]

SITUATIONS: list[tuple[Situation, frozenset[str]]] = []


def shows(*witnesses: str) -> Callable[[Situation], Situation]:
    """Lists a situation with all witnesses that its last action shows."""

    def register(situation: Situation) -> Situation:
        SITUATIONS.append((situation, frozenset(witnesses)))
        return situation

    return register
