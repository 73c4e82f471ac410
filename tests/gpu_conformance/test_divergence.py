from __future__ import annotations

import importlib

import attrs
import pytest
import torch

import gpu_conformance.bugs  # noqa: F401  (registers)
from checkers.planting import planted_at
from gpu_conformance.bench import Bench
from gpu_conformance.bugs.registry import BUGS
from gpu_conformance.divergence import find_divergence
from gpu_conformance.registry import AXES
from gpu_conformance.trace import ALL_STAGES, Key, hash_rows
from tests.gpu_conformance.support import make_bench, make_tiny_bench


def find(bug, bench=None):
    """The first row that differs, with a bug planted."""
    with planted_at(bug.target, bug.plant):
        bench = bench or make_tiny_bench()
        return find_divergence(bench, bench.make_way(AXES[bug.axis], bug.value))


@pytest.mark.parametrize(
    ("name", "stage", "nature"),
    [
        ("rope_is_off_by_one_after_the_first_chunk", "query", "logic"),
        ("a_slot_is_off_by_one", "KV in sight", "logic"),
        ("the_mask_is_off_by_one", "attention", "logic"),
        ("a_resumed_request_forgets_its_output", "embedding", "logic"),
        ("a_norm_is_more_precise_for_few_rows", "input_norm", "numeric"),
    ],
)
def test_the_stage_of_the_bug_is_named(name, stage, nature):
    """The first row that differs is of the stage that the bug is in, in layer 0."""
    found = find(BUGS[name])
    assert (0, stage, nature) == (found.key.layer, found.key.stage_name, found.nature)


def test_a_bug_in_one_layer_is_found_there():
    """What the last layer does not store is missed in the last layer, at that very position."""
    found = find(BUGS["the_last_layer_misses_a_row"])
    assert (1, "KV in sight") == (found.key.layer, found.key.stage_name)
    assert found.key.position == found.part.end - 1
    assert "its KV was written in step 0, and other data is there" in found.size


def test_the_first_write_in_the_wrong_place_is_named():
    """Where KV is misplaced, the report is about that write, with both places."""
    found = find(BUGS["a_slot_is_off_by_one"])
    assert ("r2", 7, 1) == (found.key.request_id, found.key.position, found.key.step)
    assert found.size.startswith("its KV is written to block 3, slot 8, and belongs in block 3")


def test_kv_that_is_read_in_the_wrong_place_is_named():
    """Where a table is at fault, the report is about who reads, with both places."""
    found = find(BUGS["a_block_table_entry_is_stale"])
    assert ("r3", 21) == (found.key.request_id, found.key.position)
    assert "position 16 is read from block 12, slot 0, and lies in block 8, slot 0" in found.size


def test_a_run_that_is_the_same_has_no_divergence():
    """Without a bug nothing differs, so nothing is found."""
    bench = make_bench()
    assert find_divergence(bench, bench.make_way(AXES["prefill_chunk_size"], 7)) is None


def give_up(runner):
    """Lets a runner run 3 steps."""
    steps, execute = iter(range(3)), runner.execute

    def execute_or_give_up(output):
        if next(steps, None) is None:
            raise RuntimeError("gone")
        return execute(output)

    runner.execute = execute_or_give_up
    return runner


def test_a_run_that_breaks_off_is_looked_at_as_far_as_it_came():
    """A runner that gives up after the first row that differs does not hide it."""
    usual = make_tiny_bench()

    def make(way, num_blocks):
        runner = usual.subject.make(way, num_blocks)
        return give_up(runner) if len(way.requests) > 1 else runner

    bench = Bench(attrs.evolve(usual.subject, make=make), usual.requests)
    rope = BUGS["rope_is_off_by_one_after_the_first_chunk"]
    found = find(rope, bench)
    assert (1, "query") == (found.key.step, found.key.stage_name)


def test_all_is_told():
    """Request, position, chunk, block, slot, layer, stage, size, logits and verdict."""
    text = find(BUGS["rope_is_off_by_one_after_the_first_chunk"]).describe()
    assert "first differs  r2, position 7, chunk 7 to 13 of step 1, block 3, slot 7" in text
    for part in ("layer 0, query", "of the row's length", "the two greatest are", "logic:"):
        assert part in text


def test_nobody_looks_when_nothing_is_traced():
    """A run that is only compared has no tap, so the runner takes the way that it always takes."""
    bench = make_bench()
    runner = bench.subject.make(bench.make_way(AXES["batch_order"], 1), 4)
    see_nothing = importlib.import_module("impl.runner.model").see_nothing
    assert (None, see_nothing) == (runner.tap, runner.model.see)


def test_rows_are_hashed_by_bits_and_places():
    """A row has another hash if one bit differs, or two numbers change places."""
    rows = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0000002], [2.0, 1.0, 3.0], [1.0, 2.0, 3.0]])
    one, bit, swapped, same = hash_rows(rows).tolist()
    assert one == same
    assert 3 == len({one, bit, swapped})


def test_a_row_comes_after_what_it_is_computed_from():
    """Keys are in the order of layers, stages, steps and positions."""
    keys = [Key(0, 1, 5, 9, "a"), Key(0, 2, 0, 0, "a"), Key(1, 0, 0, 0, "a"), Key(1, 0, 1, 0, "a")]
    assert keys == sorted({*keys})
    places = [ALL_STAGES.index(stage) for stage in ("value", "KV in sight", "attention")]
    assert places == sorted(places)
