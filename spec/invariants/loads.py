"""KV that is loaded from a remote store, and blocks that are kept back while somebody writes them.

Each rule says exactly what is due after an action, from what was seen before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import KVReceived, Schedule, UpdateFromOutput
from spec.block_pool import cdiv
from spec.gates import num_blocks_of_sequence, num_reserved_blocks
from spec.gates_of_loads import begins_load, is_loading, num_beside, num_lacked
from spec.interface import RetainedBlocks, SchedulerConfig
from spec.invariants.counters import WAITING_FOR_KV
from spec.invariants.sources import SCHEDULE, output_of
from spec.registry import invariant
from spec.transition import StepInFlight, Transition

LOADS = "vllm/v1/core/sched/scheduler.py: load_kv_async"


@invariant(source="vllm/v1/core/sched/scheduler.py: kv_holding_waiting", of_state=True)
def whoever_holds_kv_is_first(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Who waits and holds KV stands before who does not, or the blocks would be held for nothing.

    But for a request whose load has brought nothing: it may keep its place among them.
    """
    requests = seen.after.requests
    empty = [n for n in seen.after.waiting if n in requests and not requests[n].block_ids]
    others = [n for n in empty if not (n in seen.live_after and seen.live_after[n].has_lost_kv)]
    if not others:
        return
    behind = seen.after.waiting[seen.after.waiting.index(others[0]) + 1 :]
    for name in behind:
        if name in requests and requests[name].block_ids:
            yield f"{name} holds {requests[name].block_ids} and stands behind {others[0]}"


