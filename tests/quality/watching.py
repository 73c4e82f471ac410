"""Watching our engine under all invariants, mostly with a planted bug."""

from __future__ import annotations

import random
from collections.abc import Iterator

from attrs import define, field

from checkers.configs import Setting
from checkers.engines import hang_alarms, load_engine
from checkers.errors import EngineFault
from checkers.run import Judge, Run, select_invariants
from checkers.trial import FAULT_RULES
from checkers.walk import draw_action

ENGINE = load_engine("fast", time_limit_s=2.0)


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
