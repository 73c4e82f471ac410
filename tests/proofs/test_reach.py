from __future__ import annotations

import attrs
import pytest
import z3

import proofs.theorems  # noqa: F401  (fills the registry)
from proofs.agreement import abort
from proofs.bounded import prove_bounded
from proofs.findable import FindablePool
from proofs.mutants import MUTANTS, planted
from proofs.reach import FailingStart, find_way
from proofs.replay import Raised, call
from proofs.symbolic.state import Shape
from proofs.theorem import THEOREMS
from spec.block_pool import NO_HIT, BlockPool
from spec.interface import NewRequest, RequestStatus
from spec.request import Request

LONE = Shape(num_running=1, num_waiting=0, block_size=2)
CONFIG = {
    "max_num_batched_tokens": 1,
    "max_num_scheduled_tokens": 1,
    "max_num_seqs": 2,
    "max_model_len": 8,
    "num_blocks": 3,
}
HALF_WAY = {
    "num_free_blocks": 2,
    "r0.num_prompt_tokens": 3,
    "r0.max_tokens": 2,
    "r0.num_computed_tokens": 2,
    "r0.num_blocks": 1,
}
"""Of three prompt tokens, two are computed, a token a step."""
RANKED = Shape(num_running=1, num_waiting=1, block_size=2, policy="priority")
RANKS = {
    "num_free_blocks": 2,
    "r0.num_prompt_tokens": 3,
    "r0.max_tokens": 1,
    "r0.num_computed_tokens": 1,
    "r0.num_blocks": 1,
    "r1.num_prompt_tokens": 1,
    "r1.max_tokens": 1,
    "r1.status": RequestStatus.WAITING,
    "r1.priority": 1,
    "r1.arrival_time": 1,
}
"""One request runs, a less urgent one waits."""


def always(make):
    """Every state is a failing one."""
    return True


def never(make):
    """No state is a failing one."""
    return False


def with_two_tokens(make):
    """A state with two computed tokens is a failing one."""
    return 2 == make().scheduler.running[0].num_computed_tokens


def start_of(shape, numbers, fails):
    """A failing start of chosen numbers; those left out are 0."""
    solver = z3.Solver()
    for name, value in {**CONFIG, **numbers}.items():
        solver.add(z3.Int(name) == int(value))
    solver.check()
    return FailingStart(shape, solver.model(), fails)


def refuted(name):
    """The start that refutes a theorem."""
    (proof,) = prove_bounded([THEOREMS[name]])
    return proof.failure.start


def test_the_fight_of_two_prompts_is_reached():
    """What refutes the whole-prompt gate is where two requests have just arrived."""
    way = find_way(refuted("the_whole_prompt_gate_reserves_nothing"))
    assert "reachable" == way.kind
    assert 2 == len(way.run[1:])
    assert all("add_request" in line for line in way.run[1:])


def test_a_publication_that_is_taken_back_is_reached():
    """What refutes publishing at grant is reached, and fails with real blocks, too."""
    way = find_way(refuted("publishing_at_grant_is_safe"))
    assert "reachable" == way.kind
    assert "cached" in way.run[0]


def test_a_right_rule_of_publication_leaves_nothing_to_be_reached():
    """The same state is no failing one where chunks are published once nothing takes them back."""
    start = refuted("publishing_at_grant_is_safe")
    shape = attrs.evolve(start.shape, switches=frozenset())
    way = find_way(attrs.evolve(start, shape=shape))
    assert ("undetermined", ()) == (way.kind, way.run)
    assert "look like it" in way.sentence


def test_the_shortest_run_is_shown():
    """A prompt is half-way after its arrival and two whole steps."""
    way = find_way(start_of(LONE, HALF_WAY, with_two_tokens))
    assert "reachable" == way.kind
    assert "in 5 actions" in way.sentence
    assert ["1", "2-3", "4-5"] == [line.split()[0] for line in way.run[1:]]


def test_a_start_without_requests_is_where_every_run_begins():
    """The empty scheduler needs no action."""
    shape = Shape(num_running=0, num_waiting=0, num_steps=0, block_size=2)
    way = find_way(start_of(shape, {"num_free_blocks": 3}, always))
    assert ("reachable", ()) == (way.kind, way.run)
    assert "in 0 actions" in way.sentence


