from __future__ import annotations

import importlib

import attrs
import pytest
import torch

import gpu_conformance.bugs  # noqa: F401  (registers)
from checkers.errors import HarnessError
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


def cut_tables(original):
    """Block tables of 16 columns."""
    return lambda parts: original(parts)[:, :16]


def test_a_table_that_is_too_short_is_named():
    """Who sees fewer positions than alone is told, with both numbers and the block left out."""
    bench = make_bench()
    with planted_at("impl.runner.batch:make_block_tables", cut_tables):
        found = find_divergence(bench, bench.make_way(AXES["block_size"], 1))
    assert ("KV in sight", "logic", 16) == (found.key.stage_name, found.nature, found.key.position)
    assert found.size.startswith("KV of position 16 is read from no block, and lies in block ")
    assert found.size.endswith("which sees KV of 16 positions, alone of 17")


def take_the_row_before(original):
    """All but the first request of a step are given the rows one before their own."""

    def find_sampled(parts):
        sampled, rows = original(parts)
        first, *others = sampled
        shifted = [attrs.evolve(s, first_logits_row=s.first_logits_row - 1) for s in others]
        return [first, *shifted], rows

    return find_sampled


@pytest.mark.parametrize(("axis", "value"), [("batch_size", 2), ("draft_tokens", 1)])
def test_whose_logits_are_returned_is_named(axis, value):
    """Where all rows are right, and a request is given another one's, that one is named."""
    bench = make_bench()
    with planted_at("impl.runner.batch:find_sampled", take_the_row_before):
        found = find_divergence(bench, bench.make_way(AXES[axis], value))
    assert ("logits as returned", "logic", "r1") == (
        found.key.stage_name,
        found.nature,
        found.key.request_id,
    )
    assert "the row returned is that of r0, position 2" == found.size
    assert found.logits.startswith("of r1, position 16, by up to")


def make_changed_bench(change, *, is_alone=False):
    """Our runner, changed wherever several requests share a run, or wherever they do not."""
    usual = make_bench()

    def make(way, num_blocks):
        runner = usual.subject.make(way, num_blocks)
        return change(runner) if is_alone == (len(way.requests) == 1) else runner

    return Bench(attrs.evolve(usual.subject, make=make), usual.requests)


def show_twice_as_much(runner):
    """Lets a runner show logits twice as great as they are."""
    get_logits = runner.get_logits
    runner.get_logits = lambda: {name: 2 * rows for name, rows in get_logits().items()}
    return runner


def test_logits_that_nobody_computed_are_told():
    """A row that is returned, and that is nobody's, is said to be none that was computed."""
    bench = make_changed_bench(show_twice_as_much)
    found = find_divergence(bench, bench.make_way(AXES["batch_size"], 2))
    assert ("logits as returned", "r0") == (found.key.stage_name, found.key.request_id)
    assert found.size.endswith("it is no row that was computed")


def go_too_far(original):
    """What a chunk that begins within a block writes behind that block is one slot too far."""

    def compute_slots(part, block_size):
        start = part.positions.start
        first = -(-start // block_size) * block_size
        return [
            slot + (position >= first > start and part.num_tokens > 1 and position % block_size < 9)
            for slot, position in zip(original(part, block_size), part.positions, strict=True)
        ]

    return compute_slots


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_a_write_that_leaves_a_hole_behind_the_row_is_named(num_drafts):
    """NaN comes from a later position of the chunk, whose KV went to another slot."""
    bench = make_tiny_bench()
    with planted_at("impl.runner.batch:compute_slots", go_too_far):
        found = find_divergence(bench, bench.make_way(AXES["draft_tokens"], num_drafts))
    assert ("r3", 32, "attention") == (
        found.key.request_id,
        found.key.position,
        found.key.stage_name,
    )
    assert found.size.startswith("its KV is written to block 16, slot 1, and belongs in block 16")
    assert "r3, position 31, is NaN by it" in found.size


def test_padding_that_is_not_cleared_is_seen():
    """On a CPU steps are padded while somebody looks, too, so the KV that is lost is named."""
    found = find(BUGS["padding_is_stored_in_the_first_block"])
    assert ("KV in sight", "logic") == (found.key.stage_name, found.nature)
    assert "its KV was written in step" in found.size


def lose_angles(runner):
    """Lets a runner rotate by NaN."""
    get_rotation = runner.model._get_rotation
    runner.model._get_rotation = lambda positions: tuple(
        torch.full_like(angles, torch.nan) for angles in get_rotation(positions)
    )
    return runner


def test_a_row_that_is_nan_alone_is_told():
    """Where the baseline itself has come to NaN, the run is not blamed for it."""
    bench = make_changed_bench(lose_angles, is_alone=True)
    found = find_divergence(bench, bench.make_way(AXES["batch_order"], 1))
    assert "alone it is NaN, which is no measure" == found.size
    assert found.logits.startswith("of r0, position 2, NaN alone; the greatest is ")


def test_a_row_that_differs_in_one_look_alone_is_told():
    """A runner that does not compute the same twice cannot be looked into."""
    shifts = iter([1])

    def shift_once(runner):
        shift, write = next(shifts, 0), runner.kv_cache.write
        runner.kv_cache.write = lambda layer, slots, key, value: write(
            layer, slots, key + shift, value
        )
        return runner

    bench = make_changed_bench(shift_once)
    with pytest.raises(HarnessError, match=r"r0, position 0, of step 0, .* compute the same twice"):
        find_divergence(bench, bench.make_way(AXES["batch_order"], 1))


def test_a_look_that_breaks_off_before_any_row_differs_is_told():
    """What the runner raises is told where there is nothing else to tell."""
    bench = make_changed_bench(give_up)
    with pytest.raises(HarnessError, match="looks, the runner raises RuntimeError: gone, in step "):
        find_divergence(bench, bench.make_way(AXES["batch_size"], 2))


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
