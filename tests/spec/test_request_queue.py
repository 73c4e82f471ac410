"""The two waiting queues."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.request import Request
from spec.request_queue import PriorityRequestQueue, RequestQueue, make_request_queue
from tests.spec.support import make_request

ranks = st.tuples(st.integers(-2, 2), st.integers(0, 2), st.integers(0, 99))
"""(priority, arrival_time, a number for the id); few values, so that ties happen."""

operations = st.lists(st.tuples(st.sampled_from(("add", "prepend", "pop", "remove")), ranks))


def make_ranked(rank: tuple[int, int, int]) -> Request:
    """Builds a request of a given rank."""
    priority, arrival_time, number = rank
    new = make_request(f"r{number}", 1, priority=priority, arrival_time=float(arrival_time))
    return Request(new)


def rank_of(request: Request) -> tuple[int, float, str]:
    """What the priority queue is ordered by."""
    return request.priority, request.arrival_time, request.request_id


@given(operations)
def test_fcfs_queue_is_a_deque(steps: list[tuple[str, tuple[int, int, int]]]) -> None:
    """Arrivals join the tail, what comes back is put to the front, whatever the priorities say."""
    queue, expected = RequestQueue(), deque[Request]()
    for name, rank in steps:
        if name == "add":
            expected.append(make_ranked(rank))
            queue.add_request(expected[-1])
        elif name == "prepend":
            expected.appendleft(make_ranked(rank))
            queue.prepend_request(expected[0])
        elif expected and name == "pop":
            assert expected[0] is queue.peek_request()
            assert expected.popleft() is queue.pop_request()
        elif expected:
            request = expected[rank[2] % len(expected)]
            expected.remove(request)
            queue.remove_request(request)
        assert list(expected) == queue.items
        assert (not expected) == queue.is_empty()


@given(operations)
def test_priority_queue_is_sorted(steps: list[tuple[str, tuple[int, int, int]]]) -> None:
    """Fact 5: the queue stands by (priority, arrival_time, request_id), whatever was put back."""
    queue, expected = PriorityRequestQueue(), list[Request]()
    for name, rank in steps:
        if name in ("add", "prepend"):
            request = make_ranked(rank)
            expected.append(request)
            (queue.add_request if name == "add" else queue.prepend_request)(request)
        elif expected and name == "pop":
            expected.remove(queue.pop_request())
        elif expected:
            queue.remove_request(expected.pop(rank[2] % len(expected)))
        assert sorted(map(rank_of, expected)) == [rank_of(request) for request in queue.items]
        assert {id(request) for request in expected} == {id(request) for request in queue.items}


def test_priority_ties_are_broken_by_id() -> None:
    """Fact 5: equal (priority, arrival_time) are served by id, in whichever order they came."""
    for names in ("ab", "ba"):
        queue = make_request_queue("priority")
        for name in names:
            queue.add_request(Request(make_request(name, 1)))
        assert ["a", "b"] == [request.request_id for request in queue.items]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_remove_takes_that_very_request(policy: str) -> None:
    """A request is removed by identity, not because it looks the same."""
    queue = make_request_queue(policy)
    twins = [Request(make_request("A", 1)) for _ in range(2)]
    for request in twins:
        queue.add_request(request)
    queue.remove_request(twins[1])
    assert [id(twins[0])] == [id(request) for request in queue.items]


def test_each_policy_has_its_queue() -> None:
    """`make_request_queue` builds the sorted queue for the priority policy only."""
    assert PriorityRequestQueue is type(make_request_queue("priority"))
    assert RequestQueue is type(make_request_queue("fcfs"))
