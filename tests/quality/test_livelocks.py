"""Bugs that keep somebody waiting for ever are found by liveness alone, as a loop that goes on."""

from __future__ import annotations

import attrs
import pytest

from checkers.explore import Budget
from checkers.explore_engine import EngineExplorer
from checkers.liveness import NAME
from checkers.mutations import bugs  # noqa: F401, importing it registers the bugs
from checkers.mutations.catch import catch
from checkers.mutations.registry import MUTATIONS, Mutation
from checkers.search import make_rules
from tests.quality.watching import ENGINE

LIVELOCKS = [wrong for wrong in MUTATIONS.values() if wrong.checker == "liveness"]
of_each = pytest.mark.parametrize("wrong", LIVELOCKS, ids=lambda wrong: wrong.name)


@of_each
def test_a_livelock_is_found_as_a_loop(wrong: Mutation) -> None:
    """The engine with the bug goes round for ever, and the loop runs again by itself."""
    seen = catch(wrong)
    assert (NAME,) == seen.broken
    assert any("then, for ever:" in line for line in seen.lines)


@of_each
def test_baseline(wrong: Mutation) -> None:
    """Without the bug somebody gets a token, from every state of the same setting."""
    rules = attrs.evolve(make_rules(ENGINE, wrong.setting), invariants=(), lockstep=False)
    assert EngineExplorer(rules, ENGINE, wrong.setting.environment).run(Budget()).is_live


def test_there_are_livelocks() -> None:
    """There is something to be found."""
    assert 5 <= len(LIVELOCKS)
