"""Streaming input: what the reference does with requests whose prompts arrive in chunks."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from spec.actions import ResetPrefixCache, StreamingChunk, UpdateFromOutput
from spec.environment import Environment
from spec.interface import (
    ConfigError,
    EngineCoreOutput,
    NewRequestData,
    RequestStatus,
    StreamingUpdate,
)
from tests.spec.support import Driver, make_config, make_request


def chunk(*token_ids: int, max_tokens: int = 2, arrival_time: float = 9.0) -> StreamingUpdate:
    """A chunk."""
    return StreamingUpdate(
        prompt_token_ids=token_ids, max_tokens=max_tokens, arrival_time=arrival_time
    )


def session(
    max_tokens: int = 2, prompt: int = 5, stop: tuple[int, ...] = (), **options: Any
) -> Driver:
    """A driver with one resumable request, A."""
    new = make_request("A", prompt, max_tokens, resumable=True, stop_token_ids=stop)
    return Driver(make_config(**options), new)


def test_a_turn_leaves_all_but_its_last_token() -> None:
    """A answers with 2 tokens; the first stays, and a chunk of 3 makes a prompt of 9."""
    driver = session()
    driver.step(A=7)
    driver.schedule()
    assert {"A": EngineCoreOutput("A", [8], "length")} == driver.update(A=8)
    assert (6, 7) == (driver["A"].num_computed_tokens, driver["A"].num_tokens)
    driver.do(StreamingChunk("A", chunk(1, 2, 3)))
    assert (1065,) * 5 + (7, 1, 2, 3) == driver["A"].token_ids
    assert (9, 0, 2) == (
        driver["A"].num_prompt_tokens,
        driver["A"].num_output_tokens,
        driver["A"].max_tokens,
    )


def test_a_turn_goes_on_where_the_last_one_ended() -> None:
    """The next step computes the chunk, and the worker is sent the whole prompt as new."""
    driver = session()
    driver.step(A=7)
    driver.step(A=8)
    driver.do(StreamingChunk("A", chunk(1, 2, 3)))
    output = driver.schedule()
    assert {"A": 3} == output.num_scheduled_tokens
    prompt = (1065,) * 5 + (7, 1, 2, 3)
    assert {"A": NewRequestData(prompt, 6, [1, 2, 3])} == output.scheduled_new_reqs
    assert {"A": EngineCoreOutput("A", [4])} == driver.update(A=4)


def test_chunks_wait_their_turn() -> None:
    """Two chunks and the end arrive early: each is answered, and then A is gone."""
    driver = session(max_tokens=1)
    driver.schedule()
    for update in (chunk(1, max_tokens=1), chunk(2, max_tokens=1), None):
        driver.do(StreamingChunk("A", update))
    assert driver.update(A=6)["A"].finish_reason == "length"
    assert (1065,) * 5 + (1,) == driver["A"].token_ids
    assert {"A": 1} == driver.step(A=7).num_scheduled_tokens
    assert (1065,) * 5 + (1, 2) == driver["A"].token_ids
    driver.step(A=8)
    assert (16, {}) == (driver.num_free_blocks, driver.live)


def test_an_end_between_turns_is_told_to_the_worker_only() -> None:
    """A is closed while it waits: nobody is sent anything, and its blocks are free."""
    driver = session(max_tokens=1)
    driver.step()
    assert driver.do(StreamingChunk("A", None)).results is None
    assert (16, ["A"]) == (driver.num_free_blocks, driver.scheduler.finished_req_ids)
    assert 0 == driver.scheduler.num_waiting_for_streaming_input


def test_chunks_of_the_dead_are_ignored() -> None:
    """A chunk that crosses the end of its request changes nothing."""
    driver = session()
    before = driver.scheduler.observe()
    driver.scheduler.streaming_update("B", chunk(1))
    driver.scheduler.streaming_update("B", None)
    assert before == driver.scheduler.observe()


def test_who_waits_for_input_keeps_its_seat() -> None:
    """In one seat B waits for A, though nobody runs, until A is gone."""
    driver = session(max_tokens=1, max_num_seqs=1)
    driver.step()
    driver.add(make_request("B", 3))
    assert {} == driver.step().num_scheduled_tokens
    driver.abort("A")
    assert {"B": 3} == driver.step().num_scheduled_tokens


def test_who_holds_kv_is_served_first() -> None:
    """A's chunk arrives after B, and is served before it."""
    driver = session(max_tokens=1, max_num_batched_tokens=4, prompt=4)
    driver.step()
    driver.add(make_request("B", 4))
    driver.do(StreamingChunk("A", chunk(1, 2)))
    assert {"A": 2, "B": 2} == driver.schedule().num_scheduled_tokens


def test_a_pause_of_admission_lets_turns_go_on() -> None:
    """Paused for new requests, A goes on with its chunk: it is none (vLLM: PAUSED_NEW)."""
    driver = session(max_tokens=1)
    driver.step()
    driver.add(make_request("B", 4))
    driver.scheduler.set_pause_state("paused_new")
    driver.do(StreamingChunk("A", chunk(1)))
    assert {"A": 1} == driver.schedule().num_scheduled_tokens


