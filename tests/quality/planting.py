"""Planting bugs in our engine: one decorated function each, which replaces one named method."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from attrs import define, field, frozen

from checkers.configs import Setting, change_setting, load_settings
from checkers.engines import hang_alarms, load_engine
from checkers.errors import EngineFault
from checkers.run import Judge, Run, select_invariants
from checkers.trial import FAULT_RULES
from checkers.walk import draw_action

ENGINE = load_engine("fast", time_limit_s=2.0)
Method = Callable[..., Any]


@frozen
class Bug:
    """A mistake that somebody made, or might make, in one method of our engine."""

    name: str
    rule: str
    """What the engine does wrong."""
    plant: Callable[[Method], Method]
    """Makes the wrong method out of the right one."""
    target: str
    """The method: `module:Class.method`, or `module:function`."""
    setting: Setting
    """Where it shows."""
    caught_by: str
    """The invariant that must notice."""
    source: str
    """Where it was seen; empty if we made it up."""
    is_rare: bool
    """Whether no short run shows it: it proves its invariant needed, and is not searched for."""


BUGS: dict[str, Bug] = {}
"""By name, in the order of their definition."""


def bug(
    *,
    target: str,
    setting: str,
    caught_by: str,
    changes: tuple[str, ...] = (),
    source: str = "",
    is_rare: bool = False,
) -> Callable[[Callable[[Method], Method]], Callable[[Method], Method]]:
    """Registers a bug under its function's name; its docstring says what goes wrong.

    `changes` are `field=value` pairs that the named setting needs for the bug to show.
    """

    def register(plant: Callable[[Method], Method]) -> Callable[[Method], Method]:
        name = plant.__name__
        assert name not in BUGS, f"{name} is planted twice; choose another name"
        assert plant.__doc__, f"{name} has no docstring; say what goes wrong"
        place = change_setting(load_settings()[setting], changes, ())
        BUGS[name] = Bug(name, plant.__doc__, plant, target, place, caught_by, source, is_rare)
        return plant

    return register


@contextmanager
def planted(wrong: Bug) -> Iterator[None]:
    """Puts a bug into our engine for as long as the block lasts."""
    module_name, _, path = wrong.target.partition(":")
    *owners, method = path.split(".")
    owner: Any = reduce(getattr, owners, importlib.import_module(module_name))
    original = getattr(owner, method)
    setattr(owner, method, wrong.plant(original))
    try:
        yield
    finally:
        setattr(owner, method, original)


@define
class Sightings:
    """Which rules the walks of an engine broke."""

    first: list[frozenset[str]] = field(factory=list)
    """Of each walk that broke any: all that its first failing action broke."""
    ever: set[str] = field(factory=set)
    """All that any action broke; whatever follows from a broken state counts, too."""


def watch(setting: Setting, *, num_walks: int = 10, length: int = 100) -> Sightings:
    """Walks our engine under all invariants, none skipped after a breach, and without lockstep.

    An engine that raises or hangs ends it, since a broken one may do so in every walk.
    """
    found = Sightings()
    with hang_alarms():
        for seed in range(num_walks):
            broken = list(_watch_walk(setting, random.Random(seed), length))
            found.first += broken[:1]
            found.ever.update(*broken)
            if found.ever & FAULT_RULES.keys():
                break
    return found


def _watch_walk(setting: Setting, rng: random.Random, length: int) -> Iterator[frozenset[str]]:
    """Yields what each failing action of a walk broke."""
    config = setting.scheduler
    judge = Judge(config, select_invariants(setting.claims))
    run = Run(config, ENGINE.build(config), setting.environment)
    for _ in range(length):
        action = draw_action(run.model, rng)
        if action is None:
            return
        try:
            seen = run.step(action)
        except EngineFault as fault:
            yield frozenset({fault.name})
            return
        broken = frozenset(breach.name for breach in judge.breaches(seen))
        if broken:
            yield broken
