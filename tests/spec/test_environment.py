"""What an environment must not ask of a scheduler, and why."""

from __future__ import annotations

import pytest
from attrs import evolve

from spec.dialects import DIALECTS
from spec.environment import Environment
from spec.interface import (
    ConfigError,
    ModelRunnerOutput,
    NewRequest,
    SchedulerConfig,
    StreamingUpdate,
)
from spec.scheduler import ReferenceScheduler

OLD = SchedulerConfig(
    max_num_batched_tokens=8,
    max_num_seqs=2,
    max_model_len=6,
    block_size=2,
    num_blocks=8,
    **DIALECTS["vllm-0.16.0"],
)
"""vLLM 0.16.0 tests min_tokens before the length."""


def asks(max_tokens, min_tokens, num_prompt_tokens=2):
    """An environment of one shape."""
    shape = NewRequest(
        request_id="",
        prompt_token_ids=(0,) * num_prompt_tokens,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
    )
    return Environment(shapes=(shape,), max_live_requests=1)


@pytest.mark.parametrize(("max_tokens", "min_tokens", "most"), [(9, 5, 4), (3, 4, 3)])
def test_min_tokens_must_be_reachable_where_they_come_first(max_tokens, min_tokens, most):
    """min_tokens that max_model_len or max_tokens do not allow are refused, one less is not."""
    with pytest.raises(ConfigError, match=f"min_tokens={min_tokens}, at most {most} output tokens"):
        asks(max_tokens, min_tokens).check_fits(OLD)
    asks(max_tokens, min_tokens - 1).check_fits(OLD)
    for stop_order in ("stop_length", "length_stop"):
        asks(max_tokens, min_tokens).check_fits(evolve(OLD, stop_order=stop_order))


def run_alone(config, new, num_steps, drafts):
    """Runs a request alone, all of its drafts accepted; returns its tokens after each step."""
    scheduler = ReferenceScheduler(config)
    scheduler.add_request(new)
    lengths = []
    for _ in range(num_steps):
        output = scheduler.schedule()
        verified = output.scheduled_spec_decode_tokens.get("a", [])
        sampled = {name: [*verified, 0] for name in output.num_scheduled_tokens}
        scheduler.update_from_output(output, ModelRunnerOutput(sampled))
        scheduler.update_draft_token_ids({"a": drafts})
        lengths.append(scheduler.requests["a"].num_tokens)
    return lengths


def test_a_request_that_never_may_stop_fills_its_context_and_stays():
    """In the dialect of 0.16.0 (vLLM #26317) a full context ends nobody, drafts or not.

    The precondition keeps it away, so the dialect shows it only when asked directly.
    """
    new = NewRequest(request_id="a", prompt_token_ids=(0, 0), max_tokens=9, min_tokens=9)
    assert [3, 4, 5, 6, 6, 6] == run_alone(OLD, new, 6, [])
    drafting = evolve(OLD, num_speculative_tokens=2)
    assert [3, 6, 6] == run_alone(drafting, new, 3, [0, 0])


@pytest.mark.parametrize(
    ("resumable", "most", "told"),
    [(False, 5, "no shape is resumable"), (True, 3, "max_session_tokens=3 lets no chunk follow")],
)
def test_chunks_that_never_follow_are_refused(resumable, most, told):
    """A menu of chunks is refused if nobody may take one, or if the shortest is too long."""
    shape = NewRequest(request_id="", prompt_token_ids=(0, 0), max_tokens=1, resumable=resumable)
    chunk = StreamingUpdate(prompt_token_ids=(1, 1), max_tokens=1)
    config = evolve(OLD, wait_for_stale_output=True)
    asked = Environment(
        shapes=(shape,), max_live_requests=1, chunks=(chunk,), max_session_tokens=most
    )
    with pytest.raises(ConfigError, match=told):
        asked.check_fits(config)
    evolve(asked, shapes=(evolve(shape, resumable=True),), max_session_tokens=4).check_fits(config)
