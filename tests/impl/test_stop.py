"""When a request stops."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.stop import check_stop, ends_in_repetition
from spec.interface import RepetitionDetection, RequestStatus, StopOrder
from tests.impl.support import MAX_MODEL_LEN, append, build

PROMPT = (1, 1, 1, 1)
STOP, LENGTH, REPETITION = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)


@given(
    output=st.lists(st.integers(0, 1), max_size=12),
    detection=st.builds(
        RepetitionDetection, st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)
    ),
)
def test_repetition_is_copies_of_a_pattern(
    output: list[int], detection: RepetitionDetection
) -> None:
    """Output that ends in a pattern of an allowed size, written often enough, repeats itself."""
    patterns = [
        list(pattern)
        for size in range(max(1, detection.min_pattern_size), detection.max_pattern_size + 1)
        for pattern in product((0, 1), repeat=size)
    ]
    expected = detection.min_count >= 2 and any(
        output[-len(pattern) * detection.min_count :] == pattern * detection.min_count
        for pattern in patterns
    )
    actual = ends_in_repetition([*PROMPT, *output], len(output), detection)
    assert expected == actual


def test_prompt_is_no_part_of_a_repetition() -> None:
    """Only output counts: a prompt of ones and a one are no repetition."""
    assert not ends_in_repetition([1, 1, 1, 1], 1, RepetitionDetection(1))
    assert ends_in_repetition([1, 1, 1, 1], 2, RepetitionDetection(1))


@pytest.mark.parametrize(
    ("stop_order", "expected"),
    [("stop_length", STOP), ("min_stop_length", STOP), ("length_stop", LENGTH)],
)
def test_first_reason_wins(stop_order: StopOrder, expected: RequestStatus) -> None:
    """A stop token that is the last one allowed stops by token, or, in 0.11, by length."""
    request = build(prompt=PROMPT, max_tokens=1, eos_token_id=7)
    append(request, 7)
    assert expected == check_stop(request, stop_order)


@pytest.mark.parametrize(
    ("stop_order", "expected"),
    [("stop_length", STOP), ("min_stop_length", None), ("length_stop", None)],
)
def test_min_tokens_delays_stop_tokens_in_older_dialects(
    stop_order: StopOrder, expected: RequestStatus | None
) -> None:
    """Before `min_tokens`, a stop token stops a request in 0.33 only."""
    request = build(prompt=PROMPT, min_tokens=2, stop_token_ids=(7,))
    append(request, 7)
    assert expected == check_stop(request, stop_order)


@pytest.mark.parametrize(
    ("stop_order", "expected"),
    [("stop_length", LENGTH), ("min_stop_length", None), ("length_stop", LENGTH)],
)
def test_min_tokens_delays_length_in_one_dialect(
    stop_order: StopOrder, expected: RequestStatus | None
) -> None:
    """Before `min_tokens`, even the length of the model does not stop a request of 0.16."""
    request = build(prompt=(0,) * (MAX_MODEL_LEN - 1), min_tokens=2)
    append(request, 5)
    assert expected == check_stop(request, stop_order)


@pytest.mark.parametrize(("min_tokens", "expected"), [(3, REPETITION), (4, None)])
def test_repetition_waits_for_min_tokens(min_tokens: int, expected: RequestStatus | None) -> None:
    """A repetition stops a request once `min_tokens` tokens are out."""
    detection = RepetitionDetection(1, 1, 3)
    request = build(prompt=PROMPT, min_tokens=min_tokens, repetition_detection=detection)
    append(request, 5, 5, 5)
    assert expected == check_stop(request, "stop_length")
