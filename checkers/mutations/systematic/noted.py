"""Mutants that nobody notices, each with the reason why nobody could.

Entry points: `NOTED` and `NOT_RUN`. A mutant that stands here and is killed, or is not there any
more, is an error: what is noted must be true.
"""

from __future__ import annotations

_COUNTED = "proofs run it, on a pool that counts; the pool of identities has its own"
_TIES = (
    "no two requests of an environment arrive at the same time; tests/spec/test_request_queue.py "
    "has such queues"
)
_STANDS_BEHIND = "spec/request_queue.py _stands_behind: "

NOT_RUN: dict[str, str] = {
    "spec/block_pool.py CountedBlockPool.allocate": _COUNTED,
    "spec/block_pool.py CountedBlockPool.free": _COUNTED,
    "spec/block_pool.py CountedBlockPool.reset_prefix_cache": _COUNTED,
}
"""Functions that no scheduler calls, by file and qualified name: who calls them instead."""

NOTED: dict[str, str] = {
    _STANDS_BEHIND + "a.request_id > b.request_id -> a.request_id >= b.request_id": _TIES,
    _STANDS_BEHIND + "return a.request_id > b.request_id -> pass": _TIES,
    _STANDS_BEHIND
    + "return a.request_id > b.request_id -> return not a.request_id > b.request_id": (_TIES),
}
"""By the name of the mutant: why it changes nothing that can be seen."""


def find_reason(function: str, name: str) -> str:
    """Why a mutant of a function need not be noticed; "" if it must be."""
    return NOT_RUN.get(function, "") or NOTED.get(name, "")
