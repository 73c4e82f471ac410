from __future__ import annotations

import attrs
import pytest

from checkers.configs import load_settings
from checkers.counterexample import dumps, read, rerun, write
from checkers.engines import load_engine
from checkers.errors import HarnessError
from checkers.search import JUDGE_EVERY, Plan, search
from spec.actions import Schedule
from spec.scheduler import ReferenceScheduler
from tests.checkers.planted import (
    TINY,
    ExceedsTheBudget,
    HangsInSchedule,
    LosesABlock,
    Moody,
    RaisesInSchedule,
    RaisesWhenBuilt,
    Renamed,
    Reordered,
    ServesTheNewestFirst,
    SwapsBlocks,
    all_runs,
    attempt,
    engine_of,
)

SETTINGS = load_settings()
SHORT = Plan(num_walks=10, length=40)


def walk(make, setting=TINY, plan=SHORT):
    """Walks an engine in a setting."""
    return search(engine_of(make), [setting], plan)


# ---- walks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fast", "spec"])
def test_a_right_engine_passes(name):
    """Nothing is found in an engine that does as the specification does, and the walks count."""
    settings = [SETTINGS["plain"], SETTINGS["async-prefix"]]
    found = search(load_engine(name), settings, SHORT)
    assert ("holds", "", 20) == (found.verdict, found.interrupted_by, found.num_walks)
    assert 20 * SHORT.length == found.num_actions
    assert 0 < found.num_engine_steps < found.num_actions
    assert found.witnesses["chunked_prefill"] > 0


def test_judged_walks_are_counted():
    """Of an engine in lockstep some walks are judged, of the specification all, and both say so."""
    assert 1 + 9 // JUDGE_EVERY == walk(ReferenceScheduler).num_judged_walks
    assert 10 == search(load_engine("spec"), [TINY], SHORT).num_judged_walks


def test_the_same_seed_walks_the_same():
    """A search is decided by its seed: the same counts and sights, and the same counterexample."""
    one, same, other = (
        walk(ReferenceScheduler, plan=attrs.evolve(SHORT, seed=s)) for s in (7, 7, 8)
    )
    assert attrs.evolve(one, cpu_s=0.0) == attrs.evolve(same, cpu_s=0.0)
    assert one.witnesses != other.witnesses
    texts = {dumps(walk(LosesABlock).counterexample) for _ in range(2)}
    assert 1 == len(texts)


def test_the_time_budget_ends_a_search():
    """When the time is over the walks that were made count, and the rest is undetermined."""
    found = walk(ReferenceScheduler, plan=attrs.evolve(SHORT, seconds=1e-6))
    assert ("undetermined", "the time budget", 1) == (
        found.verdict,
        found.interrupted_by,
        found.num_walks,
    )


def test_ctrl_c_ends_a_search():
    """Ctrl-C keeps the walks that were made."""

    def press(found):
        if found.num_walks == 3:
            raise KeyboardInterrupt

    found = search(load_engine("fast"), [TINY], SHORT, press)
    assert ("undetermined", "Ctrl-C", 3) == (found.verdict, found.interrupted_by, found.num_walks)


# ---- what walks find -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "num_actions", "broken"),
    [
        (ServesTheNewestFirst, 2, "queues_keep_their_order"),
        (ExceedsTheBudget, 3, "token_budget_is_kept"),
        (LosesABlock, 3, "blocks_are_conserved"),
        (RaisesInSchedule, 4, "engine_raises"),
        (RaisesWhenBuilt, 0, "engine_raises"),
    ],
)
def test_a_fault_is_found_shrunk_and_repeated(make, num_actions, broken, tmp_path):
    """A walk finds the fault; what is left of it is a shortest run, and fails from its file."""
    found = walk(make).counterexample
    assert (broken, num_actions) == (found.breach.name, len(found.steps))
    assert (True, "search") == (found.is_shortest, found.found_by)
    assert num_actions <= found.num_actions_found
    shorter = all_runs(TINY, max(num_actions - 1, 0)) if num_actions else []
    assert [] == [run for run in shorter if attempt(make, run).breaches]
    path = write(found, tmp_path)
    assert found == read(path)
    _, again = rerun(read(path), engine_of(make))
    assert path.read_text() == dumps(again)


def test_a_hang_is_found():
    """An engine that does not return is found out, not waited for."""
    found = search(engine_of(HangsInSchedule, time_limit_s=0.2), [TINY], SHORT).counterexample
    assert ("engine_hangs", Schedule()) == (found.breach.name, found.steps[-1].action)


class AnswersNone(ReferenceScheduler):
    """Forgets to return what it has scheduled."""

    def schedule(self):
        """Wrong."""
        super().schedule()


class CountsInFloats(ReferenceScheduler):
    """Shows a number that is equal to the right one, and of another type."""

    def observe(self):
        """Wrong."""
        return attrs.evolve(super().observe(), num_free_blocks=float("nan"))


@pytest.mark.parametrize(("make", "num_actions"), [(AnswersNone, 1), (CountsInFloats, 0)])
def test_an_answer_of_a_wrong_type_is_found(make, num_actions):
    """Walks trust an engine, for speed; what does not fit is found out nevertheless."""
    found = walk(make).counterexample
    assert ("engine_answers", num_actions) == (found.breach.name, len(found.steps))


def test_what_cannot_be_repeated_is_no_counterexample():
    """An engine that is not deterministic is refused, with the walk named."""
    with pytest.raises(HarnessError, match=r"walk 0 of tiny fails on .*:Moody, and does not when"):
        walk(Moody)


# ---- blocks by other names -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [Renamed, Reordered])
@pytest.mark.parametrize("name", ["plain", "prefix", "async-prefix"])
def test_names_of_blocks_do_not_matter(make, name):
    """An engine may call its blocks as it likes, and hand them out in another order."""
    assert walk(make, SETTINGS[name]).counterexample is None


def test_a_block_may_not_change_hands():
    """An engine that exchanges two blocks between requests is caught, however they are called."""
    found = walk(SwapsBlocks, SETTINGS["plain"]).counterexample
    assert ("same_as_spec", 4) == (found.breaches[-1].name, len(found.steps))
    assert "does not play the part of" in found.breaches[-1].evidence[0]
