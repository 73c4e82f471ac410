from __future__ import annotations

import attrs
import pytest

import gpu_conformance.axes  # noqa: F401  (registers)
from checkers.errors import EngineFault, HarnessError
from checkers.planting import planted_at
from gpu_conformance.adapters.ours import Ours
from gpu_conformance.bugs.blocks import a_slot_is_off_by_one
from gpu_conformance.bugs.positions import (
    positions_begin_anew_after_a_hit,
    rope_is_off_by_one_after_the_first_chunk,
)
from gpu_conformance.bugs.registry import BUGS
from gpu_conformance.live.bench import LiveBench, LiveSubject
from gpu_conformance.live.interface import Served, split_into_calls
from gpu_conformance.registry import AXES, NotHere
from gpu_conformance.way import Arrival, Sights, make_way
from gpu_conformance.work import WORKS, Work, make_requests
from spec.interface import NewRequest

WORK = Work((3, 17, 20, 33, 33), 4)
WAY = make_way(make_requests(WORK))
SETTINGS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "num_blocks")


def make_bench(engine=None, work=WORK):
    """Our scheduler and runner through the interface of engines, or another engine."""
    subject = LiveSubject(
        name="ours",
        dtype="float32",
        device="cpu",
        engine=engine or Ours("tiny", "float32", "cpu"),
        tolerance=1e-4,
    )
    return LiveBench(subject, make_requests(work))


@pytest.fixture(scope="module")
def bench():
    """Our own engine without a bug."""
    return make_bench()


class Changed:
    """An engine whose answers are changed, once it has computed each request alone."""

    def __init__(self, change, block_size=16):
        self.ours = Ours("tiny", "float32", "cpu")
        self.change = change
        self.block_size = block_size
        self.ways = []

    def serve(self, way):
        """Computes, and changes what came of it."""
        self.ways.append(way)
        served = self.ours.serve(way)
        return served if len(self.ways) == 1 else self.change(served)


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("max_num_batched_tokens", 17),
        ("batch_size", 2),
        ("prefix_cache", "much later"),
        ("preemption", 0),
        ("prefill_chunk_size", 7),
        ("async_depth", 2),
    ],
)
def test_our_engine_holds_on_every_way(bench, axis, value):
    """All 20 tokens and their log-probabilities are as alone, and the value was seen at work."""
    outcome = bench.run(AXES[axis], value)
    assert ("holds", True, 20, 0.0) == (
        outcome.verdict,
        outcome.is_reached,
        outcome.comparison.tally.num_tokens,
        outcome.comparison.worst,
    ), outcome


def test_the_baseline_is_alone_and_whole(bench):
    """Alone, no step has two requests, no prompt is cut, and no prefix is hit."""
    seen = bench.alone.sights
    assert (1, 0, 0, 33) == (
        seen.max_num_reqs,
        seen.num_partial_chunks,
        seen.num_hit_tokens,
        seen.longest_chunk,
    )


@pytest.mark.parametrize(
    ("planted", "axis", "value"),
    [
        (rope_is_off_by_one_after_the_first_chunk, "max_num_batched_tokens", 17),
        (a_slot_is_off_by_one, "max_num_batched_tokens", 17),
        (positions_begin_anew_after_a_hit, "prefix_cache", "much later"),
    ],
)
def test_a_bug_in_the_runner_is_caught_through_the_interface(planted, axis, value):
    """What is planted below the engine is seen from outside, and called logic."""
    bug = BUGS[planted.__name__]
    with planted_at(bug.target, bug.plant):
        outcome = make_bench(work=WORKS["tiny"]).run(AXES[axis], value)
    assert "violated" == outcome.verdict
    assert outcome.comparison.faults[0].describe().endswith("logic, not rounding")


def test_a_value_that_is_not_seen_at_work_is_no_success():
    """An engine that shows no step has been asked, and nothing is known of how it computed."""
    blind = Changed(lambda served: Served(served.answers, Sights()))
    outcome = make_bench(blind).run(AXES["batch_size"], 2)
    assert ("undetermined", 20) == (outcome.verdict, outcome.comparison.tally.num_tokens)


@pytest.mark.parametrize(
    ("is_reached", "num_partial_chunks", "longest_chunk"),
    [(True, 1, 17), (False, 0, 17), (False, 1, 18)],
)
def test_a_budget_shows_in_prompts_that_are_cut(is_reached, num_partial_chunks, longest_chunk):
    """A budget is at work if it cuts a prompt, and nothing longer than it is computed at once."""
    seen = Sights(num_partial_chunks=num_partial_chunks, longest_chunk=longest_chunk)
    assert is_reached == AXES["max_num_batched_tokens"].is_reached(seen, 17)


