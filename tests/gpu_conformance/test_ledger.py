from __future__ import annotations

import attrs
import pytest

from gpu_conformance.ledger import Ledger
from gpu_conformance.registry import AXES
from gpu_conformance.way import make_way
from gpu_conformance.work import Work
from spec.interface import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequest,
    NewRequestData,
    SchedulerOutput,
)
from tests.gpu_conformance.support import make_bench

PROMPT = (1, 2, 3, 4, 5, 6, 7)


@pytest.fixture
def ledger():
    """The books of one request, in blocks of 2."""
    way = make_way([NewRequest(request_id="r", prompt_token_ids=PROMPT, max_tokens=9)])
    config = attrs.evolve(way.config, block_size=2, num_blocks=20)
    return Ledger(attrs.evolve(way, config=config))


def begin(ledger, num_tokens, block_ids, start=0, drafts=(), **given):
    """Follows a step of the request; returns its part."""
    new, cached = {}, {}
    if start == 0 and "resumed" not in given:
        new["r"] = NewRequestData(PROMPT, 0, block_ids)
    else:
        cached["r"] = CachedRequestData(given.pop("resumed", False), block_ids, start)
    output = SchedulerOutput(
        num_scheduled_tokens={"r": num_tokens},
        scheduled_new_reqs=new,
        scheduled_cached_reqs=cached,
        scheduled_spec_decode_tokens={"r": list(drafts)} if drafts else {},
        **given,
    )
    (part,) = ledger.begin(output)
    return part, output


def test_drafts_are_taken_back_where_the_runner_is(ledger):
    """A step that was planned before a draft was rejected begins where the runner is by then."""
    _, output = begin(ledger, 7, [1, 2, 3, 4])
    ledger.end(output, ModelRunnerOutput({"r": [8]}))
    part, output = begin(ledger, 3, [5], start=7, drafts=(-1, -1))
    assert (7, 10, True) == (part.start, part.end, part.is_sampled)
    ledger.end(output, ModelRunnerOutput({"r": [9]}))
    part, output = begin(ledger, 3, [6, 7], start=10, drafts=(-1, -1))
    assert (8, 11, True) == (part.start, part.end, part.is_sampled)
    ledger.end(output, ModelRunnerOutput({"r": [10]}))
    # By now the scheduler has heard of the first step, and not of the second.
    part, _ = begin(ledger, 3, [], start=11, drafts=(-1, -1))
    assert (9, 12, []) == (part.start, part.end, ledger.faults)


def come_back(ledger, block_ids, num_computed_tokens=0):
    """Preempts the request after its prompt, and brings it back; returns what was seen."""
    _, output = begin(ledger, 7, [1, 2, 3, 4])
    ledger.end(output, ModelRunnerOutput({"r": [8]}))
    ledger.begin(SchedulerOutput(preempted_req_ids=["r"]))
    begin(ledger, 1, block_ids, start=num_computed_tokens, resumed=True)
    return ledger.sights


@pytest.mark.parametrize(
    ("block_ids", "expected"), [([5], 0), ([5, 6, 7], 1), ([5, 6, 7, 8], 0), ([5, 6, 7, 8, 9], 0)]
)
def test_a_shorter_table_has_several_blocks_and_fewer_than_before(ledger, block_ids, expected):
    """Four blocks are lost: one is a table of its own, and four or more are no shorter."""
    assert expected == come_back(ledger, block_ids).num_shorter_tables


def sample(ledger, output, *token_ids):
    """The step has sampled so many tokens."""
    ledger.end(output, ModelRunnerOutput({"r": list(token_ids)}))


def test_a_chunk_of_an_output_is_one_that_ends_before_its_last_token(ledger):
    """A prompt of 7 and 3 tokens after it: only what ends at token 8 or 9 is a piece of these."""
    _, output = begin(ledger, 7, [1, 2, 3, 4])
    sample(ledger, output, 8, 9, 10)
    ledger.begin(SchedulerOutput(preempted_req_ids=["r"]))
    seen = []
    for start, num_tokens, given in ((0, 7, {"resumed": True}), (7, 1, {}), (8, 1, {}), (9, 1, {})):
        begin(ledger, num_tokens, [11, 12, 13, 14, 15] if given else [], start=start, **given)
        seen.append(ledger.sights.num_partial_output_chunks)
    assert ([0, 1, 2, 2], 10) == (seen, ledger.sights.greatest_length)


def count_reused(ledger, num_sampled):
    """The request ends after so many tokens, and comes again; returns what was seen."""
    part, output = begin(ledger, 7, [1, 2, 3, 4])
    assert part.is_new
    sample(ledger, output, *range(num_sampled))
    part, _ = begin(ledger, 7, [5, 6, 7, 8], finished_req_ids=["r"])
    assert ([], PROMPT, True) == (ledger.faults, ledger.token_ids["r"], part.is_new)
    seen = ledger.sights
    return seen.num_reused_ids, seen.num_reused_sampled_ids, seen.num_reused_ended_ids


@pytest.mark.parametrize(
    ("num_sampled", "expected"), [(0, (1, 0, 0)), (1, (1, 1, 0)), (8, (1, 1, 0)), (9, (1, 1, 1))]
)
def test_a_name_that_comes_again_is_seen_with_what_was_sampled_under_it(
    ledger, num_sampled, expected
):
    """The books begin anew; a request of 9 tokens has ended when it has them all."""
    assert expected == count_reused(ledger, num_sampled)


def test_drafts_of_whoever_had_the_name_before_are_not_taken_back(ledger):
    """A request is aborted before the scheduler hears that its drafts were rejected."""
    _, output = begin(ledger, 7, [1, 2, 3, 4])
    sample(ledger, output, 8)
    _, output = begin(ledger, 3, [5], start=7, drafts=(-1, -1))
    sample(ledger, output, 9)
    part, _ = begin(ledger, 7, [5, 6, 7, 8], finished_req_ids=["r"])
    assert (0, 7) == (part.start, part.end)


def test_what_is_hit_at_a_return_is_counted(ledger):
    """A request that comes back to KV that is still there is seen to."""
    assert 2 == come_back(ledger, [1, 5], num_computed_tokens=2).num_resumed_hit_tokens


@pytest.mark.parametrize(
    ("start", "num_tokens", "expected"), [(1, 3, 0), (1, 4, 1), (2, 5, 0), (2, 4, 0)]
)
def test_a_wide_chunk_begins_within_a_block_and_crosses_two_borders(
    ledger, start, num_tokens, expected
):
    """In blocks of 2, tokens 1 to 4 lie in three blocks; tokens 2 to 6 begin at a border."""
    begin(ledger, start, [1, 2, 3, 4])
    begin(ledger, num_tokens, [], start=start)
    assert expected == ledger.sights.num_wide_chunks


def test_a_worker_that_is_ahead_drafts_for_itself():
    """With two steps in flight some drafts are accepted, so that fewer steps do the same."""
    bench = make_bench(work=Work((3, 17), 12))
    plain = AXES["async_depth"].apply(bench.make_way(AXES["draft_tokens"], 0), 2)
    drafted = AXES["async_depth"].apply(bench.make_way(AXES["draft_tokens"], 3), 2)
    found = [bench.follow(AXES["async_depth"], 2, way) for way in (plain, drafted)]
    assert ["holds", "holds"] == [outcome.verdict for outcome in found]
    assert found[1].sights.num_steps < found[0].sights.num_steps
    assert [(), ()] == [outcome.schedule_faults for outcome in found]
