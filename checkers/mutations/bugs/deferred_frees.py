"""Bugs in when blocks are free that a step in flight may still write."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method


@mutation(
    target="impl.scheduler:FastScheduler._can_be_freed",
    setting="deferred-frees",
    caught_by="blocks_are_kept_back_while_written",
)
def blocks_are_free_while_a_step_writes_them(original: Method) -> Method:
    """Who leaves gives its blocks back at once, and a load may get them before the step is over."""

    def _can_be_freed(self: Any, request: Any, num_planned_tokens: int = 0) -> bool:
        return True

    return _can_be_freed


@mutation(
    target="impl.scheduler:FastScheduler._defer",
    setting="deep-remote-kv",
    caught_by="blocks_are_kept_back_while_written",
)
def blocks_wait_for_one_step_only(original: Method) -> Method:
    """What is kept back is free after the next step that returns, however many are in flight."""

    def _defer(self: Any, block_ids: list[int]) -> None:
        if block_ids:
            self.deferred_frees.append((self.processed_step_seq + 1, block_ids))

    return _defer


@mutation(
    target="impl.scheduler:FastScheduler._defer",
    setting="deferred-frees",
    caught_by="blocks_are_conserved",
)
def what_is_kept_back_is_lost(original: Method) -> Method:
    """Blocks that a step in flight writes are taken from their request and never given back."""

    def _defer(self: Any, block_ids: list[int]) -> None:
        pass

    return _defer


@mutation(
    target="impl.scheduler:FastScheduler._note_returned",
    setting="deferred-frees",
    caught_by="blocks_are_kept_back_while_written",
)
def an_empty_step_counts_as_returned(original: Method) -> Method:
    """A step that computed nothing was never counted, and frees what waits for one that did."""

    def _note_returned(self: Any, output: Any) -> None:
        if not output.num_scheduled_tokens:
            self.processed_step_seq += 1
        original(self, output)

    return _note_returned


@mutation(
    target="impl.scheduler:FastScheduler._make_room_for",
    setting="deferred-frees",
    caught_by="nobody_is_preempted_for_nothing",
)
def a_victim_gives_no_block(original: Method) -> Method:
    """Whoever lacks a block preempts others one by one, though none of theirs is free yet."""

    def _make_room_for(self: Any, request: Any, num_new_blocks: int) -> bool:
        while num_new_blocks > self.block_pool.num_free_blocks:
            victim = self._choose_victim()
            self._preempt(victim)
            if victim is request:
                return False
        return True

    return _make_room_for
