"""The waiting queues are plain lists, only faster."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from impl.request import Request
from impl.request_queue import FCFSRequestQueue, PriorityRequestQueue, make_request_queue
from spec.interface import Policy
from tests.impl.support import build


class Machine(RuleBasedStateMachine):
    """A queue beside a list; the subclasses say where a request joins."""

    policy: Policy

    def __init__(self) -> None:
        super().__init__()
        self.queue = make_request_queue(self.policy)
        self.model: list[Request] = []
        self.num_requests = 0

    def join(self, request: Request, is_new: bool) -> None:
        """Lets a request join the list."""
        raise NotImplementedError

    @rule(is_new=st.booleans(), priority=st.integers(0, 1), arrival_time=st.integers(0, 1))
    def add(self, is_new: bool, priority: int, arrival_time: int) -> None:
        """A request joins, or is put back."""
        self.num_requests += 1
        # Later names are smaller.
        name = f"r{100 - self.num_requests}"
        request = build(name, priority=priority, arrival_time=float(arrival_time))
        self.join(request, is_new)
        if is_new:
            self.queue.add_request(request)
        else:
            self.queue.prepend_request(request)

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        """The head leaves."""
        assert self.model[0] is self.queue.peek_request()
        assert self.model.pop(0) is self.queue.pop_request()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Any request may leave."""
        request = data.draw(st.sampled_from(self.model))
        self.model.remove(request)
        self.queue.remove_request(request)

    @invariant()
    def agrees_with_the_list(self) -> None:
        """Order and length are those of the list."""
        assert self.model == list(self.queue)
        assert len(self.model) == len(self.queue)


class FCFSMachine(Machine):
    """Arrivals join the tail; what comes back is put to the front."""

    policy: Policy = "fcfs"

    def join(self, request: Request, is_new: bool) -> None:
        """Lets a request join the list."""
        self.model.insert(len(self.model) if is_new else 0, request)


class PriorityMachine(Machine):
    """Everybody stands at the rank of (priority, arrival_time, request_id)."""

    policy: Policy = "priority"

    def join(self, request: Request, is_new: bool) -> None:
        """Lets a request join the list."""
        self.model = sorted([*self.model, request], key=lambda other: other.rank)


TestFCFSRequestQueue = FCFSMachine.TestCase
TestPriorityRequestQueue = PriorityMachine.TestCase


@pytest.mark.parametrize(
    ("policy", "expected"), [("fcfs", FCFSRequestQueue), ("priority", PriorityRequestQueue)]
)
def test_policy_chooses_the_queue(policy: Policy, expected: type) -> None:
    """Each policy has its queue."""
    assert expected is type(make_request_queue(policy))
