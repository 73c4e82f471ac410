"""The ghost worker: what it reconstructs, what it cannot do, and what it knows of the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given

from spec.interface import (
    CachedRequestData,
    NewRequestData,
    Observation,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.worker import GhostWorker, WorkerReport
from tests.spec.support import configs, make_config, make_request
from tests.spec.transitions import Story, follow_trusting, make_run, seeds, walk

SIZE = 4
"""Slots of a block."""


class Worker(GhostWorker):
    """A ghost worker with one short call for a step of one or more requests."""

    def __init__(self) -> None:
        super().__init__(SIZE)
        self.token_ids: dict[str, tuple[int, ...]] = {}
        self.salts: dict[str, str | None] = {}

    def run(self, *parts: SchedulerOutput) -> WorkerReport:
        """Executes a step that consists of the parts of several requests."""
        step = SchedulerOutput()
        for part in parts:
            step.num_scheduled_tokens |= part.num_scheduled_tokens
            step.scheduled_new_reqs |= part.scheduled_new_reqs
            step.scheduled_cached_reqs |= part.scheduled_cached_reqs
            step.finished_req_ids += part.finished_req_ids
        return self.execute(step, self.token_ids, self.salts)

    def new(
        self, name: str, num_tokens: int, table: list[int], start: int = 0, prompt: Any = None
    ) -> SchedulerOutput:
        """The part of a new request, whose prompt is its name's own unless it is given."""
        prompt = prompt or (ord(name),) * (start + num_tokens)
        self.token_ids[name] = prompt
        self.salts.setdefault(name, None)
        return SchedulerOutput(
            num_scheduled_tokens={name: num_tokens},
            scheduled_new_reqs={name: NewRequestData(prompt, start, table)},
        )

    def learn(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        """As the parent; the client knows it, too."""
        self.token_ids[request_id] = token_ids
        super().learn(request_id, token_ids)


def old(
    name: str, num_tokens: int, new_block_ids: list[int], start: int, *, resumed: bool = False
) -> SchedulerOutput:
    """The part of a request that the worker knows."""
    return SchedulerOutput(
        num_scheduled_tokens={name: num_tokens},
        scheduled_cached_reqs={name: CachedRequestData(resumed, new_block_ids, start)},
    )


@pytest.fixture
def worker() -> Worker:
    """A worker that has run nothing yet."""
    return Worker()


# ---- it follows a correct scheduler --------------------------------------------------------------


@given(configs(), seeds)
def test_a_correct_run_leaves_nothing_to_report(config: SchedulerConfig, seed: int) -> None:
    """Along any correct run the worker knows every table, and finds all KV that it needs."""
    config = evolve(config, publish_at_grant=False)
    for seen in walk(make_run(config), seed):
        assert [] == seen.published_faults
        if seen.worker is not None:
            assert ([], [], []) == (seen.worker.diff, seen.worker.writes, seen.worker.reads)
            tables = {name: seen.after.requests[name].block_ids for name in seen.starts}
            assert tables == seen.worker.block_tables


@given(configs(), seeds)
def test_trusting_agrees_with_history(config: SchedulerConfig, seed: int) -> None:
    """A worker that trusts the state before an action reports what one reports that knows it all.

    So an explorer need not keep a worker's memory in its states.
    """
    config = evolve(config, publish_at_grant=False)
    for seen in walk(make_run(config), seed):
        trusting = follow_trusting(config, seen)
        assert seen.worker == trusting.worker
        assert seen.published_faults == trusting.published_faults


# ---- the diff ------------------------------------------------------------------------------------


def test_a_new_request_is_known_from_then_on(worker: Worker) -> None:
    """The whole table comes once, then only what is new."""
    assert {"A": [1, 2]} == worker.run(worker.new("A", 6, [1, 2])).block_tables
    assert {"A": [1, 2, 3]} == worker.run(old("A", 3, [3], 6)).block_tables


def test_new_twice(worker: Worker) -> None:
    """A request that is sent as new again was not forgotten in between."""
    worker.run(worker.new("A", 3, [1]))
    report = worker.run(worker.new("A", 3, [2]))
    assert ["A is sent as new, however the worker knows it"] == report.diff


def test_a_finished_request_is_forgotten(worker: Worker) -> None:
    """Once the worker is told that a request has finished, its name is free again."""
    worker.run(worker.new("A", 3, [1]))
    report = worker.run(SchedulerOutput(finished_req_ids=["A"]), worker.new("A", 3, [2]))
    assert [] == report.diff


def test_a_cached_request_that_never_came(worker: Worker) -> None:
    """A difference to what the worker never saw says nothing."""
    report = worker.run(old("A", 1, [1], 3))
    assert [
        "A is sent as cached, however the worker never saw it",
        "the diff names [], however scheduled are ['A']",
    ] == report.diff


def test_a_prompt_of_somebody_else(worker: Worker) -> None:
    """A new request comes with its own prompt."""
    step = worker.new("A", 3, [1])
    worker.token_ids["A"] = (7, 7, 7)
    assert ["A is sent with a prompt that is not its own"] == worker.run(step).diff


def test_a_gap_between_two_steps(worker: Worker) -> None:
    """A request goes on where it has stopped."""
    worker.run(worker.new("A", 3, [1]))
    report = worker.run(old("A", 1, [], 2))
    assert ["A is told to go on at token 2, the worker has computed 3"] == report.diff


def test_a_block_is_missing(worker: Worker) -> None:
    """The table holds a slot for each token of the step."""
    report = worker.run(worker.new("A", 6, [1]))
    assert ["A runs up to token 6, however its block table has 4 slots"] == report.diff


def test_a_victim_must_be_resumed(worker: Worker) -> None:
    """After a preemption the old table is void, so a difference to it says nothing."""
    worker.run(worker.new("A", 3, [1]))
    worker.preempt(["A"])
    report = worker.run(old("A", 1, [], 3))
    assert ["A goes on after its preemption without being resumed"] == report.diff


def test_a_resumed_request_gets_its_whole_table(worker: Worker) -> None:
    """A resumed request's table replaces the old one, and its tokens are computed again."""
    worker.run(worker.new("A", 3, [1]))
    worker.preempt(["A"])
    report = worker.run(old("A", 3, [2], 0, resumed=True))
    assert ([], [], {"A": [2]}) == (report.diff, report.reads, report.block_tables)


def test_after_a_fault_of_the_diff_nothing_runs(worker: Worker) -> None:
    """A worker that has lost track says that alone: it knows no table to write to."""
    report = worker.run(worker.new("A", 6, [1]), worker.new("B", 3, [1]))
    assert ([], [], {}) == (report.writes, report.reads, report.block_tables)


# ---- what is written -----------------------------------------------------------------------------


def test_two_write_one_block(worker: Worker) -> None:
    """Two requests of a step never write the same block."""
    report = worker.run(worker.new("A", 3, [1]), worker.new("B", 3, [1]))
    assert ["B and A both write block 1 in one step"] == report.writes


def test_a_block_of_another(worker: Worker) -> None:
    """A step does not write into a block of a running request that it leaves out."""
    worker.run(worker.new("A", 3, [1]))
    report = worker.run(worker.new("B", 3, [1]))
    assert ["B writes block 1, which A holds too"] == report.writes


@pytest.mark.parametrize("end", ["preempted", "finished"])
def test_a_block_of_nobody(worker: Worker, end: str) -> None:
    """What a preempted or a finished request has held may be written."""
    worker.run(worker.new("A", 3, [1]))
    finished = SchedulerOutput()
    if end == "preempted":
        worker.preempt(["A"])
    else:
        finished.finished_req_ids.append("A")
    assert [] == worker.run(finished, worker.new("B", 3, [1])).writes


def test_a_hit_on_a_block_of_this_step(worker: Worker) -> None:
    """A request may hit a block that the step that admits it is about to write."""
    prompt = (5,) * 6
    report = worker.run(
        worker.new("A", 6, [1, 2], prompt=prompt), worker.new("B", 2, [1, 3], 4, prompt=prompt)
    )
    assert ([], [], []) == (report.diff, report.writes, report.reads)


# ---- what is read --------------------------------------------------------------------------------


def test_nobody_wrote_it(worker: Worker) -> None:
    """A hit on a block that no step wrote is a read of whatever was there."""
    report = worker.run(worker.new("A", 2, [1, 2], start=4))
    assert [
        "A reads tokens 0 to 3 from block 1, which holds nothing that a step wrote"
    ] == report.reads


def test_it_was_written_in_part(worker: Worker) -> None:
    """A hit on a block counts as far as it was written."""
    worker.run(worker.new("A", 3, [1]))
    report = worker.run(worker.new("B", 2, [1, 2], start=4, prompt=worker.token_ids["A"] * 2))
    assert [
        "B reads tokens 0 to 3 from block 1, which holds only what was written for positions 0 to 2"
    ] == report.reads


def test_it_was_written_for_other_tokens(worker: Worker) -> None:
    """A hit on a block that holds the KV of other tokens is a read of those."""
    worker.run(worker.new("A", 4, [1]))
    report = worker.run(worker.new("B", 2, [1, 2], start=4))
    assert [
        "B reads tokens 0 to 3 from block 1, which holds only what was written for positions 0 to 3"
    ] == report.reads


def test_it_was_written_under_another_salt(worker: Worker) -> None:
    """The same tokens under another salt are not the same KV."""
    prompt = (5,) * 6
    worker.salts = {"A": "x", "B": "x", "C": "y"}
    worker.run(worker.new("A", 6, [1, 2], prompt=prompt))
    assert [] == worker.run(worker.new("B", 2, [1, 3], 4, prompt=prompt)).reads
    assert [] != worker.run(worker.new("C", 2, [1, 4], 4, prompt=prompt)).reads


def test_it_was_written_for_other_places(worker: Worker) -> None:
    """KV knows its position: the second block of a prompt is not the first of another."""
    worker.run(worker.new("A", 8, [1, 2], prompt=(5,) * 8))
    report = worker.run(worker.new("B", 2, [2, 3], start=4, prompt=(5,) * 6))
    assert [
        "B reads tokens 0 to 3 from block 2, which holds only what was written for positions 4 to 7"
    ] == report.reads


def test_it_was_overwritten(worker: Worker) -> None:
    """Whoever loses KV to another request notices when it goes on, with what it adds itself."""
    worker.run(worker.new("A", 3, [1]))
    worker.run(worker.new("B", 2, [1]))
    assert [
        "A reads tokens 0 to 2 from block 1, which holds only what was written for positions 3 to 3"
    ] == worker.run(old("A", 1, [], 3)).reads


def test_a_victim_finds_what_it_wrote(worker: Worker) -> None:
    """A resumed request may hit a block of its former life, as anybody else might."""
    worker.run(worker.new("A", 5, [1, 2]))
    worker.preempt(["A"])
    assert [] == worker.run(old("A", 1, [1, 3], 4, resumed=True)).reads


# ---- what is published ---------------------------------------------------------------------------


def published(worker: Worker, **contents: Any) -> Iterator[str]:
    """What a worker knows against block 1, published under a salt for some tokens."""
    content = (contents.get("salt"), contents["tokens"])
    return worker.check_published(
        Observation(
            running=[],
            waiting=[],
            requests={},
            num_free_blocks=0,
            free_block_ids=[],
            ref_cnt={},
            cached_block_ids=[1],
            finished_req_ids=[],
            block_contents={1: content},
        )
    )


def test_what_was_written_may_be_found(worker: Worker) -> None:
    """A block that was written in full, in one step or in two, may be found by its tokens."""
    worker.run(worker.new("A", 3, [1], prompt=(5, 6, 7, 8)))
    worker.run(old("A", 1, [], 3))
    assert [] == list(published(worker, tokens=(5, 6, 7, 8)))


def test_nobody_wrote_what_is_published(worker: Worker) -> None:
    """A block that no step wrote must not be found."""
    assert ["block 1 is published, however it holds nothing that a step wrote"] == list(
        published(worker, tokens=(5, 6, 7, 8))
    )


def test_a_part_is_published(worker: Worker) -> None:
    """A block that was written in part must not be found."""
    worker.run(worker.new("A", 3, [1]))
    assert [
        "block 1 is published, however it holds only what was written for positions 0 to 2"
    ] == list(published(worker, tokens=(5, 6, 7, 8)))


def test_other_tokens_are_published(worker: Worker) -> None:
    """A block must be found by the tokens whose KV it holds, and by no others."""
    worker.run(worker.new("A", 4, [1], prompt=(5, 6, 7, 8)))
    expected = (
        "block 1 is published, however it stands for tokens (None, (5, 6, 7, 7)), "
        "and holds the KV of (5, 6, 7, 8)"
    )
    assert [expected] == list(published(worker, tokens=(5, 6, 7, 7)))


def test_another_salt_is_published(worker: Worker) -> None:
    """A block must be found under the salt that it was written under."""
    worker.run(worker.new("A", 4, [1], prompt=(5, 6, 7, 8)))
    assert [] != list(published(worker, tokens=(5, 6, 7, 8), salt="x"))


def test_a_token_that_is_not_known_is_published(worker: Worker) -> None:
    """A block with a token that is being sampled has no content yet to be found by."""
    worker.run(worker.new("A", 4, [1], prompt=(5, 6, 7)))
    assert ["block 1 is published, however only 3 of the 4 tokens it stands for are known"] == list(
        published(worker, tokens=(5, 6, 7, 8))
    )
    worker.learn("A", (5, 6, 7, 8))
    assert [] == list(published(worker, tokens=(5, 6, 7, 8)))


def test_what_a_victim_learns_is_not_what_it_wrote(worker: Worker) -> None:
    """A token that arrives after a preemption says nothing of the KV written before."""
    worker.run(worker.new("A", 4, [1], prompt=(5, 6, 7)))
    worker.preempt(["A"])
    worker.learn("A", (5, 6, 7, 8))
    assert ["block 1 is published, however only 3 of the 4 tokens it stands for are known"] == list(
        published(worker, tokens=(5, 6, 7, 8))
    )


def test_an_engine_may_not_tell_what_is_published(worker: Worker) -> None:
    """Without contents, all that is asked of a published block is that it was written."""
    worker.run(worker.new("A", 4, [1]))
    story = Story(make_config())
    seen = evolve(story.seen, cached_block_ids=[1], block_contents=None)
    assert [] == list(worker.check_published(seen))
    seen.cached_block_ids.append(2)
    assert ["block 2 is published, however it holds nothing that a step wrote"] == list(
        worker.check_published(seen)
    )


# ---- whole stories -------------------------------------------------------------------------------


def test_an_abort_in_flight(worker: Worker) -> None:
    """A request that is aborted while its step runs is forgotten, and its blocks may be written."""
    config = make_config(async_scheduling=True, num_blocks=2, enable_prefix_caching=True)
    story = Story(config, make_request("A", 7))
    story.schedule()
    story.abort("A")
    story.add(make_request("B", 7))
    seen = story.schedule()
    assert seen.worker is not None
    assert {"B"} == seen.worker.block_tables.keys()
    assert ([], [], []) == (seen.worker.diff, seen.worker.writes, seen.worker.reads)


def test_publication_of_a_chunk_that_is_taken_back() -> None:
    """The fault of vLLM 0.33.0: a chunk is found that no step will ever compute."""
    config = make_config(
        policy="priority",
        enable_prefix_caching=True,
        publish_at_grant=True,
        block_size=1,
        num_blocks=8,
        max_num_batched_tokens=3,
        long_prefill_token_threshold=2,
    )
    story = Story(config, make_request("A", 8, priority=1))
    story.run(1)
    story.add(make_request("B", 1, priority=0))
    story.run(1)
    seen = story.schedule()
    assert ["A"] == seen.preempted
    assert [
        "block 7 is published, however it holds nothing that a step wrote"
    ] == seen.published_faults
