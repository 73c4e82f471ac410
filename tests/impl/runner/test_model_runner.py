"""Steps of a scheduler, run on a tiny model: who samples what, and when."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from impl.runner.config import TINY_MODELS
from impl.runner.errors import RunnerError
from impl.runner.sampling import SamplingParams
from impl.scheduler import FastScheduler
from spec.interface import NewRequest, SchedulerConfig, SchedulerOutput
from tests.impl.runner.support import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    compute_logits,
    go_on,
    make_prompt,
    make_runner,
    run_alone,
    start,
)

PROMPT = make_prompt(10)
CONFIG = SchedulerConfig(
    max_num_batched_tokens=13,
    max_num_seqs=4,
    max_model_len=100,
    block_size=BLOCK_SIZE,
    num_blocks=NUM_BLOCKS,
)
NUM_SAMPLED = 6
SHARED = make_prompt(12, seed=99)
PROMPTS = {f"r{n}": SHARED[: 6 * (n % 3)] + make_prompt(5 + 6 * n, seed=n) for n in range(5)}


def test_a_chunk_that_is_not_the_last_samples_nothing():
    """Only the step that computes the last known token answers with one."""
    runner = make_runner()
    first = runner.execute(start("A", PROMPT, 9, [1, 2, 3]))
    second = runner.execute(go_on("A", 1, 9))
    expected = int(compute_logits(TINY_MODELS["tiny"], PROMPT)[-1].argmax())
    assert ({"A": []}, {"A": [expected]}) == (first.sampled_token_ids, second.sampled_token_ids)


def test_an_empty_step_is_run():
    """A step of nothing samples nothing, and forgets who has ended."""
    runner = make_runner()
    runner.execute(start("A", PROMPT, 9, [1, 2, 3]))
    assert {} == runner.execute(SchedulerOutput(finished_req_ids=["A"])).sampled_token_ids
    assert {} == runner.requests.requests


def test_a_hit_is_computed_by_whoever_came_first():
    """After a prefix hit only the rest is computed, and what is sampled is the same."""
    runner = make_runner()
    first = runner.execute(start("A", PROMPT, 10, [1, 2, 3]))
    second = runner.execute(start("B", PROMPT, 2, [1, 2, 4], num_computed_tokens=8))
    assert first.sampled_token_ids["A"] == second.sampled_token_ids["B"]


def test_a_hit_on_what_nobody_wrote_shows():
    """A prefix that is said to be computed, and is not, gives NaN in place of logits."""
    runner = make_runner()
    runner.execute(start("B", PROMPT, 2, [1, 2, 4], num_computed_tokens=8))
    assert bool(runner.tap.rows["B", 9].isnan().all())


def test_a_block_handed_out_anew_is_poisoned():
    """Whoever still reads a block that was given away reads NaN."""
    runner = make_runner()
    runner.execute(start("A", PROMPT, 10, [1, 2, 3]))
    runner.execute(SchedulerOutput(new_block_ids_to_zero=[2]))
    runner.execute(go_on("A", 1, 10))
    assert bool(runner.tap.rows["A", 10].isnan().all())


def test_a_wrong_block_changes_the_data():
    """A table with another request's block is followed, and other logits come of it."""
    right, wrong = make_runner(), make_runner()
    for runner in (right, wrong):
        runner.execute(start("A", PROMPT, 10, [1, 2, 3]))
        runner.execute(start("B", make_prompt(10, 1), 10, [4, 5, 6]))
    wrong.requests["A"].block_ids = [1, 5, 3]
    for runner in (right, wrong):
        runner.execute(go_on("A", 1, 10))
    assert not torch.equal(right.tap.rows["A", 10], wrong.tap.rows["A", 10])


def test_a_request_longer_than_the_model_is_refused():
    """A step beyond the last position of the model is refused, and says what to do."""
    runner = make_runner()
    runner.config = evolve(runner.config, max_position_embeddings=9)
    with pytest.raises(RunnerError, match="schedule with a max_model_len of at most that"):
        runner.execute(start("A", PROMPT, 10, [1, 2, 3]))


