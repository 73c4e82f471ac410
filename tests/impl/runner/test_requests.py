"""What the runner makes of the new/cached diff, and which steps it refuses."""

from __future__ import annotations

import pytest
from attrs import evolve

from impl.runner.errors import RunnerError
from impl.runner.requests import RequestStates
from spec.interface import SchedulerOutput
from tests.impl.runner.support import go_on, join, start

PROMPT = tuple(range(10))


def make_states(*steps):
    """Follows steps as if each were run, and token 7 sampled at the end."""
    states = RequestStates(block_size=4, num_blocks=20)
    for step in steps:
        states.follow(step)
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            request = states[request_id]
            request.num_computed_tokens += num_tokens
            if request.num_computed_tokens == len(request.token_ids):
                request.token_ids.append(7)
    return states


def test_a_table_grows_by_new_blocks():
    """A request that goes on is told its new blocks only."""
    states = make_states(start("A", PROMPT, 4, [3]), go_on("A", 6, 4, [5, 9]))
    assert ([3, 5, 9], [*PROMPT, 7], 10) == (
        states["A"].block_ids,
        states["A"].token_ids,
        states["A"].num_computed_tokens,
    )


def test_a_resumed_request_has_a_new_table_and_its_old_output():
    """What a resumed request is told replaces its table; its tokens are those that it had."""
    states = make_states(
        start("A", PROMPT, 10, [1, 2, 3]), SchedulerOutput(preempted_req_ids=["A"])
    )
    states.follow(go_on("A", 7, 4, [2, 8, 9], resumed=True))
    assert ([2, 8, 9], [*PROMPT, 7], 4) == (
        states["A"].block_ids,
        states["A"].token_ids,
        states["A"].num_computed_tokens,
    )


def test_the_next_turn_of_a_session_is_new_again():
    """A request whose prompt arrives in chunks comes as new with what it has computed."""
    states = make_states(start("A", PROMPT, 10, [1, 2, 3]))
    states.follow(start("A", (*PROMPT, 40, 41), 2, [1, 2, 3], num_computed_tokens=10))
    assert [*PROMPT, 40, 41] == states["A"].token_ids


def test_finished_requests_are_forgotten():
    """A request that has ended is unknown; one that never ran may be named, too."""
    states = make_states(start("A", PROMPT, 10, [1, 2, 3]))
    states.follow(SchedulerOutput(finished_req_ids=["A", "never ran"]))
    assert {} == states.requests


def test_a_step_may_not_know_of_rejected_drafts():
    """With steps in flight, where to go on is told as if the drafts in them were all accepted."""
    states = make_states(start("A", PROMPT, 10, [1, 2, 3, 4]))
    states["A"].num_rejected = [1, 2]
    for told in (10, 12, 13):
        states.follow(go_on("A", 1, told))
    with pytest.raises(RunnerError, match="is told to go on at token 11"):
        states.follow(go_on("A", 1, 11))


KNOWN = start("A", PROMPT, 4, [1])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            start("A", (9,) * 10, 6, [1, 2, 3], num_computed_tokens=4),
            "A is sent as new with 4 tokens computed, however the runner knows it with others",
        ),
        (go_on("B", 4, 0), "B is not sent as new, however the runner never saw it"),
        (
            SchedulerOutput(preempted_req_ids=["B"]),
            "B is not sent as new, however the runner never saw it",
        ),
        (
            go_on("A", 4, 4, [2], preempted_req_ids=["A"]),
            "A goes on after its preemption without being resumed",
        ),
        (
            go_on("A", 4, 3, [2]),
            "A is told to go on at token 3, however the runner has computed 4",
        ),
        (
            go_on("A", 7, 4, [2, 3]),
            "A is to compute 7 tokens from 4 on, however 6 are known and drafted",
        ),
        (go_on("A", 0, 4), "A is to compute 0 tokens from 4 on, however 6 are known and drafted"),
        (
            go_on("A", 4, 4, [2], scheduled_spec_decode_tokens={"A": [1, 2]}),
            "A is to verify 2 drafts, however the step ends 4 tokens before the last of them",
        ),
        (go_on("A", 4, 4), "A runs up to token 8, however its block table has 4 slots"),
        (go_on("A", 4, 4, [21]), "A holds block 21, however there are the blocks 1 to 20"),
        (go_on("A", 4, 4, [0]), "A holds block 0, however there are the blocks 1 to 20"),
        (
            SchedulerOutput({"A": 4}, {}, {}),
            r"the diff names \[\], however scheduled are \['A'\]",
        ),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(step, message):
    """A diff that cannot be right raises, in words that name the request and the numbers."""
    with pytest.raises(RunnerError, match=message):
        make_states(KNOWN).follow(step)


def test_the_known_request_goes_on():
    """The refusals above are of the steps: the right one is followed."""
    states = make_states(KNOWN)
    states.follow(join(go_on("A", 4, 4, [2]), evolve(start("B", PROMPT, 4, [3]))))
    assert ["A", "B"] == list(states.requests)
