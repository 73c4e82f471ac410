"""Every bug planted in our engine is found by the walks that a user would take."""

from __future__ import annotations

import pytest

from checkers.mutations import bugs  # noqa: F401, importing it registers the bugs
from checkers.mutations.catch import catch, check_baseline
from checkers.mutations.registry import MUTATIONS, Mutation, planted
from tests.quality.watching import watch

MAX_ACTIONS = 10
LONG = {"outputs_are_recomputed_in_what_is_left": 14, "only_the_prompt_must_be_whole": 12}
"""Bugs that take longer: outputs, a preemption, and steps that compute some of them again."""
WALKED = [wrong for wrong in MUTATIONS.values() if wrong.checker == "search"]
UNSEEN = [wrong for wrong in WALKED if wrong.caught_by == "same_as_spec"]
# The same walks, with lockstep or without.
BASELINES = {(wrong.setting.name, wrong.is_rare): wrong for wrong in WALKED}
of_baselines = pytest.mark.parametrize(
    "wrong", BASELINES.values(), ids=lambda wrong: wrong.setting.name
)


@of_baselines
def test_baseline(wrong: Mutation) -> None:
    """Without a bug the same walks find nothing, in any setting that a bug is planted in."""
    assert () == check_baseline(wrong).broken


@pytest.mark.parametrize("wrong", WALKED, ids=lambda wrong: wrong.name)
def test_bug_is_found(wrong: Mutation) -> None:
    """A planted bug is found, shrunk to a few actions, and named by the rule that it breaks."""
    seen = catch(wrong)
    assert wrong.caught_by in seen.broken
    assert wrong.is_rare or seen.num_actions <= LONG.get(wrong.name, MAX_ACTIONS)


@pytest.mark.parametrize("wrong", UNSEEN, ids=lambda wrong: wrong.name)
def test_only_lockstep_sees_it(wrong: Mutation) -> None:
    """What only the comparison with the specification is said to see breaks no invariant."""
    with planted(wrong):
        assert set() == watch(wrong.setting).ever


def test_the_engine_is_whole_again() -> None:
    """A bug is gone once its block is left, also if the block fails."""
    wrong = MUTATIONS["one_seat_too_many"]
    with pytest.raises(ZeroDivisionError), planted(wrong):
        raise ZeroDivisionError
    assert set() == watch(wrong.setting).ever
