"""States of the reference scheduler as small hashable values, and back.

Entry points: `freeze` and `thaw`, which name requests by queue order and blocks by first
appearance, so that two states that differ in names only are one value; `save` and `rewind`, which
undo actions in place, for speed. The explorer knows a state only through these four.

Left out of the value on purpose: what only ever grows or is only reported (`num_preemptions`,
`finished_req_ids`, the names of the dead in steps in flight), and arrival times beyond their order.
"""

from __future__ import annotations

from typing import Any

import attrs

from spec.actions import AddRequest, FinishRequests
from spec.block_pool import BlockPool, HoldsBlocks
from spec.environment import Environment
from spec.interface import BlockContent, RequestStatus, SchedulerOutput
from spec.model import Model
from spec.request import Request, get_counters
from spec.scheduler import ReferenceScheduler
from spec.sessions import arrival_times, freeze_sessions, thaw_sessions
from spec.snapshot_kept import (
    count_steps,
    fill_loads,
    freeze_kept,
    kept_blocks,
    rewind_kept,
    save_kept,
    thaw_kept,
)
from spec.transition import LiveRequest, StepInFlight

Snapshot = tuple[Any, ...]
"""The canonical value of a state."""


class SpecModel(Model):
    """A model whose scheduler is the reference scheduler with a pool of identities.

    In an exploration the same few names come up again and again, so it keeps the actions that it
    has made.
    """

    scheduler: ReferenceScheduler

    def __init__(self, environment: Environment, scheduler: ReferenceScheduler) -> None:
        super().__init__(environment, scheduler)
        pool = scheduler.block_pool
        assert isinstance(pool, BlockPool), "a counted pool has no identities to name"
        self.pool: BlockPool = pool
        # Only these make the tokens themselves matter, beside how many there are.
        self.tokens_matter = scheduler.config.enable_prefix_caching or any(
            shape.repetition_detection is not None for shape in environment.shapes
        )
        self.kept_arrivals: dict[tuple[int, int, int], AddRequest] = {}
        self.kept_aborts: dict[str, FinishRequests] = {}

    def make_arrival(self, shape: int, number: int, rank: int) -> AddRequest:
        """As the parent, made once."""
        action = self.kept_arrivals.get((shape, number, rank))
        if action is None:
            action = super().make_arrival(shape, number, rank)
            self.kept_arrivals[shape, number, rank] = action
        return action

    def make_abort(self, request_id: str) -> FinishRequests:
        """As the parent, made once."""
        action = self.kept_aborts.get(request_id)
        if action is None:
            action = self.kept_aborts[request_id] = super().make_abort(request_id)
        return action


def canonical_order(model: SpecModel) -> list[Request]:
    """The live requests by queue order, running first: a state's names are the places in it."""
    scheduler = model.scheduler
    return scheduler.running + scheduler.kv_holding_waiting.items + scheduler.waiting.items


def canonical_names(model: SpecModel) -> list[str]:
    """Whose name is which in a state: the live by place, then those whose KV is still loaded."""
    names = [request.request_id for request in canonical_order(model)]
    return [*names, *model.scheduler.abandoned_loads]


def freeze(model: SpecModel) -> Snapshot:
    """Returns the canonical value of a state."""
    scheduler, live = model.scheduler, model.live
    order = canonical_order(model)
    requests = tuple(map(get_counters, order))
    shapes = tuple([live[r.request_id].shape for r in order])
    in_flight: Snapshot = ()
    if model.in_flight:
        names = {r.request_id: index for index, r in enumerate(order)}
        in_flight = tuple([_freeze_step(step, names) for step in model.in_flight])
    return (
        (len(scheduler.running), len(scheduler.kv_holding_waiting.items)),
        shapes,
        requests,
        in_flight,
        _freeze_arrivals(model, order) if scheduler.config.policy == "priority" else (),
        tuple([r.token_ids for r in order]) if model.tokens_matter else (),
        _freeze_blocks(model, order) if scheduler.config.enable_prefix_caching else (),
        model.num_arrivals if model.bounds.max_arrivals else 0,
        model.pause_state,
        freeze_kept(model, order),
        freeze_sessions(model, order),
    )


def _freeze_step(step: StepInFlight, names: dict[str, int]) -> Snapshot:
    return tuple(
        [
            (
                names[name],
                num_tokens,
                name in step.samplers,
                name in step.voided,
                name in step.dropped,
                name in step.padded,
                len(step.drafts_of(name)),
            )
            for name, num_tokens in step.output.num_scheduled_tokens.items()
            if name in names
        ]
    )


