"""What CrossHair is asked of the spec: one step, from states with any numbers in them.

The leading asserts of a function say where it applies, the others what it promises. CrossHair runs
it on symbols of its own, and shares no code with `proofs/symbolic`.
"""

from __future__ import annotations

import attrs

from proofs.invariant import instances
from proofs.mutants import MUTANTS, planted
from spec.block_pool import CountedBlockPool, cdiv
from spec.interface import NewRequest, RequestStatus, SchedulerConfig
from spec.request import Request
from spec.scheduler import ReferenceScheduler

BLOCK_SIZE = 4


def one_runs_and_one_waits(  # noqa: PLR0917  (CrossHair chooses each number)
    budget: int,
    max_num_seqs: int,
    max_model_len: int,
    threshold: int,
    num_free_blocks: int,
    num_prompt_tokens: int,
    num_output_tokens: int,
    num_computed_tokens: int,
    num_waiting_tokens: int,
) -> None:
    """A step stays in its budget and keeps the invariant."""
    assert budget >= 1
    assert max_num_seqs >= 1
    assert threshold >= 0
    assert num_free_blocks >= 1
    assert num_prompt_tokens >= 1
    assert num_output_tokens >= 0
    assert 0 <= num_computed_tokens < num_prompt_tokens + num_output_tokens < max_model_len
    assert 1 <= num_waiting_tokens < max_model_len
    running = _make_running("r0", num_prompt_tokens, num_output_tokens, num_computed_tokens)
    waiting = _make_request("r1", num_waiting_tokens)
    config = _make_config(
        budget=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        threshold=threshold,
        num_blocks=num_free_blocks + running.num_blocks,
    )
    _check_step(config, num_free_blocks, [running], [waiting])


def two_run(  # noqa: PLR0917  (the same)
    budget: int,
    max_model_len: int,
    num_free_blocks: int,
    num_tokens: int,
    num_computed_tokens: int,
    num_other_tokens: int,
    num_other_computed_tokens: int,
) -> None:
    """A step stays in its budget and keeps the invariant, also if one preempts the other."""
    assert budget >= 1
    assert num_free_blocks >= 0
    assert 0 <= num_computed_tokens < num_tokens < max_model_len
    assert 0 <= num_other_computed_tokens < num_other_tokens < max_model_len
    assert num_free_blocks + num_computed_tokens + num_other_computed_tokens >= 1
    running = [
        _make_running("r0", num_tokens, 0, num_computed_tokens),
        _make_running("r1", num_other_tokens, 0, num_other_computed_tokens),
    ]
    config = _make_config(
        budget=budget,
        max_num_seqs=2,
        max_model_len=max_model_len,
        threshold=0,
        num_blocks=num_free_blocks + running[0].num_blocks + running[1].num_blocks,
    )
    _check_step(config, num_free_blocks, running, [])


def one_runs_and_takes_no_blocks(
    budget: int, num_free_blocks: int, num_tokens: int, num_computed_tokens: int
) -> None:
    """The same of a wrong spec, in which a grant takes no blocks; it does not hold."""
    assert budget >= 1
    assert num_free_blocks >= 1
    assert 0 <= num_computed_tokens < num_tokens < 64
    with planted(MUTANTS["a_grant_takes_no_blocks"]):
        one_runs_and_one_waits(
            budget, 2, 64, 0, num_free_blocks, num_tokens, 0, num_computed_tokens, 1
        )


def two_run_and_a_victim_keeps_its_tokens(
    budget: int, num_tokens: int, num_computed_tokens: int
) -> None:
    """The same of a wrong spec, in which a victim's tokens stay computed; it does not hold."""
    assert budget >= 1
    assert 1 <= num_computed_tokens < num_tokens < 64
    with planted(MUTANTS["a_victim_keeps_its_computed_tokens"]):
        two_run(budget, 64, 0, num_tokens, num_computed_tokens, num_tokens, num_computed_tokens)


def _check_step(
    config: SchedulerConfig, num_free_blocks: int, running: list[Request], waiting: list[Request]
) -> None:
    scheduler = ReferenceScheduler(config, CountedBlockPool(config.num_blocks))
    scheduler.block_pool.num_free_blocks = num_free_blocks
    scheduler.running = running
    scheduler.waiting.items = waiting
    scheduler.requests = {request.request_id: request for request in running + waiting}
    step = scheduler.schedule().num_scheduled_tokens
    assert sum(step.values()) <= config.max_num_scheduled_tokens
    assert all(fact for _, fact in instances(scheduler, [step]))


def _make_config(
    *, budget: int, max_num_seqs: int, max_model_len: int, threshold: int, num_blocks: int
) -> SchedulerConfig:
    # The contract asks for what the validators would, each of which would double the paths.
    with attrs.validators.disabled():
        return SchedulerConfig(
            max_num_batched_tokens=budget,
            max_num_scheduled_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            long_prefill_token_threshold=threshold,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
        )


def _make_running(
    request_id: str, num_prompt_tokens: int, num_output_tokens: int, num_computed_tokens: int
) -> Request:
    request = _make_request(request_id, num_prompt_tokens)
    request.status = RequestStatus.RUNNING
    request.num_output_tokens = num_output_tokens
    request.max_tokens = num_output_tokens + 1
    request.num_computed_tokens = num_computed_tokens
    request.num_blocks = cdiv(num_computed_tokens, BLOCK_SIZE)
    return request


def _make_request(request_id: str, num_prompt_tokens: int) -> Request:
    request = Request(NewRequest(request_id=request_id, prompt_token_ids=(), max_tokens=1))
    request.num_prompt_tokens = num_prompt_tokens
    return request
