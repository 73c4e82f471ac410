"""What must sometimes happen where KV is loaded, or blocks are kept back."""

from __future__ import annotations

from spec.actions import FinishRequests, KVReceived, UpdateFromOutput
from spec.gates import find_refusing_gate
from spec.interface import SchedulerConfig
from spec.invariants.sources import output_of
from spec.registry import witness
from spec.transition import Transition


@witness()
def loaded_admission(config: SchedulerConfig, seen: Transition) -> bool:
    """A request is admitted whose KV was loaded, all that is left of its prompt or a part."""
    return any(had_loaded(seen, name) for name in seen.admitted)


@witness()
def loaded_in_full(config: SchedulerConfig, seen: Transition) -> bool:
    """A request is admitted all of whose tokens were loaded, so its last one is computed again."""
    requests = seen.before.requests
    return any(
        requests[name].num_computed_tokens == requests[name].num_tokens for name in seen.admitted
    )


@witness()
def load_beyond_a_hit(config: SchedulerConfig, seen: Transition) -> bool:
    """A load begins behind blocks that are found here."""
    return any(load.start > 0 for load in output_of(seen).kv_loads.values())


@witness()
def load_after_a_preemption(config: SchedulerConfig, seen: Transition) -> bool:
    """KV is loaded again for a request that was preempted."""
    return any(seen.after.requests[name].num_preemptions for name in output_of(seen).kv_loads)


@witness(on=(KVReceived,))
def load_failed_in_part(config: SchedulerConfig, seen: Transition) -> bool:
    """Some blocks of a load arrive, others do not."""
    assert isinstance(seen.action, KVReceived), "`on` says so"
    end = seen.loads[seen.action.request_id].end
    return 0 < seen.action.num_valid_tokens < end


@witness(on=(KVReceived,))
def load_failed(config: SchedulerConfig, seen: Transition) -> bool:
    """Nothing of a load may be used, though its request lives."""
    assert isinstance(seen.action, KVReceived), "`on` says so"
    return seen.action.num_valid_tokens == 0 and seen.action.request_id in seen.live


@witness(on=(FinishRequests,))
def abort_while_loading(config: SchedulerConfig, seen: Transition) -> bool:
    """A request is aborted while its KV is loaded."""
    assert isinstance(seen.action, FinishRequests), "`on` says so"
    return any(name in seen.loads for name in seen.action.request_ids)


@witness(on=(KVReceived,))
def end_of_an_abandoned_load(config: SchedulerConfig, seen: Transition) -> bool:
    """A load ends after its request has, and its blocks are free."""
    return seen.after.num_free_blocks > seen.before.num_free_blocks


@witness()
def refused_by_a_load(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because the rest is reserved for prompts and other loads."""
    return find_refusing_gate(config, seen) == "load"


@witness()
def admission_in_a_pause(config: SchedulerConfig, seen: Transition) -> bool:
    """A request that holds KV is admitted while admission is paused."""
    return seen.pause_state == "paused_new" and bool(seen.admitted)


@witness(on=(UpdateFromOutput,))
def late_free(config: SchedulerConfig, seen: Transition) -> bool:
    """Blocks that were kept back are free, since the steps that may have written them are over."""
    return len(seen.after.retained) < len(seen.before.retained)


@witness()
def late_load(config: SchedulerConfig, seen: Transition) -> bool:
    """A load begins that had to wait for steps in flight."""
    return any(name in seen.before.deferred_loads for name in output_of(seen).kv_loads)


@witness()
def no_victim(config: SchedulerConfig, seen: Transition) -> bool:
    """A running request rests because no block of a victim would be free at once."""
    names = [name for name in seen.after.running if name in seen.before.running]
    in_flight = {name for step in seen.in_flight for name in step.output.num_scheduled_tokens}
    return (
        config.defer_block_free
        and not seen.preempted
        and any(name not in output_of(seen).num_scheduled_tokens for name in names)
        and bool(names)
        and names[-1] in in_flight
        and seen.after.num_free_blocks == 0
    )


def had_loaded(seen: Transition, name: str) -> bool:
    """Whether a request that waited holds KV from elsewhere."""
    before, live = seen.before.requests[name], seen.live.get(name)
    is_there = live is not None and live.new.num_remote_tokens > 0
    return is_there and bool(before.block_ids) and before.num_computed_tokens > 0
