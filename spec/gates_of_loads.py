"""What can be seen of loads from outside: who waits for KV, who may, and what that leaves free.

Used by `spec.gates`, and by invariants and witnesses.
"""

from __future__ import annotations

from spec.block_pool import cdiv
from spec.interface import RequestObservation, SchedulerConfig
from spec.transition import Transition


def is_loading(seen: Transition, request_id: str) -> bool:
    """Whether KV is loaded for a request after the action, or will be once steps have returned."""
    return request_id in seen.loads_after or request_id in seen.after.deferred_loads


def begins_load(seen: Transition, request_id: str) -> bool:
    """Whether a request waits for KV from this action on."""
    before = request_id in seen.loads or request_id in seen.before.deferred_loads
    return is_loading(seen, request_id) and not before


def has_lost_kv(seen: Transition, request_id: str) -> bool:
    """Whether a request has waited for a load that brought nothing.

    It gives its blocks up when it is looked at, and keeps its place, unless it is passed over.
    """
    return request_id in seen.live and seen.live[request_id].has_lost_kv


def held_at_turn(seen: Transition, request_id: str) -> list[int]:
    """The blocks of a request that waited, when a step has looked at it and not admitted it yet."""
    before = seen.before.requests.get(request_id)
    return [] if before is None or has_lost_kv(seen, request_id) else before.block_ids


def holds_kv(seen: Transition, request_id: str) -> bool:
    """Whether a request held blocks before, or stands among those who do: its load failed."""
    return bool(held_at_turn(seen, request_id)) or has_lost_kv(seen, request_id)


def may_load(config: SchedulerConfig, seen: Transition, request_id: str) -> bool:
    """Whether a request that waits has KV elsewhere; a prefix hit may reach as far, or not."""
    live, after = seen.live.get(request_id), seen.after.requests[request_id]
    is_there = live is not None and live.new.num_remote_tokens >= config.block_size
    return config.load_kv_async and is_there and not after.block_ids


def has_room_to_load(
    config: SchedulerConfig, seen: Transition, request_id: str, running: list[str]
) -> bool:
    """Whether a load surely finds its blocks, whoever of `running` computes its prompt."""
    after = seen.after
    request = after.requests[request_id]
    num_loaded = seen.live[request_id].new.num_remote_tokens // config.block_size
    # Another invariant objects to a name that no request has.
    named = [name for name in (*running, *after.waiting) if name in after.requests]
    holders = [after.requests[n] for n in named if n in running or after.requests[n].block_ids]
    num_reserved = sum(num_lacked(config, each) for each in holders)
    num_blocks = num_loaded + num_reserved + cdiv(num_beside(config), config.block_size)
    if config.scheduler_reserve_full_isl:
        num_tokens = request.num_tokens
        num_tokens += config.num_lookahead_tokens * config.reserve_admitted_prefills
        num_whole = cdiv(min(num_tokens, config.max_model_len), config.block_size)
        num_blocks = max(num_blocks, num_whole + num_reserved * config.reserve_admitted_prefills)
    num_blocks += config.num_watermark_blocks if running else 0
    return num_blocks <= after.num_free_blocks


def num_lacked(config: SchedulerConfig, request: RequestObservation) -> int:
    """Blocks that a request lacks for all known tokens, and for a step of drafts."""
    num_tokens = min(request.num_tokens, config.max_model_len) + num_beside(config)
    return max(cdiv(num_tokens, config.block_size) - len(request.block_ids), 0)


def num_beside(config: SchedulerConfig) -> int:
    """Slots of one step beside its prompt: of drafts, those ahead of them, and the next token."""
    if config.num_speculative_tokens == 0:
        return 0
    return 1 + config.num_speculative_tokens + config.num_lookahead_tokens
