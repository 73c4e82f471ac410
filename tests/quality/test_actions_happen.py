"""No action without a setting in which it happens: what never happens is never checked."""

from __future__ import annotations

import random

from checkers.configs import load_settings
from checkers.walk import draw_action
from spec.model import ACTION_NAMES, Model
from spec.scheduler import ReferenceScheduler


def test_every_action_happens() -> None:
    """On a few short walks through the settings of the search, every kind of action is drawn."""
    kinds: set[type] = set()
    for setting in load_settings().values():
        if "search" not in setting.used_by:
            continue
        model = Model(setting.environment, ReferenceScheduler(setting.scheduler))
        rng = random.Random(setting.name)
        for _ in range(60):
            action = draw_action(model, rng)
            assert action is not None, "something may always happen"
            model.do(action)
            kinds.add(type(action))
    assert set(ACTION_NAMES) == kinds