def _freeze_arrivals(model: SpecModel, order: list[Request]) -> tuple[int, ...]:
    """The places by arrival time, with those of chunks that wait their turn after them."""
    times = arrival_times(order)
    return tuple(sorted(range(len(times)), key=times.__getitem__))


def _freeze_blocks(model: SpecModel, order: list[Request]) -> Snapshot:
    pool = model.pool
    names: dict[int, int] = {}
    holders: list[HoldsBlocks] = [*order, *kept_blocks(model.scheduler)]
    tables = [holder.block_ids for holder in holders]
    for table in tables:
        for block_id in table:
            names.setdefault(block_id, len(names))
    for block_id in pool.free_block_queue:
        if block_id in pool.block_hash:
            names[block_id] = len(names)
    return (
        tuple([tuple([names[block_id] for block_id in table]) for table in tables]),
        # Free blocks without content are alike.
        tuple([names.get(block_id, -1) for block_id in pool.free_block_queue]),
        tuple(
            sorted(
                [
                    # None cannot be sorted among salts, and differs from the empty one.
                    (salt is not None, salt or "", token_ids, tuple([names[b] for b in ids]))
                    for (salt, token_ids), ids in pool.cached_blocks.items()
                ]
            )
        ),
    )


def thaw(root: SpecModel, value: Snapshot) -> SpecModel:
    """Builds a state of `root`'s configuration and environment from its canonical value."""
    sizes, shapes, requests, in_flight, arrivals, tokens, blocks, *others = value
    num_arrivals, pause_state, kept, sessions = others
    model = SpecModel(root.bounds, ReferenceScheduler(root.scheduler.config))
    model.kept_arrivals, model.kept_aborts = root.kept_arrivals, root.kept_aborts
    scheduler = model.scheduler
    model.pause_state = scheduler.pause_state = pause_state
    order: list[Request] = []
    ranks = {index: rank for rank, index in enumerate(arrivals)}
    for index, (shape, counters) in enumerate(zip(shapes, requests, strict=True)):
        arrival = root.make_arrival(shape, index, ranks.get(index, index))
        request, live = _thaw_request(arrival, counters)
        if tokens:
            request.token_ids = tokens[index]
            live = attrs.evolve(live, token_ids=tokens[index])
        order.append(request)
        scheduler.requests[request.request_id] = request
        model.live[request.request_id] = _thaw_drafts(root, request, live)
    thaw_sessions(model, order, sessions, ranks)
    num_running, num_kv_holding = sizes
    scheduler.running = order[:num_running]
    scheduler.kv_holding_waiting.items = order[num_running : num_running + num_kv_holding]
    scheduler.waiting.items = order[num_running + num_kv_holding :]
    holders: list[HoldsBlocks] = [*order, *thaw_kept(model, order, kept)]
    # Whoever has ended while its KV was loaded has a name, too, and a chunk that waits has a time.
    num_names = len(arrival_times(order)) + len(scheduler.abandoned_loads)
    model.num_arrivals = num_arrivals if model.bounds.max_arrivals else num_names
    model.in_flight = tuple([_thaw_step(root, step) for step in in_flight])
    count_steps(model, kept)
    for step in model.in_flight:
        for name in step.dropped:
            scheduler.requests[name].drop_stale_output = True
    if blocks:
        _thaw_blocks(model.pool, holders, *blocks)
    else:
        _hand_out_blocks(model.pool, holders)
    fill_loads(model)
    return model


def _thaw_request(arrival: AddRequest, counters: Snapshot) -> tuple[Request, LiveRequest]:
    new = arrival.request
    request = Request(new)
    (
        request.status,
        request.num_output_tokens,
        request.num_computed_tokens,
        request.num_in_flight_tokens,
        request.num_stale_output_tokens,
        request.num_output_placeholders,
        request.num_draft_tokens,
        request.is_prefill_chunk,
        request.num_blocks,
    ) = counters
    # Where tokens do not matter, any will do.
    request.token_ids = new.prompt_token_ids + (0,) * request.num_output_tokens
    waits_for_grammar = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    return request, LiveRequest(new, request.token_ids, arrival.shape, waits_for_grammar)


def _thaw_drafts(root: SpecModel, request: Request, live: LiveRequest) -> LiveRequest:
    """Gives a request its drafts; its client knows them if anybody does."""
    if request.num_draft_tokens == 0:
        return live
    request.draft_token_ids = _make_drafts(root, request.num_draft_tokens)
    if root.scheduler.config.async_scheduling:
        return live
    return attrs.evolve(live, draft_token_ids=tuple(request.draft_token_ids))


