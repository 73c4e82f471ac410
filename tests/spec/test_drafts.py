"""Speculative decoding: drafts are verified by one step, and rejected ones leave no trace."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.configs import load_settings
from checkers.run import Run
from spec.actions import Schedule, UpdateFromOutput
from spec.scheduler import ReferenceScheduler
from tests.spec.support import Driver, make_config, make_request

DRAFTS = {"num_speculative_tokens": 2}


def make_driver(num_prompt_tokens: int = 6, **changes: Any) -> Driver:
    """A has computed its prompt and sampled a token; drafts 8 and 9 may follow on that."""
    driver = Driver(make_config(**DRAFTS, **changes), make_request("A", num_prompt_tokens))
    driver.schedule()
    give(driver, [7], [8, 9])
    return driver


def give(driver: Driver, row: list[int], drafts: list[int] | None = None) -> None:
    """Lets a step return with a row for A, and new drafts for it."""
    driver.do(UpdateFromOutput({"A": row}, {"A": drafts} if drafts else {}))


def test_a_step_verifies_the_drafts_beside_the_last_token() -> None:
    """The last token and both drafts are computed at once, and the drafts are used up."""
    driver = make_driver()
    output = driver.schedule()
    assert ({"A": 3}, {"A": [8, 9]}) == (
        output.num_scheduled_tokens,
        output.scheduled_spec_decode_tokens,
    )
    assert (9, 0) == (driver["A"].num_computed_tokens, driver["A"].num_draft_tokens)


@pytest.mark.parametrize(
    ("changes", "num_drafts"),
    [
        ({"max_num_batched_tokens": 3, "max_model_len": 32}, 2),
        ({"max_num_batched_tokens": 2}, 1),
        ({"max_num_batched_tokens": 1}, 0),
        ({"max_num_batched_tokens": 4, "num_draft_slots": 2}, 1),
        ({"long_prefill_token_threshold": 2, "threshold_spares_lone_request": False}, 1),
        ({"max_model_len": 4}, 1),
        ({"max_model_len": 5}, 2),
    ],
)
def test_what_does_not_fit_is_cut_and_forgotten(changes: dict[str, Any], num_drafts: int) -> None:
    """Budgets, draft slots, the threshold and max_model_len cut drafts from the last one on."""
    driver = make_driver(1, pad_admitted_decodes=False, **changes)
    output = driver.schedule()
    assert [8, 9][:num_drafts] == output.scheduled_spec_decode_tokens.get("A", [])
    assert 1 + num_drafts == output.num_scheduled_tokens["A"]
    assert 0 == driver["A"].num_draft_tokens


@pytest.mark.parametrize(("row", "num_computed"), [([1], 7), ([8, 1], 8), ([8, 9, 1], 9)])
def test_rejected_drafts_are_rolled_back(row: list[int], num_computed: int) -> None:
    """What is computed ends after the last accepted draft, one token before what is known."""
    driver = make_driver()
    driver.schedule()
    give(driver, row)
    request = driver["A"]
    assert (num_computed, num_computed + 1) == (request.num_computed_tokens, request.num_tokens)


def test_a_row_ends_with_the_token_that_stops() -> None:
    """Of accepted drafts only those up to a stop token are delivered."""
    driver = Driver(make_config(**DRAFTS), make_request("A", 6, stop_token_ids=(8,)))
    driver.schedule()
    give(driver, [7], [8, 9])
    driver.schedule()
    results = driver.do(UpdateFromOutput({"A": [8, 9, 1]})).results
    assert results is not None
    assert ([8], "stop") == (results[0][0].new_token_ids, results[0][0].finish_reason)


def test_drafts_in_the_middle_of_a_prompt_are_ignored() -> None:
    """Drafts follow on a sampled token, also where one token of the prompt is left to compute."""
    driver = Driver(make_config(**DRAFTS, max_num_batched_tokens=5), make_request("A", 6))
    driver.schedule()
    driver.do(UpdateFromOutput({}, {"A": [8, 9], "Z": [8, 9]}))
    assert 0 == driver["A"].num_draft_tokens
    assert {} == driver.schedule().scheduled_spec_decode_tokens


def test_a_preemption_forgets_drafts() -> None:
    """A victim has no drafts, and none of its drafts are in the step."""
    config = make_config(**DRAFTS, num_blocks=3, policy="priority")
    driver = Driver(config, make_request("A", 4, priority=1))
    driver.step()
    driver.add(make_request("B", 4, priority=0))
    driver.schedule()
    driver.do(UpdateFromOutput({"A": [0], "B": [0]}, {"A": [1]}))
    output = driver.schedule()
    assert (["A"], {}) == (output.preempted_req_ids, output.scheduled_spec_decode_tokens)
    assert 0 == driver["A"].num_draft_tokens


def test_async_drafts_are_counted_only() -> None:
    """A step ahead verifies drafts that only the worker knows, with a placeholder for each."""
    driver = Driver(make_config(**DRAFTS, async_scheduling=True), make_request("A", 3))
    driver.schedule()
    assert {"A": [-1, -1]} == driver.schedule().scheduled_spec_decode_tokens
    assert 4 == driver["A"].num_output_placeholders
    driver.update()
    assert 3 == driver["A"].num_output_placeholders
    give(driver, [5, 6])
    assert (0, 5) == (driver["A"].num_output_placeholders, driver["A"].num_computed_tokens)


def test_a_voided_step_may_be_thrown_away() -> None:
    """A step of drafts that a preemption has voided changes no counter, whatever it brings."""
    config = make_config(num_speculative_tokens=1, num_blocks=4, async_scheduling=True)
    driver = Driver(config, make_request("A", 6), make_request("B", 6))
    driver.schedule()
    driver.schedule()
    driver.schedule()
    driver.update()
    assert ("B",) == driver.in_flight[0].voided
    driver.do(UpdateFromOutput({"A": [0], "B": []}))
    request = driver["B"]
    assert (0, 0, 0) == (
        request.num_computed_tokens,
        request.num_output_placeholders,
        request.num_draft_tokens,
    )


def test_the_ghost_worker_forgets_rejected_drafts() -> None:
    """A slot that holds a rejected draft holds nothing that may be read, or found."""
    setting = load_settings()["speculative"]
    run = Run(setting.scheduler, ReferenceScheduler(setting.scheduler), setting.environment)
    worker = run.worker
    assert worker is not None
    run.step(run.model.arrival(0))
    for row, drafts in ([7], [0, 1]), ([7], []):
        run.step(Schedule())
        run.step(UpdateFromOutput({"r0": row}, {"r0": drafts} if drafts else {}))
    ends = [worker.blocks[block_id].end for block_id in worker.block_tables["r0"][:2]]
    assert (3, [2, 1]) == (worker.num_computed_tokens["r0"], ends)