@invariant(source=LOADS, on=(Schedule,))
def loads_are_told(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request waits for KV only if the worker is told of a load for it, or will be.

    The load is of all whole blocks that the store holds, beyond what is found here, and goes into
    the request's own blocks.
    """
    told = output_of(seen).kv_loads
    for name, after in seen.after.requests.items():
        before = seen.before.requests.get(name)
        has_waited = before is not None and before.status == WAITING_FOR_KV
        if after.status == WAITING_FOR_KV and not has_waited and not is_loading(seen, name):
            yield f"{name} waits for KV, however nobody loads it"
    for name, load in told.items():
        request, live = seen.after.requests.get(name), seen.live.get(name)
        if request is None or live is None or request.status != WAITING_FOR_KV:
            yield f"KV is loaded for {name}, which does not wait for it"
            continue
        size = config.block_size
        end = live.new.num_remote_tokens // size * size
        table = request.block_ids[load.start // size :]
        if (load.end, load.block_ids) != (end, table) or not 0 <= load.start < end:
            yield (
                f"tokens {load.start} to {load.end} of {name} are loaded into {load.block_ids}, "
                f"the store has {end} and the blocks for them are {table}"
            )


@invariant(source=f"{LOADS}, _update_requests_with_invalid_blocks")
def loaded_tokens_are_counted(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Who waits for KV has computed what is loaded; then what has arrived, but the last token."""
    for name, after in seen.after.requests.items():
        before = seen.before.requests.get(name)
        if before is None or WAITING_FOR_KV not in {before.status, after.status}:
            continue
        expected = before.num_computed_tokens
        if isinstance(seen.action, KVReceived) and seen.action.request_id == name:
            expected = seen.action.num_valid_tokens
        elif begins_load(seen, name) and name in seen.live:
            num_blocks = seen.live[name].new.num_remote_tokens // config.block_size
            expected = num_blocks * config.block_size
        elif name in seen.admitted:
            continue  # What it computes then is counted elsewhere.
        elif after.status != WAITING_FOR_KV:
            expected = min(expected, after.num_tokens - 1)
        if after.num_computed_tokens != expected:
            yield (
                f"{name} is {after.status} with num_computed_tokens="
                f"{after.num_computed_tokens}, expected {expected}"
            )


@invariant(source=f"{SCHEDULE}, skip_zeroing_group_ids", on=(Schedule,))
def what_is_loaded_is_not_zeroed(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Blocks of a load are not zeroed while it writes them; those that it left unwritten are then.

    Zeroing is a write of the step, and not ordered against the load.
    """
    zeroed = output_of(seen).new_block_ids_to_zero
    if zeroed is None:
        return
    for name, load in output_of(seen).kv_loads.items():
        wrong = [block_id for block_id in load.block_ids if block_id in zeroed]
        if wrong:
            yield f"{wrong} are zeroed while KV of {name} is loaded there"
    for name, before in seen.before.requests.items():
        after = seen.after.requests.get(name)
        has_arrived = before.status == WAITING_FOR_KV and before.num_computed_tokens > 0
        if has_arrived and after is not None and after.status != WAITING_FOR_KV:
            rest = before.block_ids[before.num_computed_tokens // config.block_size :]
            missing = [block_id for block_id in rest if block_id not in zeroed]
            if missing:
                yield f"KV of {name} did not arrive in {missing}, zeroed are {sorted(zeroed)}"


@invariant(source=f"{LOADS}, _drain_deferred_loads")
def loads_begin_when_they_may(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A load begins at once or, where it is deferred, when the steps in flight have returned."""
    deferred = {
        name: max(num_steps - has_returned(seen), 0)
        for name, num_steps in seen.before.deferred_loads.items()
        if name in seen.live_after
    }
    if isinstance(seen.action, Schedule):
        due = {name for name, num_steps in deferred.items() if num_steps == 0}
        begun = [name for name in seen.after.requests if begins_load(seen, name)]
        num_steps = num_filled(seen.in_flight)
        is_late = config.defer_async_loads and num_steps > 0
        due |= set() if is_late else set(begun)
        deferred = {name: n for name, n in deferred.items() if n > 0}
        deferred |= dict.fromkeys(begun, num_steps) if is_late else {}
        if due != set(output_of(seen).kv_loads):
            yield f"loads of {sorted(output_of(seen).kv_loads)} begin, due are {sorted(due)}"
    if deferred != seen.after.deferred_loads:
        yield f"deferred are the loads {seen.after.deferred_loads}, expected {deferred}"


@invariant(source=f"{SCHEDULE}, _inflight_prefill_reserved_blocks", on=(Schedule,))
def loads_leave_room_for_prefills(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A load begins only if others can still be computed to the end of what they know.

    They are those who are computed or loaded in part: a load holds its blocks and cannot be
    preempted, so two of them might wait for each other for ever. With the whole-sequence gate its
    whole sequence must fit, too; where that reserves, beside what those who run still need.
    """
    for name in seen.before.waiting:
        if not begins_load(seen, name) or name not in seen.after.requests:
            continue
        tables = tables_at_turn(seen, name)
        held = {block_id for table in tables.values() for block_id in table}
        held.update(b for kept in seen.after.retained for b in kept.block_ids)
        num_free = config.num_blocks - len(held)
        for shares in shares_of_load(config, seen, name, tables, held):
            num_blocks = sum(shares.values())
            if num_blocks > num_free:
                parts = ", ".join(f"{share} {what}" for what, share in shares.items() if share)
                yield (
                    f"{name} begins a load, for which {num_blocks} blocks must be free ({parts}), "
                    f"however {num_free} are"
                )


def shares_of_load(
    config: SchedulerConfig,
    seen: Transition,
    name: str,
    tables: dict[str, list[int]],
    held: set[int],
) -> Iterator[dict[str, int]]:
    """Yields what must have been free when a load began, part by part; by blocks that are held."""
    request = seen.after.requests[name]
    later = seen.before.waiting[seen.before.waiting.index(name) :]
    running = [n for n in seen.after.running if n in tables and n not in later]
    watermark = {"as the watermark": config.num_watermark_blocks} if running else {}
    num_taken = len(set(request.block_ids) - held)
    num_lacking = sum(num_lacked_then(config, seen, n, t) for n, t in tables.items())
    yield {
        "for what is loaded": num_taken,
        "for prompts in part": num_lacking,
        "for a step of drafts": cdiv(num_beside(config), config.block_size),
        **watermark,
    }
    if config.scheduler_reserve_full_isl:
        num_later = num_blocks_of_sequence(config, request) - len(request.block_ids)
        yield {
            "for its whole sequence": num_taken + num_later,
            "reserved for who runs": num_reserved_blocks(config, seen.after, running),
            **watermark,
        }


def tables_at_turn(seen: Transition, name: str) -> dict[str, list[int]]:
    """The block tables when a request that waited was looked at in a step, its own left out.

    Who stood before it had been looked at already, who stood behind it had not.
    """
    position = seen.before.waiting.index(name)
    later = seen.before.waiting[position + 1 :]
    after, before = seen.after.requests, seen.before.requests
    tables = {n: r.block_ids for n, r in after.items() if n != name and n not in later}
    return tables | {n: before[n].block_ids for n in later if n in before}


def num_lacked_then(config: SchedulerConfig, seen: Transition, name: str, table: list[int]) -> int:
    """Blocks that a request lacks whose known tokens are surely computed or loaded in part.

    After a preemption they are its prompt and its outputs. Whoever has computed all that it knew
    runs with one more, which it sampled.
    """
    request, live = seen.before.requests.get(name), seen.live.get(name)
    if request is None or live is None or live.new.resumable or not table:
        return 0
    if name in seen.admitted:
        now, num_due = seen.after.requests.get(name, request), request.num_tokens
    else:
        now, num_due = request, max(request.num_prompt_tokens, request.num_tokens - 1)
    is_in_part = now.num_computed_tokens < num_due
    is_prefill = is_in_part if name in seen.after.running else not live.has_lost_kv
    if not is_prefill:
        return 0
    return max(num_lacked(config, request) + len(request.block_ids) - len(table), 0)


@invariant(source="vllm/v1/core/sched/scheduler.py: _free_request_blocks, delay_free_blocks")
def blocks_are_kept_back_while_written(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Who leaves gives its blocks back at once, unless a load or a step in flight writes them.

    Then they are free when the load has ended, and the steps in flight have returned; the latter
    where `defer_block_free` says so.
    """
    expected = [*what_goes_on(seen), *what_is_given_up(config, seen)]
    if shown(expected) != shown(seen.after.retained):
        yield (f"kept back are {describe(seen.after.retained)}, due are {describe(expected)}")


def what_goes_on(seen: Transition) -> Iterator[RetainedBlocks]:
    """What was kept back before, and still is."""
    for kept in seen.before.retained:
        num_steps = max(kept.num_steps - has_returned(seen), 0)
        name = kept.request_id
        if isinstance(seen.action, KVReceived) and seen.action.request_id == name:
            name = None
            num_steps = num_filled(seen.in_flight) if num_steps > 0 else 0
        if num_steps > 0 or name is not None:
            yield RetainedBlocks(kept.block_ids, num_steps, name)


def what_is_given_up(config: SchedulerConfig, seen: Transition) -> Iterator[RetainedBlocks]:
    """What those leave behind who have ended or were preempted, and somebody still writes."""
    gone = [name for name in seen.before.requests if name not in seen.after.requests]
    in_flight = seen.in_flight if isinstance(seen.action, Schedule) else seen.in_flight_after
    for name in dict.fromkeys([*seen.preempted, *gone]):
        before = seen.before.requests.get(name)
        if before is None or not before.block_ids:
            continue
        steps = [step.output.num_scheduled_tokens for step in in_flight]
        is_written = seen.before.deferred_loads.get(name, 0) > 0 or any(name in s for s in steps)
        num_steps = num_filled(in_flight) if config.defer_block_free and is_written else 0
        load = name if name in seen.loads_after else None
        if num_steps > 0 or load is not None:
            yield RetainedBlocks(before.block_ids, num_steps, load)


def shown(retained: list[RetainedBlocks]) -> list[tuple[list[int], int, str | None]]:
    """In an order of their own."""
    kept = [(each.block_ids, each.num_steps, each.request_id) for each in retained]
    return sorted(kept, key=str)


def describe(retained: list[RetainedBlocks]) -> str:
    """Which blocks, and until when."""
    return "; ".join([*_until(retained)]) or "none"


def _until(retained: list[RetainedBlocks]) -> Iterator[str]:
    for block_ids, num_steps, request_id in shown(retained):
        returns = "step returns" if num_steps == 1 else "steps return"
        waits = [f"{num_steps} {returns}"] if num_steps else []
        waits += [f"the load for {request_id} ends"] if request_id else []
        yield f"{block_ids} until {' and '.join(waits) or 'nothing more happens'}"


def has_returned(seen: Transition) -> bool:
    """Whether a step that computed something has returned."""
    return isinstance(seen.action, UpdateFromOutput) and num_filled(seen.in_flight[:1]) > 0


def num_filled(steps: tuple[StepInFlight, ...]) -> int:
    """How many of them compute something."""
    return sum(bool(step.output.num_scheduled_tokens) for step in steps)
