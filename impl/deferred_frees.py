"""When a request's blocks return to the pool: at once, or when no step in flight writes them.

Entry point: `DeferredFrees`, on which `impl.lifecycle` stands. Steps that compute something are
numbered, and what is kept back carries the number of the last step before it, its fence.
"""

from __future__ import annotations

from collections import deque

from impl.block_pool import BlockPool
from impl.request import Request
from spec.interface import SchedulerConfig, SchedulerOutput


class DeferredFrees:
    """The block pool, and the blocks that are kept back from it."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.block_pool = BlockPool(config)
        self.sched_step_seq = 0
        self.processed_step_seq = 0
        # Fences and blocks; a fence is never below the one before it.
        self.deferred_frees: deque[tuple[int, list[int]]] = deque()

    def _can_be_freed(self, request: Request, num_planned_tokens: int = 0) -> bool:
        """Whether no step in flight writes a request's blocks.

        `num_planned_tokens` is its part of the step that is being planned, which may be taken back.
        """
        if not self.config.defer_block_free:
            return True
        return request.num_in_flight_tokens == num_planned_tokens

    def _free_request_blocks(self, request: Request) -> None:
        """Gives a request's blocks back, now or when the steps in flight have returned."""
        if self._can_be_freed(request):
            self.block_pool.free(request)
        else:
            self._defer(self.block_pool.pop_blocks(request))

    def _defer(self, block_ids: list[int]) -> None:
        """Keeps blocks back until all steps in flight have returned."""
        if block_ids:
            self.deferred_frees.append((self.sched_step_seq, block_ids))

    def _note_planned(self, output: SchedulerOutput) -> None:
        """Numbers a step; one that computes nothing writes nothing."""
        if output.num_scheduled_tokens:
            self.sched_step_seq += 1

    def _note_returned(self, output: SchedulerOutput) -> None:
        """Frees what waited for a step that has returned."""
        if output.num_scheduled_tokens:
            self.processed_step_seq += 1
        frees = self.deferred_frees
        while frees and frees[0][0] <= self.processed_step_seq:
            self.block_pool.free_blocks(reversed(frees.popleft()[1]))
