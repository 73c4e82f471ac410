from __future__ import annotations

from collections import Counter

import pytest
import z3

from proofs.symbolic.heap import sum_of
from proofs.symbolic.prover import Prover
from proofs.symbolic.values import term
from proofs.unbounded.cuts import CutScheduler
from proofs.unbounded.points import between_steps, general_facts, quantified
from proofs.unbounded.state import (
    CACHING,
    DIALECTS,
    FLIGHT_FIELDS,
    PRIORITY,
    RUNNING,
    SYNCHRONOUS,
    WAITING,
    SymbolicOutput,
    injected,
    make_scheduler,
)
from proofs.unbounded.watch import WatchedScheduler, run_once
from spec.block_pool import cdiv
from spec.interface import NewRequest, RequestStatus, SchedulerConfig
from spec.scheduler import ReferenceScheduler

PLACES = {"between steps", "pass 1", "making room", "pass 2", "putting back", "advancing"}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_every_claim_holds_wherever_a_run_comes(dialect):
    """Random runs come through every point, and nothing that is claimed there fails."""
    num_looks = Counter()
    for seed in range(20):
        looks, failure = run_once(dialect, (), seed)
        assert failure is None, failure.lines
        num_looks.update(looks)
    assert PLACES == set(num_looks)
    assert all(num_looks[place] >= 50 for place in PLACES)


# ---- one state of plain integers, as the arrays of a proof ---------------------------------------


def plain_scheduler(dialect=SYNCHRONOUS):
    """Two run, one of them in mid-prompt, two are new; the later has the greater priority."""
    config = SchedulerConfig(
        max_num_batched_tokens=6,
        max_num_seqs=3,
        max_model_len=8,
        block_size=2,
        num_blocks=5,
        **dict(dialect.switches),
    )
    scheduler = WatchedScheduler(config)
    for number, length in enumerate((2, 5, 3, 3)):
        prompt = (0,) * length
        scheduler.add_request(
            NewRequest(
                request_id=str(number + 1),
                prompt_token_ids=prompt,
                max_tokens=4,
                priority=number,
            )
        )
    for name, num_computed_tokens in (("1", 2), ("2", 3)):
        request = scheduler.requests[name]
        request.status, request.num_blocks = RequestStatus.RUNNING, cdiv(num_computed_tokens, 2)
        request.num_computed_tokens = num_computed_tokens
        request.num_output_tokens = 1 if name == "1" else 0
        scheduler.block_pool.num_free_blocks -= request.num_blocks
        scheduler.running.append(scheduler.waiting.pop_request())
    return scheduler


def array(values):
    """The array with these values, and 0 elsewhere."""
    result = z3.K(z3.IntSort(), z3.IntVal(0))
    for key, value in values.items():
        result = z3.Store(result, key, value)
    return result


def cells_of(symbolic, plain):
    """What each cell of a proof holds in a plain state; names are keys."""
    requests = {int(name): request for name, request in plain.requests.items()}
    cells = {}
    for name, value in symbolic.memory.cells.items():
        if z3.is_array(value):
            fields = {key: getattr(each, name, None) or 0 for key, each in requests.items()}
            cells[name] = array(fields)
        else:
            cells[name] = z3.IntVal(0)
    cells["num_free_blocks"] = z3.IntVal(plain.block_pool.num_free_blocks)
    cells[sum_of("num_blocks")] = z3.IntVal(plain.total("num_blocks"))
    cells["live"] = array(dict.fromkeys(requests, 1))
    where, pos = {}, {}
    for name, code, queue in (
        ("running", RUNNING, plain.running),
        ("waiting", WAITING, plain.waiting.items),
    ):
        keys = [int(each.request_id) for each in queue]
        cells[f"{name}.arr"] = array(dict(enumerate(keys)))
        cells[f"{name}.hi"] = z3.IntVal(len(keys))
        where |= dict.fromkeys(keys, code)
        pos |= {key: index for index, key in enumerate(keys)}
    return cells | {"where": array(where), "pos": array(pos)}


def facts_about(plain, dialect=SYNCHRONOUS):
    """Every clause of the invariant as a proof states it, with the numbers of a plain state."""
    prover = Prover()
    symbolic = make_scheduler(prover, dialect, CutScheduler, ReferenceScheduler, {})
    with injected(symbolic):
        symbolic.output = SymbolicOutput(symbolic.memory)
        facts = quantified(symbolic, between_steps) | general_facts(symbolic)
    cells = cells_of(symbolic, plain)
    numbers = [(symbolic.memory[name], value) for name, value in cells.items()]
    config = plain.config
    for field in SchedulerConfig.__attrs_attrs__:
        symbol = getattr(symbolic.config, field.name)
        if hasattr(symbol, "term") and z3.is_int(symbol.term):
            numbers.append((symbol.term, z3.IntVal(getattr(config, field.name))))
    blocks = z3.Function("blocks for", z3.IntSort(), z3.IntSort())
    size = config.block_size
    for name, fact in facts.items():
        plain_fact = z3.substitute_funs(
            z3.substitute(term(fact), *numbers),
            (blocks, (z3.Var(0, z3.IntSort()) + size - 1) / size),
        )
        yield name, plain_fact


def is_true(fact):
    """Whether a closed formula about finite arrays is valid; the solver may use all it has."""
    solver = z3.Solver()
    solver.add(z3.Not(fact))
    return solver.check() == z3.unsat


@pytest.mark.parametrize("dialect", [SYNCHRONOUS, PRIORITY, CACHING], ids=lambda each: each.name)
def test_a_real_state_satisfies_every_assumption(dialect):
    """Arrays and ghosts filled from a plain state satisfy all that a proof assumes of its start."""
    facts = facts_about(plain_scheduler(dialect), dialect)
    assert [] == [name for name, fact in facts if not is_true(fact)]


def test_a_broken_state_satisfies_them_no_more():
    """A block that is lost, or a request that stands in no list, contradicts an assumption."""
    plain = plain_scheduler()
    plain.block_pool.num_free_blocks -= 1
    assert ["blocks_are_conserved"] == [n for n, fact in facts_about(plain) if not is_true(fact)]
    plain = plain_scheduler()
    plain.running.pop()
    assert "the living are in a list" in [n for n, f in facts_about(plain) if not is_true(f)]
    plain = plain_scheduler(PRIORITY)
    plain.waiting.items.reverse()
    failed = [name for name, fact in facts_about(plain, PRIORITY) if not is_true(fact)]
    assert ["waiting: waiting_is_sorted"] == failed


def test_flight_fields_cover_the_dialects():
    """There is a field for each step in flight that a dialect allows, the planned one included."""
    assert max(each.num_steps for each in DIALECTS) + 1 == len(FLIGHT_FIELDS)
