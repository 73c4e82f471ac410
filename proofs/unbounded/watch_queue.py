"""Our free-block queue beside a plain list: every operation on a few blocks.

Entry point: `find_queue_breach`, as `proofs.unbounded.watch.find_breach` for the queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from attrs import define

from impl.free_block_queue import FreeBlockQueue
from proofs.side_by_side import Comparison, Exploration, Operation, explore, failure_of
from proofs.theorem import Failure


class OpenQueue(FreeBlockQueue):
    """The real queue; its links can be looked at."""

    def links(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns which block comes after each one, and which before."""
        return tuple(self._next), tuple(self._prev)


@define
class QueuePair:
    """The queue, and the list that it should be."""

    queue: OpenQueue
    listed: list[int]


@define
class QueueWorld:
    """All queues of some blocks."""

    num_blocks: int

    @property
    def label(self) -> str:
        """What it is called in a report."""
        return f"a queue of {self.num_blocks} blocks"

    def start(self) -> QueuePair:
        """All blocks are free, in order."""
        return QueuePair(OpenQueue(self.num_blocks), list(range(1, self.num_blocks + 1)))

    def operations(self, pair: QueuePair) -> Iterator[Operation[QueuePair]]:
        """Yields every removal, and every way in which blocks may come back."""
        for num_blocks in range(len(pair.listed) + 1):
            yield Operation(f"popleft_n({num_blocks})", partial(_popleft_n, num_blocks))
        for block_id in pair.listed:
            yield Operation(f"remove({block_id})", partial(_remove, block_id))
        taken = [each for each in range(1, self.num_blocks + 1) if each not in pair.listed]
        for size in range(len(taken) + 1):
            for some in itertools.permutations(taken, size):
                yield Operation(f"prepend_n({list(some)})", partial(_prepend_n, list(some)))
                yield Operation(f"append_n({list(some)})", partial(_append_n, list(some)))

    def compare(self, pair: QueuePair) -> Iterator[Comparison]:
        """The ring is the list, both ways around, and its count is the length."""
        after, before = pair.queue.links()
        ring = [0, *pair.listed, 0]
        for left, right in itertools.pairwise(ring):
            yield f"the block after {left}", right, after[left]
            yield f"the block before {right}", left, before[right]
        yield "num_free_blocks", len(pair.listed), pair.queue.num_free_blocks

    def key(self, pair: QueuePair) -> tuple[object, ...]:
        """Both arrays, whatever they hold of blocks that are not free."""
        return pair.queue.links()


def _popleft_n(num_blocks: int, pair: QueuePair) -> Iterator[Comparison]:
    expected, pair.listed = pair.listed[:num_blocks], pair.listed[num_blocks:]
    yield "blocks", expected, pair.queue.popleft_n(num_blocks)


def _remove(block_id: int, pair: QueuePair) -> Iterator[Comparison]:
    pair.listed.remove(block_id)
    pair.queue.remove(block_id)
    yield from ()


def _prepend_n(block_ids: list[int], pair: QueuePair) -> Iterator[Comparison]:
    pair.listed = block_ids + pair.listed
    pair.queue.prepend_n(block_ids)
    yield from ()


def _append_n(block_ids: list[int], pair: QueuePair) -> Iterator[Comparison]:
    pair.listed = pair.listed + block_ids
    pair.queue.append_n(block_ids)
    yield from ()


def explore_queues(most: int = 3) -> Iterator[Exploration[QueuePair]]:
    """Looks at all queues of up to so many blocks."""
    for num_blocks in range(1, most + 1):
        yield explore(QueueWorld(num_blocks))


def find_queue_breach() -> Failure | None:
    """Looks for a shortest run after which the ring is not the list."""
    for exploration in explore_queues():
        if exploration.difference is not None:
            return failure_of(exploration)
    return None
