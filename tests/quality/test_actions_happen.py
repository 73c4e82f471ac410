"""No action without a setting in which it happens: what never happens is never checked."""

from __future__ import annotations

import random

import pytest

from checkers.configs import Setting, load_settings
from checkers.walk import draw_action
from spec.actions import ACTION_NAMES
from spec.model import Model
from spec.scheduler import ReferenceScheduler


def kinds_in(command: str) -> set[type]:
    """The kinds of actions that happen on a short walk through each setting of a command."""
    settings = [s for s in load_settings().values() if command in s.used_by]
    return {kind for setting in settings for kind in _walk(setting)}


def _walk(setting: Setting) -> set[type]:
    model = Model(setting.environment, ReferenceScheduler(setting.scheduler))
    rng = random.Random(setting.name)
    kinds: set[type] = set()
    for _ in range(60):
        action = draw_action(model, rng)
        assert action is not None, "something may always happen"
        model.do(action)
        kinds.add(type(action))
    return kinds


@pytest.mark.parametrize("command", ["explore", "search", "machine"])
def test_every_action_happens(command: str) -> None:
    """Every kind of action is enabled somewhere for those who explore, and for those who walk."""
    assert set(ACTION_NAMES) == kinds_in(command)
