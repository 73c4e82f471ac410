"""Where `patch` walks: in all settings now and then, and else where the change can show."""

from __future__ import annotations

import pytest
from rich.console import Console

from checkers.configs import load_settings
from checkers.engines import load_engine
from checkers.mixed import find_setting
from checkers.patch import rounds
from checkers.patch.command import Change, check_patch
from checkers.patch.comparison import TimeBudget
from checkers.patch.operands import Operand
from checkers.patch.protocol import Job
from checkers.patch.reach import Reach, Watched
from checkers.patch.rounds import FULL_EVERY, MIN_ROUNDS, Rounds
from checkers.progress import Progress
from tests.checkers.patched import (
    ENGINE,
    SCHEDULE,
    TOY,
    changed,
    diff_of,
    kinds_of,
    patch_with,
    write_toy,
)

SETTINGS = tuple(load_settings()[name] for name in ("tiny", "plain", "prefix"))
OF_ROUND_0, OF_ROUND_1 = [3, 4, 5, 6], [7, 8, 9, 10]
ON_ALL_WALKS = (SCHEDULE, "        output = super().schedule()\n        return output\n")


def make_rounds(*touched):
    """Three named settings and four drawn in a round, of which some are known to be touched."""
    made = Rounds(Job(engine="fast", settings=SETTINGS, num_mixed=4))
    made.note([*touched])
    return made


def test_all_settings_are_walked_in_until_one_touches_the_change():
    """Nobody knows yet where it can show."""
    assert ([0, 1, 2, *OF_ROUND_1], True) == (make_rounds().choose(1), make_rounds().is_full(1))


def test_most_rounds_go_where_the_change_was_touched():
    """Named settings and drawn ones that are known to touch it are walked in again."""
    assert [1, 5] == make_rounds(1, 5).choose(1)
    assert [0, 1, 2] == make_rounds(1, 5).choose(FULL_EVERY)[:3]


def test_what_drawn_settings_mostly_touch_is_looked_for_in_new_ones():
    """Then a new one is worth more than a walk in one that was walked in before."""
    assert [1, *OF_ROUND_1] == make_rounds(1, 3, 4, 5).choose(1)


def test_a_setting_in_which_a_side_has_died_is_left_alone():
    """Drawn or not, neither side comes there any more."""
    made = make_rounds(1, 5)
    made.closed |= {1, 4}
    assert ([0, 2, 3, 5, 6], [5]) == (made.choose(0), made.choose(1))


def double(number):
    """Has one line."""
    return number * 2


def test_a_change_is_touched_by_a_line_with_all_it_works_with():
    """A line that runs while an operand is nothing does not touch the change."""
    line = double.__code__.co_firstlineno + 2
    reach = Reach({__file__: [line]}, {__file__: [Operand(line, "number")]})
    seen = []
    for number in (0, 3, 0):
        reach.ask()
        with reach.watching():
            double(number)
        seen.append(reach.answer())
    assert [False, True, False] == seen


def test_an_engine_is_watched_in_its_calls_alone():
    """What runs between its calls reaches nothing."""
    engine = load_engine("fast")
    made = Watched(engine.make, Reach({}), SETTINGS[0].scheduler)
    made.add_request(SETTINGS[0].environment.shapes[0])
    assert engine.make(SETTINGS[0].scheduler).observe() != made.observe()


def test_a_fault_that_only_drawn_settings_show_is_filed(tmp_path):
    """It is shrunk and written like any other, and the file names the setting that was drawn."""
    fault = "        if self.config.block_size == 3:\n            raise ValueError\n"
    write_toy(tmp_path)
    (tmp_path / "change.diff").write_text(diff_of(TOY, changed((SCHEDULE, fault + SCHEDULE))))
    change = Change(diff=str(tmp_path / "change.diff"), base=None, head=None, repo=tmp_path)
    job = Job(engine=ENGINE, settings=SETTINGS[:1], num_walks=1, num_mixed=12, lockstep=False)
    checks = check_patch(change, job, TimeBudget(60.0), Progress(Console(quiet=True)), tmp_path)
    found = next(check.counterexample for check in checks if check.counterexample is not None)
    assert ("engine_raises", 3) == (found.breach.name, found.config.block_size)
    assert find_setting(found.setting).scheduler == found.config


def test_little_is_never_ok(tmp_path, monkeypatch):
    """If the time is over after fewer rounds than it takes, the verdict says so, and is open."""
    monkeypatch.setattr(rounds, "MIN_ROUNDS", 10**6)
    options = ("--walks", "0", "--time-budget", "3", "--no-lockstep")
    document = patch_with(tmp_path, ON_ALL_WALKS, options=options)
    assert (3, []) == (document["exit_code"], kinds_of(document))
    (sentence,) = document["checks"][0]["findings"]
    assert sentence.startswith("only ")
    assert "of 1,000,000 rounds, fit in 3 s; give --time-budget more" in sentence


@pytest.mark.parametrize(("extra_seconds", "verdict"), [(0.0, "undetermined"), (60.0, "holds")])
def test_time_is_added_if_that_is_all_that_lacks(tmp_path, extra_seconds, verdict):
    """A change with which nothing is wrong is walked with until it is enough, and no longer."""
    write_toy(tmp_path)
    (tmp_path / "change.diff").write_text(diff_of(TOY, changed(ON_ALL_WALKS)))
    change = Change(diff=str(tmp_path / "change.diff"), base=None, head=None, repo=tmp_path)
    job = Job(engine=ENGINE, settings=SETTINGS[:1], lockstep=False)
    budget = TimeBudget(0.001, extra_seconds)
    check, *_ = check_patch(change, job, budget, Progress(Console(quiet=True)), tmp_path)
    num_rounds = MIN_ROUNDS if extra_seconds else 0
    assert (verdict, num_rounds) == (check.verdict, check.facts["num_rounds"])


def test_as_many_rounds_as_were_asked_for_are_enough(tmp_path):
    """A count is a choice: what was asked for was done, on any machine."""
    document = patch_with(tmp_path, ON_ALL_WALKS, options=("--no-lockstep",))
    facts = document["checks"][0]["facts"]
    assert (0, 3, ["tiny"]) == (document["exit_code"], facts["num_rounds"], facts["touched"])
    assert MIN_ROUNDS > facts["num_rounds"]
