"""Wrong specifications that only a proof about loops or about any two requests notices."""

from __future__ import annotations

from typing import Any

from checkers.planting import Method
from proofs.mutants import SCHEDULER, mutant
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


@mutant(f"{SCHEDULER}._preempt")
def a_victim_joins_the_tail(original: Method) -> Method:
    """A preempted request joins the tail of the waiting queue, as if it had just come."""

    def _preempt(self: Any, victim: Any) -> None:
        queue = self.waiting
        queue.prepend_request = queue.add_request
        original(self, victim)
        del queue.prepend_request

    return _preempt


@mutant(f"{SCHEDULER}._settle")
def a_returned_step_is_computed_again(original: Method) -> Method:
    """A returned step counts one token less as computed."""

    def _settle(self: Any, request: Any, *args: Any) -> None:
        original(self, request, *args)
        request.num_computed_tokens -= 1

    return _settle


@mutant(f"{SCHEDULER}._reserve")
def a_block_less_is_reserved(original: Method) -> Method:
    """For each running prompt one block less is set aside than it lacks."""

    def _reserve(self: Any, request: Any) -> None:
        before = self.num_reserved_blocks
        original(self, request)
        if self.num_reserved_blocks > before:
            self.num_reserved_blocks -= 1

    return _reserve


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


@mutant(f"{POOL}._release")
def a_shared_block_is_freed(original: Method) -> Method:
    """A block is free as soon as one of its holders lets it go."""

    def _release(self: Any, block_id: Any) -> None:
        self.ref_cnt[block_id] = 1
        original(self, block_id)

    return _release


@mutant(f"{POOL}._release")
def a_block_is_lost_with_its_last_holder(original: Method) -> Method:
    """A block that nobody holds any more joins no queue."""

    def _release(self: Any, block_id: Any) -> None:
        self.ref_cnt[block_id] -= 1

    return _release


@mutant(f"{POOL}.free")
def a_freed_table_is_kept(original: Method) -> Method:
    """A request that was freed shows the blocks that it had."""

    def free(self: Any, request: Any) -> None:
        block_ids = request.block_ids
        original(self, request)
        request.block_ids = block_ids

    return free


@mutant(f"{SCHEDULER}._compare_to_victim")
def the_last_running_is_preempted(original: Method) -> Method:
    """With priorities, too, the victim is the request that was admitted last."""

    def _compare_to_victim(self: Any, request: Any) -> None:
        self.victim = request

    return _compare_to_victim


@mutant(f"{SCHEDULER}._take_back")
def a_taken_back_chunk_stays_paid_for(original: Method) -> Method:
    """What a victim was granted in this step is taken back, and the budget stays as it is."""

    def _take_back(self: Any, victim: Any) -> None:
        token_budget = self.token_budget
        original(self, victim)
        self.token_budget = token_budget

    return _take_back


@mutant(f"{SCHEDULER}._leave_running")
def the_cursor_follows_every_victim(original: Method) -> Method:
    """The cursor moves up by one whoever leaves, even if that one stood behind it."""

    def _leave_running(self: Any, victim: Any) -> None:
        req_index = self.req_index
        original(self, victim)
        self.req_index = req_index - 1

    return _leave_running


@mutant(f"{SCHEDULER}._admit")
def a_hit_is_computed_again(original: Method) -> Method:
    """A request adopts the blocks of its hit, and begins at its first token all the same."""

    def _admit(self: Any, request: Any, num_computed_tokens: Any, *args: Any) -> None:
        original(self, request, 0, *args)

    return _admit
