"""Every bug planted in our engine is found by the search that a user would run."""

from __future__ import annotations

import pytest

from checkers.search import Plan, search
from tests.quality import bugs  # noqa: F401, importing it registers the bugs
from tests.quality.planting import BUGS, ENGINE, Bug, planted, watch

PLAN = Plan(num_walks=20, length=100, shrink_s=8.0)
MAX_ACTIONS = 10
SEARCHED = [wrong for wrong in BUGS.values() if not wrong.is_rare]
UNSEEN = [wrong for wrong in BUGS.values() if wrong.caught_by == "same_as_spec"]
SETTINGS = {wrong.setting.name: wrong.setting for wrong in BUGS.values()}


@pytest.mark.parametrize("name", SETTINGS)
def test_baseline(name: str) -> None:
    """Without a bug the same search finds nothing, in any setting that a bug is planted in."""
    found = search(ENGINE, [SETTINGS[name]], PLAN)
    assert ("holds", None) == (found.verdict, found.counterexample)


@pytest.mark.parametrize("wrong", SEARCHED, ids=lambda wrong: wrong.name)
def test_bug_is_found(wrong: Bug) -> None:
    """A planted bug is found, shrunk to a few actions, and named by the rule that it breaks."""
    with planted(wrong):
        found = search(ENGINE, [wrong.setting], PLAN).counterexample
    assert found is not None
    assert wrong.caught_by in {breach.name for breach in found.breaches}
    assert len(found.steps) <= MAX_ACTIONS


@pytest.mark.parametrize("wrong", UNSEEN, ids=lambda wrong: wrong.name)
def test_only_lockstep_sees_it(wrong: Bug) -> None:
    """What only the comparison with the specification is said to see breaks no invariant."""
    with planted(wrong):
        assert set() == watch(wrong.setting).ever


def test_the_engine_is_whole_again() -> None:
    """A bug is gone once its block is left, also if the block fails."""
    wrong = BUGS["one_seat_too_many"]
    with pytest.raises(ZeroDivisionError), planted(wrong):
        raise ZeroDivisionError
    assert set() == watch(wrong.setting).ever