def is_come_by(shape, numbers):
    """Whether a state of a run looks like the one of these numbers."""
    way = find_way(start_of(shape, numbers, never))
    assert ("look like it" in way.sentence) == ("unreachable" != way.kind)
    return "unreachable" != way.kind


def test_a_state_is_come_by():
    """Without a change, what the next test changes is the state of a run."""
    assert is_come_by(LONE, HALF_WAY)


@pytest.mark.parametrize(
    "change",
    [
        {"num_free_blocks": 1},
        {"r0.num_computed_tokens": 1, "r0.num_in_flight_tokens": 1},
        {"r0.num_output_tokens": 1},
        {"r0.num_in_flight_tokens": 1},
        {"r0.num_stale_output_tokens": 1},
        {"r0.num_output_placeholders": 1},
        {"r0.num_blocks": 2},
        {"r0.step0": 1},
    ],
    ids=lambda change: next(reversed(change)),
)
def test_every_number_is_compared(change):
    """A state that differs from one of a run in one number only is none of a run."""
    assert not is_come_by(LONE, {**HALF_WAY, **change})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"r1.priority": 0}, True),
        ({"r1.priority": 0, "r1.arrival_time": 0}, True),
        ({"r0.arrival_time": 2}, True),
        ({"r1.status": RequestStatus.PREEMPTED}, False),
        ({"r1.num_prompt_tokens": 3, "r1.priority": 0, "r0.arrival_time": 2}, False),
    ],
)
def test_ranks_are_compared(change, expected):
    """Priorities and the order of arrival are as the state says; in a tie either may be first."""
    assert expected == is_come_by(RANKED, {**RANKS, **change})


def test_another_state_is_found_where_the_theorem_fails():
    """What no run gets to may yet be wrong of a state that one gets to."""
    never_so = {**HALF_WAY, "num_free_blocks": 1}
    way = find_way(start_of(LONE, never_so, with_two_tokens))
    assert "elsewhere" == way.kind
    assert way.sentence.startswith("no run of requests like these gets there")
    assert ["1", "2-3", "4"] == [line.split()[0] for line in way.run[1:]]


def test_a_bound_is_no_answer():
    """Where the search ends early, nothing is said of what it has not seen."""
    way = find_way(start_of(LONE, HALF_WAY, with_two_tokens), max_states=3)
    assert ("undetermined", ()) == (way.kind, way.run)


def test_a_spec_that_fails_in_a_run_is_no_answer():
    """A wrong specification may raise in a run that is tried; that is said, and nothing else."""
    numbers = {**HALF_WAY, "num_free_blocks": 1}
    with planted(MUTANTS["the_tail_is_admitted"]):
        way = find_way(start_of(LONE, numbers, never))
    assert "undetermined" == way.kind
    assert "the search ended with ValueError" in way.sentence


def test_what_is_taken_again_is_found_no_more():
    """A freed table stays findable until its blocks are handed out, from its tail."""
    new = NewRequest(request_id="r0", prompt_token_ids=(1, 2, 3, 4), max_tokens=1)
    first, second = Request(new), Request(attrs.evolve(new, request_id="r1"))
    pool = FindablePool(BlockPool(3, 2, True, True), [first, second])
    pool.allocate(first, NO_HIT, 2)
    pool.cache_full_blocks(first, 4)
    assert ({"r0": 4, "r1": 0}, {}) == (pool.num_published_tokens, pool.num_left_tokens)
    pool.free(first)
    assert ({"r0": 0, "r1": 0}, {"r0": 4}) == (pool.num_published_tokens, pool.num_left_tokens)
    pool.allocate(second, NO_HIT, 2)
    assert ({"r0": 2}, 1) == (pool.num_left_tokens, pool.num_free_blocks)


def test_our_engine_does_not_stand_on_a_pool_of_identities():
    """Where our engine is compared with blocks that are published, no run is taken for found."""

    def abort_differs(make):
        return isinstance(call(abort, make()), Raised)

    shape = attrs.evolve(LONE, pool="publication")
    way = find_way(start_of(shape, HALF_WAY, abort_differs))
    assert "undetermined" == way.kind
    assert "our engine's blocks are counted" in way.sentence
