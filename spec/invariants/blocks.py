"""No block is used twice, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import Schedule
from spec.block_pool import cdiv
from spec.gates import num_blocks_ahead
from spec.gates_of_loads import held_at_turn
from spec.interface import (
    Observation,
    SchedulerConfig,
)
from spec.invariants.counters import WAITING_FOR_KV
from spec.invariants.sources import POOL, SCHEDULE, output_of
from spec.registry import invariant
from spec.sessions import is_resumable
from spec.transition import Transition


@invariant(source=f"{POOL}.touch, free_blocks", of_state=True)
def ref_cnt_counts_holders(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A block's ref_cnt is the number of block tables that hold it."""
    held = seen.num_holders
    if held == seen.after.ref_cnt:
        return
    for block_id in sorted(held.keys() | seen.after.ref_cnt.keys()):
        ref_cnt, num_holders = seen.after.ref_cnt.get(block_id, 0), held.get(block_id, 0)
        if ref_cnt != num_holders:
            yield (
                f"block {block_id} has ref_cnt={ref_cnt}, "
                f"however {num_holders} block tables hold it"
            )


@invariant(source=f"{POOL}.get_new_blocks", of_state=True)
def no_block_is_free_and_held(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A block stands in the free queue, once, or in block tables, never both."""
    free, held = seen.after.free_block_ids, seen.num_holders
    for block_id in free:
        if block_id in held:
            yield f"block {block_id} is free, however {held[block_id]} block tables hold it"
    if len(set(free)) < len(free):
        yield f"the free queue {free} names a block twice"


@invariant(source=f"{POOL}.free_blocks", of_state=True)
def blocks_are_conserved(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """The free queue and the block tables together are always the whole pool."""
    after = {*seen.after.free_block_ids, *seen.num_holders}
    before = all_blocks(seen.before)
    if len(after) != config.num_blocks:
        yield f"{len(after)} blocks are free or held, the pool has {config.num_blocks}"
    if before != after:
        yield f"lost {sorted(before - after)}, new {sorted(after - before)}"
    if seen.after.num_free_blocks != len(seen.after.free_block_ids):
        yield (
            f"num_free_blocks={seen.after.num_free_blocks}, however the free queue holds "
            f"{len(seen.after.free_block_ids)}"
        )


@invariant(source="vllm/v1/core/kv_cache_manager.py: allocate_slots", of_state=True)
def block_tables_are_exact(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A running request holds the blocks of its computed tokens, each once; others hold none.

    With speculative decoding it may hold more: those of rejected drafts stay, and a drafter may
    write ahead. Who waits holds the blocks of KV that is loaded or was; of those into which nothing
    came it computes the tokens itself, later. And a resumable one keeps what it has when it stops.
    """
    running = seen.after.running
    for request_id, request in seen.after.requests.items():
        table = request.block_ids
        least = cdiv(request.num_computed_tokens, config.block_size)
        is_session = is_resumable(seen, request_id)
        least = least if request_id in running or config.load_kv_async or is_session else 0
        most = least
        if is_session or (config.num_speculative_tokens > 0 and request_id in running):
            most = max(most, len(table))
        # Of a single token nothing counts as computed once it is loaded: it is computed again.
        may_have_loaded = least > 0 or request.status == WAITING_FOR_KV or request.num_tokens == 1
        if request_id in seen.live_after and may_have_loaded:
            new = seen.live_after[request_id].new
            most = max(most, new.num_remote_tokens // config.block_size)
        if not least <= len(table) <= most:
            due = f"{least}" if least == most else f"{least} to {most}"
            yield f"{request_id} needs {due} blocks, however it holds {table}"
        if len(set(table)) < len(table):
            yield f"{request_id} holds a block twice: {request.block_ids}"


@invariant(source="vllm/v1/core/kv_cache_manager.py: allocate_slots", on=(Schedule,))
def blocks_are_given_as_needed(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step gives a request the blocks of its tokens, and of those written ahead, and no more.

    Nothing is written ahead beyond max_model_len, nor in some dialects at an admission.
    """
    if config.num_speculative_tokens == 0:
        return  # Then block tables are exact, which says the same.
    output = output_of(seen)
    for name in seen.after.running:
        before, after = seen.before.requests.get(name), seen.after.requests.get(name)
        if before is None or after is None:
            continue  # Another invariant objects.
        num_blocks = len(held_at_turn(seen, name))
        if name in seen.admitted and not config.lookahead_at_admission and num_blocks == 0:
            num_blocks = cdiv(after.num_computed_tokens, config.block_size)
        elif name in output.num_scheduled_tokens:
            num_blocks = max(num_blocks, num_blocks_ahead(config, after.num_computed_tokens))
        if len(after.block_ids) != num_blocks:
            yield f"{name} is due {num_blocks} blocks, however it holds {after.block_ids}"


@invariant(source=SCHEDULE, on=(Schedule,), needs=("new_block_ids_to_zero",))
def new_blocks_are_zeroed(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Every block that leaves the free queue to be written is named in new_block_ids_to_zero."""
    output = output_of(seen)
    starts = seen.starts
    zeroed = set(output.new_block_ids_to_zero or ())
    for request_id in output.num_scheduled_tokens:
        after = seen.after.requests.get(request_id)
        before = seen.before.requests.get(request_id)
        if after is None or before is None or request_id not in starts:
            continue  # Another invariant objects.
        num_old = len(held_at_turn(seen, request_id)) or starts[request_id] // config.block_size
        missing = [block_id for block_id in after.block_ids[num_old:] if block_id not in zeroed]
        if missing:
            yield f"{request_id} is given {missing}, zeroed are {sorted(zeroed)}"


def all_blocks(seen: Observation) -> set[int]:
    """Blocks that are free or held."""
    return set(seen.free_block_ids).union(*seen.block_tables)
