from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest

from gpu_conformance.axes.combined import COLUMNS, ROWS, SHOWN, get_row
from gpu_conformance.registry import AXES
from gpu_conformance.work import WORKS, Work
from tests.gpu_conformance.support import make_bench, make_tiny_bench, run

BY_ITSELF = {
    "combined",
    "cpu_threads",
    "engine_walk",
    "prompt_length",
    "recorded_run",
    "request_id",
    "resumed_chunk_size",
}
"""Threads cost seconds, and all behind them plan who comes when, or with which prompt."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "conformance.md"
NUMBERS = AXES["combined"].values


@pytest.fixture(scope="module")
def bench():
    """Our runner with the usual requests."""
    return make_tiny_bench()


@pytest.fixture(scope="module")
def large():
    """Our runner with the requests that are meant for a real model."""
    return make_bench(work=WORKS["large"])


def test_each_pair_of_values_stands_in_a_row():
    """Of any two columns, each value of the one meets each of the other."""
    columns = list(zip(*ROWS, strict=True))
    for (one, left), (two, right) in combinations(zip(COLUMNS, columns, strict=True), 2):
        met = set(zip(left, right, strict=True))
        assert set(product(left, right)) == met, (one, two)


def test_every_axis_is_a_column():
    """An axis varies in the table by two values or more, but for those that stand by themselves."""
    assert set(AXES) - BY_ITSELF == set(COLUMNS)
    assert 1 < min(len(set(column)) for column in zip(*ROWS, strict=True))


def test_the_document_counts_the_rows():
    """`docs/conformance.md` says how many rows there are."""
    assert f"in one of its {len(ROWS)} rows" in DOCUMENT.read_text()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_row_shows_what_it_is_for(bench, number):
    """With the usual requests each value of a row is seen at work, and no bit differs."""
    outcome = run(bench, "combined", number)
    assert ("holds", ()) == (outcome.verdict, outcome.schedule_faults)


def test_no_row_is_a_value_too(bench):
    """What others are compared with can be asked for by itself."""
    assert "holds" == run(bench, "combined", "none").verdict


def test_a_row_can_be_told():
    """A number says nothing to a reader, so a report names what stands in the row."""
    stands_for = AXES["combined"].stands_for
    assert stands_for(1).startswith("block_size=1, prefix_cache=off, async_depth=1, draft_tokens=3")
    assert "none" == stands_for("none")
    assert "7" == AXES["prefill_chunk_size"].stands_for(7)


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_a_row_shows_it_with_longer_prompts_too(large, number):
    """So it is with the requests for a real model."""
    assert "holds" == run(large, "combined", number).verdict


@pytest.mark.parametrize("sight", SHOWN)
def test_a_row_that_does_not_show_what_it_must_has_tested_nothing(bench, sight):
    """Though all its values are reached, a row without its sight is undetermined."""
    number = min(SHOWN[sight])
    seen = run(bench, "combined", number).sights
    assert AXES["combined"].is_reached(seen, number)
    setattr(seen, sight, 0)
    assert not AXES["combined"].is_reached(seen, number)


def test_the_axes_one_by_one_do_not_show_it(bench):
    """No plain preemption brings a request back with several blocks, and yet fewer than before."""
    found = [run(bench, "preemption", value).sights for value in AXES["preemption"].values]
    assert 0 == sum(seen.num_shorter_tables for seen in found)
    assert 0 < min(seen.num_resumptions for seen in found)


def test_a_value_without_a_meaning_leaves_the_row_out():
    """A budget of 20 cuts nothing if all prompts together have fewer tokens."""
    assert ("max_num_batched_tokens", 20) in get_row(1)
    outcome = run(make_bench(work=Work((3, 4), 3)), "combined", 1)
    assert "all prompts together have only 7 tokens" == outcome.left_out
