"""When a request stops."""

from __future__ import annotations

from itertools import product

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from spec.interface import FINISH_REASON, RepetitionDetection, RequestStatus
from spec.request import Request
from spec.stop import check_stop, ends_in_repetition
from tests.spec.support import Driver, make_config, make_request

EOS, STOP, OTHER = 1, 2, 3

BY_RULE = {
    "eos": RequestStatus.FINISHED_STOPPED,
    "stop": RequestStatus.FINISHED_STOPPED,
    "length": RequestStatus.FINISHED_LENGTH_CAPPED,
    "repetition": RequestStatus.FINISHED_REPETITION,
}

RULES = {
    "stop_length": ("eos", "stop", "length", "min_tokens", "repetition"),
    "min_stop_length": ("min_tokens", "eos", "stop", "length", "repetition"),
    "length_stop": ("length", "min_tokens", "eos", "stop", "repetition"),
}
"""The order in which each dialect tests; "min_tokens" ends it while too few tokens are out."""


@frozen
class Case:
    """Which rules apply to the last token of a request."""

    token_id: int
    is_length: bool
    is_below_min_tokens: bool
    is_repetition: bool

    def applies(self, rule: str) -> bool:
        """Whether a rule has something to say."""
        return {
            "eos": self.token_id == EOS,
            "stop": self.token_id == STOP,
            "length": self.is_length,
            "min_tokens": self.is_below_min_tokens,
            "repetition": self.is_repetition,
        }[rule]

    def expected_status(self, stop_order: str) -> int:
        """The status that the first rule that applies brings."""
        first = next((rule for rule in RULES[stop_order] if self.applies(rule)), "min_tokens")
        return BY_RULE.get(first, RequestStatus.RUNNING)

    def make_request(self) -> Request:
        """A running request with four output tokens to which just these rules apply."""
        new = make_request(
            "A",
            1,
            max_tokens=4 if self.is_length else 9,
            min_tokens=5 if self.is_below_min_tokens else 4,
            eos_token_id=EOS,
            stop_token_ids=(STOP,),
            repetition_detection=RepetitionDetection(1, min_count=3 if self.is_repetition else 4),
        )
        request = Request(new)
        request.status = RequestStatus.RUNNING
        for token_id in (OTHER + 1, self.token_id, self.token_id, self.token_id):
            request.append_output_token(token_id)
        return request


CASES = [
    Case(*values)
    for values in product((EOS, STOP, OTHER), (False, True), (False, True), (False, True))
]


@pytest.mark.parametrize("stop_order", RULES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_stop_order(case: Case, stop_order: str) -> None:
    """Fact 30: EOS, stop ids, length, repetition; 0.16 min_tokens first; 0.11 length first."""
    config = make_config(stop_order=stop_order)
    assert case.expected_status(stop_order) == check_stop(
        case.make_request(), case.token_id, config
    )


def test_stop_orders_differ() -> None:
    """Fact 30: each pair of dialects disagrees on some case, so that the order is a choice."""
    statuses = {
        stop_order: tuple(case.expected_status(stop_order) for case in CASES)
        for stop_order in RULES
    }
    assert 3 == len(set(statuses.values()))


@given(num_prompt_tokens=st.integers(1, 7), max_tokens=st.integers(1, 9))
def test_length(num_prompt_tokens: int, max_tokens: int) -> None:
    """A request ends with its `max_tokens`-th token, or with the one that fills `max_model_len`."""
    driver = Driver(make_config(max_model_len=8), make_request("A", num_prompt_tokens, max_tokens))
    num_steps = 0
    while driver.live:
        driver.step()
        num_steps += 1
    assert min(max_tokens, 8 - num_prompt_tokens) == num_steps


def test_no_eos_is_ignored_eos() -> None:
    """A request without an EOS token stops at none."""
    request = Request(make_request("A", 1))
    request.append_output_token(0)
    assert RequestStatus.WAITING == check_stop(request, 0, make_config())


def test_status_is_unchanged_where_nothing_stops() -> None:
    """Without a reason to stop the status stays, also if it is PREEMPTED."""
    request = Request(make_request("A", 1))
    request.status = RequestStatus.PREEMPTED
    request.append_output_token(OTHER)
    assert RequestStatus.PREEMPTED == check_stop(request, OTHER, make_config())


def test_final_statuses_are_above_preempted() -> None:
    """A status is final if, and only if, it is above PREEMPTED; each final one has its reason."""
    final = {status for status in RequestStatus if status > RequestStatus.PREEMPTED}
    assert final == set(FINISH_REASON)


@given(
    token_ids=st.lists(st.integers(0, 1), max_size=12).map(tuple),
    min_pattern_size=st.integers(0, 4),
    max_pattern_size=st.integers(0, 5),
    min_count=st.integers(0, 4),
)
def test_repetition(
    token_ids: tuple[int, ...], min_pattern_size: int, max_pattern_size: int, min_count: int
) -> None:
    """An output repeats itself if it ends in `min_count` >= 2 copies of an allowed pattern."""
    detection = RepetitionDetection(max_pattern_size, min_pattern_size, min_count)
    sizes = range(max(min_pattern_size, 1), max_pattern_size + 1)
    tails = {token_ids[-size:] * min_count for size in sizes if size <= len(token_ids)}
    expected = min_count >= 2 and any(
        len(tail) <= len(token_ids) and token_ids[len(token_ids) - len(tail) :] == tail
        for tail in tails
    )
    assert expected == ends_in_repetition(token_ids, detection)


def test_repetition_looks_at_the_output_only() -> None:
    """A prompt that repeats itself does not stop a request."""
    detection = RepetitionDetection(1, min_count=2)
    driver = Driver(make_config(), make_request("A", (7, 7, 7), repetition_detection=detection))
    driver.schedule()
    assert None is driver.update(A=7)["A"].finish_reason
    driver.schedule()
    assert "repetition" == driver.update(A=7)["A"].finish_reason
