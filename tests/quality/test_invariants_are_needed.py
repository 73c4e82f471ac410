"""No invariant without a bug that it catches: what nothing would miss only costs time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkers.configs import load_settings
from checkers.mutations import bugs  # noqa: F401, importing it registers the bugs
from checkers.mutations.registry import MUTATIONS, planted
from spec.registry import INVARIANTS
from tests.quality.watching import Sightings, watch

LATER = {
    "ref_cnt_counts_holders": "a block that is counted wrongly is lost, or becomes free while held",
    "no_block_is_free_and_held": "a block that is free while held is handed out to somebody else",
    "no_step_overwrites_kv": "whoever needs what was overwritten reads it sooner or later",
    "requests_are_conserved": "a request that is in no queue, or in two, falls out of the others",
    "diff_is_sufficient": "a worker that lost track writes nothing, and others read it",
    "counters_are_monotone": "whoever counts wrongly what it has computed reads what nobody wrote",
    "a_turn_ends_at_its_last_token": "whoever goes on from a wrong place reads what nobody wrote",
    "who_waits_for_input_keeps_all": "whoever finds other blocks than it left reads them",
    "a_chunk_is_for_one_request": "whoever else it changed is not what its worker believes",
    "loads_are_told": "whoever is loaded into other blocks than it holds reads what nobody wrote",
    "rejected_drafts_are_rolled_back": "whoever goes on from a wrong place loses its worker",
}
"""Invariants whose bugs others notice, too, but not before them; and what the others notice."""

CLAIMS = {"prompts_are_not_preempted": "thrash"}
"""Claims, and the setting that breaks each on its own: they do not hold everywhere."""

ALONE = [name for name in INVARIANTS if name not in {*LATER, *CLAIMS}]


def find_bug(name: str, is_enough: Callable[[Sightings], bool]) -> str | None:
    """Finds a bug of an invariant whose walks show enough."""
    for wrong in MUTATIONS.values():
        if wrong.caught_by == name:
            with planted(wrong):
                seen = watch(wrong.setting)
            if is_enough(seen):
                return wrong.name
    return None


@pytest.mark.parametrize("name", ALONE)
def test_only_it_sees_the_bug(name: str) -> None:
    """For each invariant there is a bug that breaks it and no other, however long the run."""
    assert find_bug(name, lambda seen: seen.ever == {name}) is not None


@pytest.mark.parametrize("name", LATER)
def test_it_sees_the_bug_first(name: str) -> None:
    """For the others there is one that breaks them before it breaks anything else."""
    assert find_bug(name, lambda seen: frozenset({name}) in seen.first) is not None


@pytest.mark.parametrize("name", CLAIMS)
def test_a_setting_breaks_the_claim(name: str) -> None:
    """For each claim there is a setting in which our engine, as it is, breaks it and no other."""
    assert {name} == watch(load_settings()[CLAIMS[name]]).ever


def test_exceptions_are_invariants() -> None:
    """Each exception above names an invariant, and once."""
    named = [*LATER, *CLAIMS]
    assert sorted(set(named) & INVARIANTS.keys()) == sorted(named)
