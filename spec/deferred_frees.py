"""Blocks that are kept back until the steps that may still write them have returned.

Entry point: `DeferredFrees`, the ground on which `spec.lifecycle` stands. Without
`defer_block_free` a request's blocks are free at once, also with steps in flight: those run in
order, so whoever gets the blocks writes them later. A load from a remote store is not ordered
against the steps, and a step that is void by now would write over what it has brought.

Source: vllm/v1/core/sched/scheduler.py: _free_request_blocks, _request_blocks_can_be_freed,
_drain_deferred_frees. There steps are numbered (sched_step_seq, processed_step_seq); here what is
kept back counts the steps that are still to return. Proofs leave it off.
"""

from __future__ import annotations

from typing import Protocol

from spec.block_pool import CountedBlockPool, make_block_pool
from spec.interface import SchedulerConfig, SchedulerOutput
from spec.request import Request


class WaitsForSteps(Protocol):
    """What may happen only when steps in flight have returned."""

    num_steps: int
    """So many of those that compute a token."""


class KeptBlocks:
    """A block table without a request."""

    __slots__ = ("block_ids", "num_blocks", "num_steps")

    def __init__(self, request: Request, num_steps: int) -> None:
        self.block_ids = request.block_ids
        self.num_blocks = request.num_blocks
        self.num_steps = num_steps
        request.block_ids = []
        request.num_blocks = 0


class DeferredFrees:
    """A pool, and what is on its way back to it."""

    def __init__(self, config: SchedulerConfig, block_pool: CountedBlockPool | None = None) -> None:
        self.config = config
        self.block_pool: CountedBlockPool = block_pool or make_block_pool(config)
        # Steps in flight that compute a token; the others write nothing.
        self.num_steps_in_flight = 0
        # In the order in which they become free.
        self.deferred_frees: list[KeptBlocks] = []

    def _free_request_blocks(self, request: Request) -> None:
        """Gives a request's blocks back to the pool, or keeps them back for a while."""
        if self._can_be_freed(request):
            self.block_pool.free(request)
        else:
            self._keep_back(request)

    def _can_be_freed(self, request: Request) -> bool:
        """Whether no step in flight writes the blocks of a request, void or not."""
        return not self.config.defer_block_free or request.num_in_flight_tokens == 0

    def _keep_back(self, request: Request) -> None:
        """Takes a request's blocks; they are free when all steps in flight have returned."""
        if request.num_blocks > 0:
            self.deferred_frees.append(KeptBlocks(request, self.num_steps_in_flight))

    def _note_planned(self, output: SchedulerOutput) -> None:
        """Counts a step that is in flight from now on."""
        if self.config.defer_block_free and len(output.num_scheduled_tokens) > 0:
            self.num_steps_in_flight += 1

    def _note_returned(self, output: SchedulerOutput) -> None:
        """Counts a step that has returned; what waited for nothing else becomes free."""
        if self.config.defer_block_free and len(output.num_scheduled_tokens) > 0:
            self.num_steps_in_flight -= 1
            for each in self._all_who_wait():
                each.num_steps = max(each.num_steps - 1, 0)
            while self._free_next_kept():
                pass

    def _all_who_wait(self) -> list[WaitsForSteps]:
        """All that waits for steps to return."""
        return [*self.deferred_frees]

    def _free_next_kept(self) -> bool:
        """Frees what has been kept back for longest, if nothing may write it any more."""
        if len(self.deferred_frees) == 0 or self.deferred_frees[0].num_steps > 0:
            return False
        self.block_pool.free(self.deferred_frees.pop(0))
        return True
