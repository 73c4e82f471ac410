from __future__ import annotations

import io
import json

import attrs
import pytest
from click.testing import CliRunner
from rich.console import Console

from checkers.cli import main
from checkers.engines import load_engine
from checkers.errors import HarnessError
from checkers.mutations import (
    bugs,  # noqa: F401, importing it registers the bugs
    recorded,
)
from checkers.mutations.catch import catch
from checkers.mutations.look import Look
from checkers.mutations.matrix import choose_checkers, make_row, mutate_by, sum_columns
from checkers.mutations.registry import MUTATIONS
from checkers.mutations.ways import WAYS
from checkers.progress import Progress
from checkers.recorder import write_header

QUICK = MUTATIONS["outputs_become_prompt"]
CAUGHT = Look(broken=("same_as_spec",), num_actions=3)
MISSED = Look(looked_at="all 5 states")
UNFIT = Look(unfit="recordings cannot tell cache_salt")
ENDED = "was ended by SIGKILL"


@pytest.fixture
def progress():
    """Progress that nobody sees."""
    return Progress(Console(file=io.StringIO()))


# ---- the checkers --------------------------------------------------------------------------------

PART = {
    # Everybody sees that blocks are lost, and soon nobody gets any.
    "a_victim_keeps_its_blocks": list(WAYS),
    # Nobody is kept waiting by a wrong count.
    "outputs_become_prompt": [
        "search",
        "lockstep",
        "validate",
        "machine",
        "explore",
    ],
    # A worker that takes other blocks gets on as well.
    "a_new_block_is_not_zeroed": ["search", "lockstep", "validate", "machine", "explore"],
}
"""A part of the matrix: who sees these bugs."""
CELLS = [(name, checker) for name in PART for checker in WAYS]


@pytest.mark.parametrize(("name", "checker"), CELLS)
def test_a_checker_sees_what_it_saw(name, checker):
    """Each checker sees by itself the bugs that it is known to see, and no others."""
    seen = catch(MUTATIONS[name], checker)
    assert (checker in PART[name]) == bool(seen.broken)
    assert bool(seen.broken) == bool(seen.num_actions)
    assert bool(seen.broken) != bool(seen.looked_at)


@pytest.mark.parametrize("checker", WAYS)
def test_a_checker_sees_nothing_in_our_engine_as_it_is(checker):
    """Without a bug nothing is found, and it is said how much there was to see it in."""
    seen = WAYS[checker](QUICK.setting, load_engine("fast"))
    assert ((), "", True) == (seen.broken, seen.unfit, bool(seen.looked_at))


def test_a_rejected_recording_names_its_line():
    """Where validation rejects the recorded run of an engine with a bug, the line is told."""
    seen = catch(QUICK, "validate")
    assert 1 < seen.line == seen.num_actions + 1


def test_what_a_recording_cannot_tell_is_no_miss(monkeypatch):
    """If the spec's own recorded run is rejected, the checker is not applicable, and says why."""

    def leave_out(config, *arguments):
        return write_header(attrs.evolve(config, max_num_seqs=1), *arguments)

    monkeypatch.setattr(recorded, "write_header", leave_out)
    recorded.find_obstacle.cache_clear()
    seen = catch(QUICK, "validate")
    recorded.find_obstacle.cache_clear()
    assert ((), "recordings cannot tell max_num_seqs") == (seen.broken, seen.unfit)


# ---- rows and columns ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ([CAUGHT, MISSED, UNFIT], "holds"),
        ([CAUGHT, ENDED], "holds"),
        ([MISSED, UNFIT], "violated"),
        ([MISSED, ENDED], "undetermined"),
        ([UNFIT, UNFIT], "undetermined"),
    ],
)
def test_a_bug_survives_if_nobody_saw_it_who_could(cells, verdict):
    """One checker is enough; one that cannot look, or came to its end, says nothing."""
    check = make_row(QUICK, dict(zip(WAYS, cells, strict=False)))
    assert verdict == check.verdict
    assert (verdict != "holds") == bool(check.findings)


def test_a_row_shows_who_saw_it():
    """A column holds the checker's name, a dash, n/a or a question mark; named bugs say more."""
    cells = dict(zip(WAYS, [CAUGHT, MISSED, UNFIT, ENDED], strict=False))
    check = make_row(QUICK, cells, in_full=True)
    assert ["search", "-", "n/a", "?"] == check.title.split()[2:]
    assert [
        "search      caught by same_as_spec, 3 actions",
        "lockstep    not: all 5 states",
        "validate    not applicable: recordings cannot tell cache_salt",
        "machine     its process was ended by SIGKILL",
    ] == list(check.lines)


def test_the_sums_give_reasons():
    """The last check counts each column, says why a checker could not look, and who was alone."""
    rows = {
        "one": {"search": CAUGHT, "validate": UNFIT},
        "two": {"search": MISSED, "validate": UNFIT},
    }
    check = sum_columns(rows, ["search", "validate"])
    assert {"search": {"caught": 1, "not": 1}, "validate": {"not applicable": 2}} == check.facts[
        "outcomes"
    ]
    said = "\n".join(check.lines)
    assert "validate is not applicable to 2: recordings cannot tell cache_salt" in said
    assert "search alone sees one" in said


# ---- the command ---------------------------------------------------------------------------------


def test_checkers_are_named_or_all():
    """--by takes names between commas, each once, or all; another name is an input error."""
    assert ["explore", "search"] == choose_checkers("explore,search,explore")
    assert list(WAYS) == choose_checkers("all")
    with pytest.raises(HarnessError, match="'serch' is unknown; known are search, "):
        choose_checkers("explore,serch")


def test_nothing_is_planted_in_an_engine_that_does_not_hold(progress, monkeypatch):
    """A rule that our engine breaks as it is ends the report, with the checker that said so."""

    def run_badly(tasks, num_workers, on_start):
        return ((task, CAUGHT) for task in tasks)

    monkeypatch.setattr("checkers.mutations.workers.run_all", run_badly)
    (check,) = mutate_by([QUICK.name], ["explore"], 1, progress)
    assert "violated" == check.verdict
    assert check.findings[0].endswith("our engine breaks same_as_spec as it is, asked explore")


def test_the_matrix_is_for_machines_too():
    """JSON has each cell: the outcome, the rules, where, and how long it took."""
    done = CliRunner().invoke(
        main, ["mutate", QUICK.name, "--by", "liveness,explore", "--format", "json"]
    )
    assert 0 == done.exit_code
    _, row, sums = json.loads(done.stdout)["checks"]
    cells = row["facts"]["by"]
    assert {"liveness": "not", "explore": "caught"} == {
        name: cell["outcome"] for name, cell in cells.items()
    }
    assert "all 124 states" in cells["liveness"]["says"]
    assert QUICK.caught_by in cells["explore"]["broken"]
    assert {"not": 1} == sums["facts"]["outcomes"]["liveness"]