def _make_drafts(root: SpecModel, num_draft_tokens: int) -> list[int]:
    """There is one menu of drafts, and nobody knows those of an asynchronous worker."""
    if root.scheduler.config.async_scheduling:
        return [-1] * num_draft_tokens
    return list(root.bounds.draft_token_ids[:num_draft_tokens])


def _thaw_step(root: SpecModel, step: Snapshot) -> StepInFlight:
    return StepInFlight(
        SchedulerOutput(
            {f"r{index}": num_tokens for index, num_tokens, *_ in step},
            scheduled_spec_decode_tokens={
                f"r{index}": [-1] * num_drafts if is_padded else _make_drafts(root, num_drafts)
                for index, *_, is_padded, num_drafts in step
                if num_drafts
            },
        ),
        tuple([f"r{index}" for index, _, samples, *_ in step if samples]),
        tuple([f"r{index}" for index, _, _, is_void, *_ in step if is_void]),
        tuple([f"r{index}" for index, _, _, _, is_dropped, *_ in step if is_dropped]),
        tuple([f"r{index}" for index, *_, is_padded, _ in step if is_padded]),
    )


def _thaw_blocks(
    pool: BlockPool,
    holders: list[HoldsBlocks],
    tables: Snapshot,
    free: tuple[int, ...],
    published: Snapshot,
) -> None:
    """Gives named blocks the ids 1, 2, …, and the nameless free ones the ids that are left."""
    for holder, table in zip(holders, tables, strict=True):
        holder.block_ids = [name + 1 for name in table]
        for name in table:
            pool.ref_cnt[name + 1] += 1
    named = {name for table in tables for name in table} | set(free)
    nameless = iter([name for name in range(pool.num_blocks) if name not in named])
    pool.free_block_queue = [(next(nameless) if name < 0 else name) + 1 for name in free]
    pool.num_free_blocks = len(pool.free_block_queue)
    for is_salted, salt, token_ids, names in published:
        content: BlockContent = (salt if is_salted else None, token_ids)
        pool.cached_blocks[content] = [name + 1 for name in names]
        for name in names:
            pool.block_hash[name + 1] = content


def _hand_out_blocks(pool: BlockPool, holders: list[HoldsBlocks]) -> None:
    """Gives each as many blocks as it had; without a cache any will do."""
    queue, start = pool.free_block_queue, 0
    for holder in holders:
        holder.block_ids = queue[start : start + holder.num_blocks]
        start += holder.num_blocks
        for block_id in holder.block_ids:
            pool.ref_cnt[block_id] = 1
    pool.free_block_queue = queue[start:]
    pool.num_free_blocks = len(pool.free_block_queue)


def save(model: SpecModel) -> Snapshot:
    """Returns what `rewind` needs to undo, in place, whatever happens next."""
    scheduler, pool = model.scheduler, model.pool
    return (
        [(request, request.save()) for request in scheduler.requests.values()],
        list(scheduler.running),
        list(scheduler.kv_holding_waiting.items),
        list(scheduler.waiting.items),
        list(scheduler.finished_req_ids),
        model.live,
        model.in_flight,
        model.num_arrivals,
        model.pause_state,
        scheduler.num_waiting_for_streaming_input,
        list(pool.free_block_queue),
        dict(pool.ref_cnt),
        dict(pool.block_hash),
        [(content, list(ids)) for content, ids in pool.cached_blocks.items()],
        save_kept(model),
    )


def rewind(model: SpecModel, saved: Snapshot) -> None:
    """Brings back the state that was saved."""
    scheduler, pool = model.scheduler, model.pool
    requests, running, holding, waiting, finished, model.live, model.in_flight, *others = saved
    model.num_arrivals, model.pause_state, num_parked, free, refs, hashes, cached, kept = others
    scheduler.num_waiting_for_streaming_input = num_parked
    rewind_kept(model, kept)
    scheduler.pause_state = model.pause_state
    scheduler.requests = {}
    for request, fields in requests:
        request.restore(fields)
        scheduler.requests[request.request_id] = request
    scheduler.running = list(running)
    scheduler.kv_holding_waiting.items, scheduler.waiting.items = list(holding), list(waiting)
    scheduler.finished_req_ids = list(finished)
    pool.free_block_queue, pool.ref_cnt = list(free), dict(refs)
    pool.num_free_blocks = len(free)
    if hashes or pool.block_hash:
        pool.block_hash = dict(hashes)
        pool.cached_blocks = {content: list(ids) for content, ids in cached}
    pool.new_block_ids = []
