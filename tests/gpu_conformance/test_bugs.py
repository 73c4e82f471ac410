from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import gpu_conformance.axes
import gpu_conformance.bugs  # noqa: F401  (registers)
from gpu_conformance.bug_command import catch, check_bug, sum_up
from gpu_conformance.bugs.registry import BUGS, Bug
from gpu_conformance.registry import AXES

DOCUMENT = Path(__file__).parents[2] / "docs" / "conformance.md"
BY_TOKENS = {
    "a_chunk_that_is_not_the_last_samples_a_token",
    "noise_comes_from_one_source_for_all",
    "noise_is_counted_on_under_a_name",
}
"""No row is wrong; what is made of it is."""
BY_ACCURACY = {"a_chunk_reads_beyond_its_end", "angles_end_at_position_100"}
"""Whole prompts come to NaN as well, or are as wrong, so that the baseline is no better."""
BY_RUNNER = {"who_has_ended_is_forgotten_a_step_late"}
"""It forgets somebody whom it is asked for at once."""
SILENT = {
    "a_chunk_reads_beyond_its_end",
    "the_mask_is_off_by_one",
    "a_product_is_split_if_there_are_few_rows",
    "a_norm_is_more_precise_for_few_rows",
    "few_queries_sum_long_kv_backwards",
    "angles_end_at_position_100",
    "a_shorter_table_ends_as_the_old_one_went_on",
    "a_table_of_the_old_length_keeps_its_end",
    "a_name_brings_back_its_old_blocks",
}
"""Tokens alone do not show them here."""


@pytest.mark.parametrize("name", BUGS)
def test_every_bug_is_caught_for_what_it_is(name):
    """A planted bug shows in the bits, and the first row that differs says of what kind it is."""
    caught = catch(BUGS[name])
    others = {"tokens": BY_TOKENS, "accuracy": BY_ACCURACY, "runner": BY_RUNNER}
    usual = next((by for by, names in others.items() if name in names), "bits")
    assert (usual, "holds") == (caught.by, check_bug(caught).verdict)
    assert (name not in SILENT) == caught.is_seen_by_tokens


def test_a_bug_that_is_no_bug_is_missed():
    """The test above can fail: a right method in the place of a right one is not caught."""
    harmless = Bug(
        "harmless",
        "Nothing.",
        "none",
        lambda original: original,
        "impl.runner.batch:compute_slots",
        "batch_size",
        2,
        "logic",
        (),
    )
    caught = catch(harmless)
    assert ("", "violated") == (caught.by, check_bug(caught).verdict)
    assert check_bug(caught).findings[0].startswith("MISSED: Nothing.")
    assert "0 of 1" in sum_up([caught]).lines[0]


def test_a_kind_that_is_wrong_is_told():
    """A bug in the order of sums that is called one of data is misnamed."""
    split = BUGS["a_product_is_split_if_there_are_few_rows"]
    other = Bug(
        split.name,
        split.rule,
        split.kind,
        split.plant,
        split.target,
        split.axis,
        split.value,
        "logic",
        (),
    )
    assert check_bug(catch(other)).findings[0].startswith("MISNAMED")


def test_bugs_show_on_many_axes():
    """Each bug names an axis and one of its values, and they are not all of one axis."""
    assert [] == [b.name for b in BUGS.values() if b.value not in AXES[b.axis].values]
    assert 7 < len(Counter(bug.axis for bug in BUGS.values()))


def test_the_document_counts_what_is_there():
    """How many bugs there are, and who sees them, is what `docs/conformance.md` says."""
    text = " ".join(DOCUMENT.read_text().split())
    num_by_bits = len(BUGS) - len(BY_TOKENS | BY_ACCURACY | BY_RUNNER)
    assert f"All {len(BUGS)} are caught, {num_by_bits} of them by rows, {len(BY_TOKENS)} by" in text
    assert f"would have noticed: {len(BUGS) - len(SILENT)} of {len(BUGS)}." in text
