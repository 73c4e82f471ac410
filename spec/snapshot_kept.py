"""What a state holds beside requests: loads, and blocks on their way back to the pool.

Entry points: `freeze_kept` and `thaw_kept`, `save_kept` and `rewind_kept`; see `spec.snapshot`.
Without loads and deferred frees there is nothing of it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from spec.books import mark_lost
from spec.deferred_frees import KeptBlocks
from spec.interface import KVLoad
from spec.remote_kv import DeferredLoad
from spec.request import Request

if TYPE_CHECKING:
    from spec.scheduler import ReferenceScheduler
    from spec.snapshot import SpecModel

Kept = tuple[Any, ...]


def kept_blocks(scheduler: ReferenceScheduler) -> list[KeptBlocks]:
    """The block tables without a request, in a fixed order."""
    return [*scheduler.abandoned_loads.values(), *scheduler.deferred_frees]


def freeze_kept(model: SpecModel, order: list[Request]) -> Kept:
    """Returns the canonical value of it; requests are named by place, the ended ones after them."""
    scheduler = model.scheduler
    config = scheduler.config
    if not (config.load_kv_async or config.defer_block_free):
        return ()
    names = [*[request.request_id for request in order], *scheduler.abandoned_loads]
    places = {name: place for place, name in enumerate(names)}
    return (
        tuple([(request.is_kv_received, request.num_preemptions > 0) for request in order]),
        tuple(sorted([(places[n], load.start, load.end) for n, load in model.loads.items()])),
        tuple(
            [
                (places[name], each.load.start, each.load.end, each.num_steps)
                for name, each in scheduler.deferred_loads.items()
            ]
        ),
        len(scheduler.abandoned_loads),
        tuple([(kept.num_blocks, kept.num_steps) for kept in kept_blocks(scheduler)]),
        # Who ended is no part of a step any more, but an empty step waits for nothing.
        tuple([bool(step.output.num_scheduled_tokens) for step in model.in_flight]),
    )


def thaw_kept(model: SpecModel, order: list[Request], value: Kept) -> list[KeptBlocks]:
    """Puts it into a state; returns the tables without a request, for which blocks are due."""
    if not value:
        return []
    flags, loads, deferred_loads, num_abandoned, kept, *_ = value
    scheduler = model.scheduler
    for request, (is_kv_received, is_preempted) in zip(order, flags, strict=True):
        request.is_kv_received = is_kv_received
        request.num_preemptions = int(is_preempted)
    for request in scheduler.kv_holding_waiting.items:
        if request.num_computed_tokens == 0 and (request.is_kv_received or not request.num_blocks):
            model.live = mark_lost(model.live, [request.request_id], True)
    model.loads = {f"r{place}": KVLoad(start, end, []) for place, start, end in loads}
    for place, start, end, num_steps in deferred_loads:
        load = DeferredLoad(KVLoad(start, end, []), num_steps)
        scheduler.deferred_loads[f"r{place}"] = load
    tables = [_make_kept(num_blocks, num_steps) for num_blocks, num_steps in kept]
    names = [f"r{len(order) + number}" for number in range(num_abandoned)]
    scheduler.abandoned_loads = dict(zip(names, tables, strict=False))
    scheduler.deferred_frees = tables[num_abandoned:]
    return tables


def count_steps(model: SpecModel, value: Kept) -> None:
    """Gives steps in flight of which all requests have ended a part of nobody, so they count."""
    if not value:
        return
    *_, are_filled = value
    for step, is_filled in zip(model.in_flight, are_filled, strict=True):
        if is_filled and not step.output.num_scheduled_tokens:
            step.output.num_scheduled_tokens["nobody"] = 1
    if model.scheduler.config.defer_block_free:
        model.scheduler.num_steps_in_flight = sum(are_filled)


def fill_loads(model: SpecModel) -> None:
    """Names the blocks of each load, once its request or what is kept of it has a block table."""
    scheduler = model.scheduler
    size = scheduler.config.block_size
    deferred = ((name, each.load) for name, each in scheduler.deferred_loads.items())
    for name, load in chain(model.loads.items(), deferred):
        holder = scheduler.abandoned_loads.get(name) or scheduler.requests[name]
        load.block_ids = holder.block_ids[load.start // size : load.end // size]


def _make_kept(num_blocks: int, num_steps: int) -> KeptBlocks:
    kept = KeptBlocks.__new__(KeptBlocks)
    kept.block_ids, kept.num_blocks, kept.num_steps = [], num_blocks, num_steps
    return kept


def save_kept(model: SpecModel) -> Kept:
    """Returns what `rewind_kept` needs."""
    scheduler = model.scheduler
    if not (scheduler.config.load_kv_async or scheduler.config.defer_block_free):
        return ()
    return (
        model.loads,
        [(name, each, each.num_steps) for name, each in scheduler.deferred_loads.items()],
        [(name, *_save(kept)) for name, kept in scheduler.abandoned_loads.items()],
        [_save(kept) for kept in scheduler.deferred_frees],
        scheduler.num_steps_in_flight,
    )


def _save(kept: KeptBlocks) -> tuple[KeptBlocks, list[int], int, int]:
    return kept, kept.block_ids, kept.num_blocks, kept.num_steps


def rewind_kept(model: SpecModel, saved: Kept) -> None:
    """Brings back what was saved."""
    if not saved:
        return
    scheduler = model.scheduler
    model.loads, loads, abandoned, frees, scheduler.num_steps_in_flight = saved
    scheduler.deferred_loads = {}
    for name, each, num_steps in loads:
        each.num_steps = num_steps
        scheduler.deferred_loads[name] = each
    scheduler.abandoned_loads = {name: _restore(*fields) for name, *fields in abandoned}
    scheduler.deferred_frees = [_restore(*fields) for fields in frees]


def _restore(kept: KeptBlocks, block_ids: list[int], num_blocks: int, num_steps: int) -> KeptBlocks:
    kept.block_ids, kept.num_blocks, kept.num_steps = block_ids, num_blocks, num_steps
    return kept
