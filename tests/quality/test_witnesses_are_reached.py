"""No witness without a setting that reaches it: what is never seen warns nobody."""

from __future__ import annotations

from checkers.configs import Setting, load_settings
from checkers.search import Plan, search
from spec.registry import WITNESSES
from tests.quality.watching import ENGINE


def settings_for(command: str) -> list[Setting]:
    """The settings that a command uses when none is named."""
    return [setting for setting in load_settings().values() if command in setting.used_by]


def test_an_exploration_asks_for_every_witness() -> None:
    """Each witness is named by a setting whose complete exploration fails without it."""
    named = {name for setting in settings_for("explore") for name in setting.witnesses}
    assert set(WITNESSES) == named


def test_walks_reach_every_witness() -> None:
    """A few walks through the settings of the search see each of them in our engine, too."""
    plan = Plan(num_walks=4, length=100, lockstep=False)
    found = search(ENGINE, settings_for("search"), plan)
    assert "holds" == found.verdict
    assert set(WITNESSES) == {name for name, count in found.witnesses.items() if count}