# ---- drafts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)])
@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_drafts_that_are_right_are_accepted(params, num_right):
    """Drafts are accepted up to the first that is not what would be sampled, and one token more."""
    expected = run_alone(make_runner(sampling_params={"A": params}), "A", PROMPT, 10, 5)
    runner = make_runner(sampling_params={"A": params})
    first = runner.execute(start("A", PROMPT, 10, [1, 2, 3, 4])).sampled_token_ids["A"]
    drafts = [
        token if n < num_right else (token + 1) % 128 for n, token in enumerate(expected[1:4])
    ]
    step = go_on("A", 4, 10, scheduled_spec_decode_tokens={"A": drafts})
    second = runner.execute(step).sampled_token_ids["A"]
    assert expected[: num_right + 2] == first + second
    # What was computed for the others is forgotten.
    third = runner.execute(go_on("A", 1, 11 + num_right)).sampled_token_ids["A"]
    if num_right < 3:
        assert expected[num_right + 2 : num_right + 3] == third


def test_drafts_that_nobody_guessed_are_rejected():
    """A draft of -1 is a slot only: with any number of them one token is sampled, the right one."""
    expected = run_alone(make_runner(), "A", PROMPT, 10, 3)
    runner = make_runner()
    drafts = {"A": [-1, -1]}
    first = evolve(start("A", PROMPT, 12, [1, 2, 3, 4]), scheduled_spec_decode_tokens=drafts)
    # Told as if all were accepted: nobody knew better when it was scheduled.
    second = go_on("A", 3, 12, scheduled_spec_decode_tokens=drafts)
    third = go_on("A", 1, 11)
    sampled = [runner.execute(step).sampled_token_ids["A"] for step in (first, second, third)]
    assert [[token] for token in expected] == sampled


# ---- driven by a scheduler -----------------------------------------------------------------------


def serve(runner, num_in_flight=1, **given):
    """Serves all prompts with our engine; returns what was sent, and who was preempted."""
    scheduler = FastScheduler(evolve(CONFIG, **given))
    for request_id, prompt in PROMPTS.items():
        scheduler.add_request(
            NewRequest(request_id=request_id, prompt_token_ids=prompt, max_tokens=NUM_SAMPLED)
        )
    sent, preempted, outputs = {}, [], []
    while scheduler.requests:
        outputs.append(scheduler.schedule())
        preempted += outputs[-1].preempted_req_ids
        if len(outputs) == num_in_flight:
            output = outputs.pop(0)
            for answers in scheduler.update_from_output(output, runner.execute(output)).values():
                for answer in answers:
                    sent.setdefault(answer.request_id, []).extend(answer.new_token_ids)
    return sent, preempted


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "seeded"])
def params(request):
    """How all requests sample."""
    return {name: SamplingParams(temperature=request.param, seed=5) for name in PROMPTS}


@pytest.fixture(scope="module")
def alone(params):
    """What each request samples when it is alone, and all of its prompt is computed in one step."""
    return {
        name: run_alone(make_runner(sampling_params=params), name, prompt, len(prompt), NUM_SAMPLED)
        for name, prompt in PROMPTS.items()
    }


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_num_batched_tokens": 100},
        {"enable_prefix_caching": True},
        {"num_blocks": 12, "scheduler_reserve_full_isl": False},
        {"num_blocks": 12, "scheduler_reserve_full_isl": False, "enable_prefix_caching": True},
        {"async_scheduling": True, "num_in_flight": 2},
        {"async_scheduling": True, "num_in_flight": 2, "num_blocks": 12, "max_num_seqs": 3},
        {"num_in_flight": 1, "num_speculative_tokens": 2},
        {"async_scheduling": True, "num_in_flight": 2, "num_speculative_tokens": 2},
    ],
    ids=str,
)
def test_every_schedule_samples_the_same(params, alone, given):
    """However our engine schedules them, requests are sent what each samples alone."""
    sent, _ = serve(make_runner(sampling_params=params), **given)
    assert alone == sent


def test_requests_are_preempted_and_resumed():
    """The test above covers what it is for: with few blocks somebody is preempted."""
    _, preempted = serve(
        make_runner(), num_blocks=12, scheduler_reserve_full_isl=False, enable_prefix_caching=True
    )
    assert preempted != []