def test_what_follows_on_the_discarded_token_is_dropped() -> None:
    """A's next step is in flight when it stops; its token is for nobody, and A goes on at once."""
    driver = session(max_tokens=5, stop=(9,), async_scheduling=True)
    driver.schedule()
    driver.schedule()
    driver.update(A=9)
    assert (5, 0, 1) == (
        driver["A"].num_computed_tokens,
        driver["A"].num_output_placeholders,
        driver["A"].num_stale_output_tokens,
    )
    driver.do(StreamingChunk("A", chunk(1, 2)))
    assert {"A": 2} == driver.schedule().num_scheduled_tokens
    assert {} == driver.update(A=3)
    assert {"A": EngineCoreOutput("A", [4])} == driver.update(A=4)


def test_accepted_drafts_beyond_the_stop_are_not_kept() -> None:
    """A stops with the first of two accepted drafts, so only that far anything is computed."""
    driver = session(max_tokens=5, stop=(9,), num_speculative_tokens=2)
    driver.schedule()
    driver.update(A=1)
    driver.scheduler.update_draft_token_ids({"A": [9, 3]})
    assert {"A": [9, 3]} == driver.schedule().scheduled_spec_decode_tokens
    driver.do(UpdateFromOutput({"A": [9, 3, 4]}))
    assert (7, 6) == (driver["A"].num_tokens, driver["A"].num_computed_tokens)


def test_a_turn_may_end_without_kv() -> None:
    """B takes A's blocks, and A's step in flight ends its turn: it waits among those without KV."""
    config = make_config(async_scheduling=True, num_blocks=4)
    new = make_request("A", 5, 5, resumable=True, stop_token_ids=(9,))
    driver = Driver(config, make_request("B", 8), new)
    driver.schedule()
    driver.schedule()
    driver.update(A=9)
    assert ([], ["A"]) == (
        [r.request_id for r in driver.scheduler.kv_holding_waiting.items],
        driver.waiting,
    )
    assert RequestStatus.WAITING_FOR_STREAMING_REQ == driver["A"].status


def test_a_chunk_changes_the_rank() -> None:
    """With priorities a request stands by the time of its last chunk; first come, where it was."""
    orders = {}
    for policy in ("priority", "fcfs"):
        driver = Driver(
            make_config(policy=policy),
            make_request("A", 4, 1, resumable=True, arrival_time=1.0),
            make_request("B", 4, 1, resumable=True, arrival_time=2.0),
        )
        driver.step()
        driver.do(StreamingChunk("A", chunk(1, arrival_time=3.0)))
        orders[policy] = [r.request_id for r in driver.scheduler.kv_holding_waiting.items]
    assert {"priority": ["B", "A"], "fcfs": ["A", "B"]} == orders


def test_a_reset_leaves_the_kv_of_who_waits_for_input() -> None:
    """Nobody who waits is preempted, so the reset fails (vLLM 0.33.0 raises RuntimeError then)."""
    driver = session(max_tokens=1, enable_prefix_caching=True)
    driver.step()
    assert driver.do(ResetPrefixCache(reset_running_requests=True)).is_reset is False
    assert 5 == driver["A"].num_computed_tokens


# ---- the environment -----------------------------------------------------------------------------

MENU = Environment(
    shapes=(make_request("A", 3, 2, resumable=True),),
    max_live_requests=2,
    chunks=(chunk(1), chunk(1, 2, 3)),
    max_session_tokens=6,
)


def test_chunks_stay_below_the_bound() -> None:
    """A may come to 3 + 1 tokens of prompt, so a chunk of 1 may follow, and one of 3 not yet."""
    driver = Driver(make_config())
    driver.environment = MENU
    driver.do(driver.arrival(0))
    offered = [action.update for action in driver.chunks()]
    assert [evolve(chunk(1), arrival_time=1.0), None] == offered
    driver.step()
    driver.do(StreamingChunk("r0", None))
    assert [] == driver.chunks()


def test_a_waiting_chunk_counts_with_all_that_may_be_kept_of_its_answer() -> None:
    """After 3 + 1 tokens and a chunk of 1 with 2 - 1 more, one of 1 makes 7, beyond the bound."""
    driver = Driver(make_config())
    driver.environment = evolve(MENU, max_queued_chunks=2)
    driver.do(driver.arrival(0))
    driver.do(driver.chunks()[0])
    assert [None] == [action.update for action in driver.chunks()]
    driver.environment = evolve(MENU, max_queued_chunks=2, max_session_tokens=7)
    assert 2 == len(driver.chunks())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_model_len": 6}, "max_session_tokens=6 leaves no room for an output token below"),
        ({"wait_for_stale_output": False}, "resumable, which needs wait_for_stale_output=True"),
    ],
)
def test_what_sessions_need(config: dict[str, Any], message: str) -> None:
    """A bound that leaves no room, and a dialect that has no chunks, are refused."""
    with pytest.raises(ConfigError, match=message):
        MENU.check_fits(make_config(**config))
    MENU.check_fits(make_config())


def test_an_empty_chunk_is_refused() -> None:
    """A chunk without tokens would leave nothing to compute, so vLLM would fail an assertion."""
    with pytest.raises(ConfigError, match="a chunk has 0 tokens and max_tokens=2; give it at"):
        evolve(MENU, chunks=(chunk(),))
