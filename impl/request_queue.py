"""The waiting queues. Removing a request costs little wherever it stands."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from operator import attrgetter

from impl.request import Rank, Request
from spec.interface import Policy


class FCFSRequestQueue:
    """First come, first served: arrivals join the tail, what comes back is put to the front."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add_request(self, request: Request) -> None:
        """Lets a request join the tail."""
        self._requests[request.request_id] = request

    def prepend_request(self, request: Request) -> None:
        """Puts a preempted or skipped request to the front."""
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def peek_request(self) -> Request:
        """Returns the head."""
        return next(iter(self))

    def pop_request(self) -> Request:
        """Removes the head and returns it."""
        return self._requests.popitem(last=False)[1]

    def remove_request(self, request: Request) -> None:
        """Removes a request wherever it stands."""
        del self._requests[request.request_id]

    def update_rank(self, request: Request, rank: Rank) -> None:
        """Gives a request another rank; it stays where it is."""
        request.rank = rank


_get_rank = attrgetter("rank")


class PriorityRequestQueue:
    """Smallest rank first, kept sorted; there is no front to put a request back to.

    A heap would pop faster, but shows no order, and lets no request go from its middle.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add_request(self, request: Request) -> None:
        """Lets a request join at its rank."""
        insort(self._requests, request, key=_get_rank)

    def prepend_request(self, request: Request) -> None:
        """Puts a preempted or skipped request back to its rank."""
        self.add_request(request)

    def peek_request(self) -> Request:
        """Returns the head."""
        return self._requests[0]

    def pop_request(self) -> Request:
        """Removes the head and returns it."""
        return self._requests.pop(0)

    def remove_request(self, request: Request) -> None:
        """Removes a request wherever it stands."""
        del self._requests[bisect_left(self._requests, request.rank, key=_get_rank)]

    def update_rank(self, request: Request, rank: Rank) -> None:
        """Moves a request to another rank."""
        self.remove_request(request)
        request.rank = rank
        self.add_request(request)


RequestQueue = FCFSRequestQueue | PriorityRequestQueue


def make_request_queue(policy: Policy) -> RequestQueue:
    """Builds the queue of a policy."""
    return PriorityRequestQueue() if policy == "priority" else FCFSRequestQueue()
