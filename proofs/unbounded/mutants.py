"""Wrong specifications that only a proof about loops or about any two requests notices."""

from __future__ import annotations

from typing import Any

from proofs.mutants import SCHEDULER, Method, mutant
from spec.block_pool import NO_HIT

POOL = "spec.block_pool:BlockPool"


@mutant(f"{SCHEDULER}._schedule_next_running")
def who_was_looked_at_is_looked_at_again(original: Method) -> Method:
    """The cursor of pass 1 goes back to where it was, so the pass never ends."""

    def _schedule_next_running(self: Any) -> Any:
        req_index = self.req_index
        goes_on = original(self)
        self.req_index = req_index
        return goes_on

    return _schedule_next_running


@mutant(f"{SCHEDULER}._put_back_next_skipped")
def skipped_requests_join_the_tail(original: Method) -> Method:
    """Requests that were not ready join the tail of the waiting queue, as if they had just come."""

    def _put_back_next_skipped(self: Any) -> Any:
        queue = self.waiting
        queue.prepend_request = queue.add_request
        goes_on = original(self)
        del queue.prepend_request
        return goes_on

    return _put_back_next_skipped


@mutant(f"{POOL}._touch")
def a_hit_block_stays_free(original: Method) -> Method:
    """A hit block that nobody held stands in the free queue still."""

    def _touch(self: Any, block_id: Any) -> None:
        self.ref_cnt[block_id] += 1

    return _touch


@mutant(f"{POOL}.allocate")
def new_blocks_are_taken_before_hits(original: Method) -> Method:
    """New blocks are taken first, and one of them may be a hit block."""

    def allocate(self: Any, request: Any, hit: Any, num_new_blocks: Any) -> Any:
        new_block_ids = original(self, request, NO_HIT, num_new_blocks)
        original(self, request, hit, 0)
        return new_block_ids

    return allocate


@mutant(f"{POOL}._take_new_block")
def a_new_block_is_held_by_nobody(original: Method) -> Method:
    """A block is handed out, and its ref_cnt stays 0."""

    def _take_new_block(self: Any) -> Any:
        block_id = original(self)
        self.ref_cnt[block_id] -= 1
        return block_id

    return _take_new_block
