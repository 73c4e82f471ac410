"""The waiting queue (vllm/v1/core/sched/request_queue.py)."""

from __future__ import annotations

from spec.request import Request, is_served_after


class RequestQueue:
    """First come, first served: arrivals join the tail, and what comes back is put to the front."""

    def __init__(self) -> None:
        self.items: list[Request] = []

    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return len(self.items) == 0

    def add_request(self, request: Request) -> None:
        """Lets a request join."""
        self.items.append(request)

    def prepend_request(self, request: Request) -> None:
        """Puts a preempted or skipped request to the front."""
        self.items.insert(0, request)

    def peek_request(self) -> Request:
        """Returns the head."""
        return self.items[0]

    def pop_request(self) -> Request:
        """Removes the head and returns it."""
        return self.items.pop(0)

    def remove_request(self, request: Request) -> None:
        """Removes a request wherever it stands."""
        self.items.remove(request)

    def update_rank(self, request: Request) -> None:
        """Leaves a request where it stands, whenever the chunk arrived that it goes on with."""


class PriorityRequestQueue(RequestQueue):
    """Smallest (priority, arrival_time, request_id) first; there is no front to come back to."""

    def add_request(self, request: Request) -> None:
        """Lets a request join at its rank."""
        self.rank = 0
        while self._pass_next(request):
            pass
        self.items.insert(self.rank, request)

    def prepend_request(self, request: Request) -> None:
        """Puts a request back to its rank."""
        self.add_request(request)

    def update_rank(self, request: Request) -> None:
        """Moves a request to the rank that it has now.

        vLLM 0.33.0 changes the arrival time inside its heap, which then is none: whoever was first
        stays first (vllm/v1/core/sched/scheduler.py: _update_request_as_session).
        """
        self.remove_request(request)
        self.add_request(request)

    def _pass_next(self, request: Request) -> bool:
        """Ranks a request behind the next one, unless that one stands behind it."""
        if self.rank >= len(self.items) or _stands_behind(self.items[self.rank], request):
            return False
        self.rank += 1
        return True


def _stands_behind(a: Request, b: Request) -> bool:
    if a.priority == b.priority and a.arrival_time == b.arrival_time:
        return a.request_id > b.request_id
    return is_served_after(a, b)


def make_request_queue(policy: str) -> RequestQueue:
    """Builds the queue of a policy."""
    return PriorityRequestQueue() if policy == "priority" else RequestQueue()
