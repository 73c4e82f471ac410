"""An explorer's worker, which has no memory, misses nothing that one with a memory sees."""

from __future__ import annotations

import random

import pytest

from checkers.mutations import bugs  # noqa: F401, importing it registers the bugs
from checkers.mutations.registry import MUTATIONS, Mutation, planted
from checkers.run import Judge, Run, select_invariants
from checkers.walk import draw_action
from tests.quality.watching import ENGINE
from tests.spec.transitions import follow_trusting

KV_RULES = {
    "diff_is_sufficient",
    "no_step_overwrites_kv",
    "steps_read_what_was_written",
    "published_blocks_were_written",
}
KV_BUGS = [wrong for wrong in MUTATIONS.values() if wrong.caught_by in KV_RULES]


@pytest.mark.parametrize("wrong", KV_BUGS, ids=lambda wrong: wrong.name)
def test_both_see_the_first_breach(wrong: Mutation) -> None:
    """Up to the first breach both workers break the same rules, so one of them is enough."""
    with planted(wrong):
        for seed in range(5):
            compare_workers(wrong, random.Random(seed))


def compare_workers(wrong: Mutation, rng: random.Random) -> None:
    """Compares them on a walk, up to the first action that breaks any rule."""
    config = wrong.setting.scheduler
    judge = Judge(config, select_invariants())
    run = Run(config, ENGINE.build(config), wrong.setting.environment)
    for _ in range(100):
        action = draw_action(run.model, rng)
        assert action is not None
        seen = run.step(action)
        broken = {breach.name for breach in judge.breaches(seen)}
        again = follow_trusting(config, seen)
        assert broken == {breach.name for breach in judge.breaches(again)}
        if broken:
            return