def test_whatever_an_engine_raises_is_a_finding():
    """An engine that gives up has not computed the same."""

    def give_up(served):
        raise RuntimeError("out of memory")

    outcome = make_bench(Changed(give_up)).run(AXES["batch_size"], 2)
    assert ("violated", "RuntimeError: out of memory") == (outcome.verdict, outcome.error)
    assert 'raise RuntimeError("out of memory")' in outcome.trace


def test_what_is_no_answer_is_a_finding():
    """An engine that returns something else has not served."""
    outcome = make_bench(Changed(lambda _: None)).run(AXES["batch_size"], 2)
    told = "serve() returned a NoneType, expected Served"
    assert ("violated", told) == (outcome.verdict, outcome.error)


def test_a_request_that_gets_nothing_alone_is_a_finding():
    """Without an answer alone there is nothing to compare with, and the request is named."""

    class Forgets(Ours):
        def serve(self, way):
            served = super().serve(way)
            return Served({k: v for k, v in served.answers.items() if k != "p2"}, served.sights)

    with pytest.raises(EngineFault, match="gave p2 alone no answer"):
        make_bench(Forgets("tiny", "float32", "cpu"))


def test_an_engine_that_computes_nothing_alone_is_no_finding():
    """Without a baseline there is nothing to compare with, and one sentence says so."""

    class Refuses:
        block_size = 16

        def serve(self, way):
            raise NotHere("no room")

    with pytest.raises(HarnessError, match=r"ours cannot compute each request alone.*no room"):
        make_bench(Refuses())


def test_an_answer_that_is_missing_is_a_finding():
    """Who gets no answer at all differs at its first token."""

    def forget(served):
        return Served({k: v for k, v in served.answers.items() if k != "p2"}, served.sights)

    outcome = make_bench(Changed(forget)).run(AXES["batch_size"], 2)
    assert [("p2", 0)] == [(f.request_id, f.number) for f in outcome.comparison.faults]


def test_what_an_engine_cannot_be_asked_for_is_left_out():
    """Other requests than those of the baseline, and answers that are cut off, are not compared."""
    outcome = make_bench().run(AXES["engine_walk"], 1)
    assert "only whole answers to the usual requests are compared" == outcome.left_out
    assert "undetermined" == outcome.verdict


def test_room_is_cut_into_blocks_that_suit_the_engine():
    """The same number of tokens, in blocks of the engine's size; a size that is named stays."""
    engine = Changed(lambda served: served, block_size=32)
    bench = make_bench(engine)
    bench.run(AXES["preemption"], 0)
    bench.run(AXES["block_size"], 8)
    few, named = (way.config for way in engine.ways[1:])
    assert (32, 2, 8) == (few.block_size, few.num_blocks, named.block_size)


# ---- engines that are called ---------------------------------------------------------------------


def at(*steps):
    """The plain way, its requests arriving at these steps."""
    arrivals = [Arrival(r, step) for r, step in zip(WAY.requests, steps, strict=True)]
    return attrs.evolve(WAY, arrivals=tuple(arrivals))


def names(calls: list[list[NewRequest]]):
    """Who is handed over together."""
    return [[request.request_id for request in call] for call in calls]


def test_who_arrives_together_is_handed_over_together():
    """One call for each step at which somebody arrives, the earliest first."""
    assert [["r0", "r1", "r2", "r3", "r4"]] == names(split_into_calls(WAY, SETTINGS))
    later = split_into_calls(at(5, 0, 5, 0, 10), SETTINGS)
    assert [["r1", "r3"], ["r0", "r2"], ["r4"]] == names(later)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (at(0, 0, 0, 0, 4), "nobody can arrive while a call runs"),
        (attrs.evolve(WAY, order_seed=1), "a live engine plans, places and orders by itself"),
        (attrs.evolve(WAY, num_threads=2), "a live engine plans, places and orders by itself"),
        (
            attrs.evolve(WAY, config=attrs.evolve(WAY.config, enable_prefix_caching=True)),
            "this engine cannot be given enable_prefix_caching=True",
        ),
        (
            attrs.evolve(WAY, config=attrs.evolve(WAY.config, max_num_scheduled_tokens=9)),
            "this engine cannot be given max_num_scheduled_tokens=9",
        ),
    ],
)
def test_what_cannot_be_had_from_outside_is_refused(way, message):
    """Nothing that was not asked for counts as tested."""
    with pytest.raises(NotHere, match=message):
        split_into_calls(way, SETTINGS)
