"""What must sometimes happen: checks that never saw it have looked at too little."""

from __future__ import annotations

from spec.gates import find_refusing_gate, is_ready
from spec.interface import EngineCoreOutput, SchedulerConfig
from spec.invariants.sources import output_of
from spec.model import FinishRequests, Transition, UpdateFromOutput
from spec.registry import EVERY_ACTION, witness


@witness()
def preemption(config: SchedulerConfig, seen: Transition) -> bool:
    """A running request loses its blocks."""
    return bool(seen.preempted)


@witness()
def self_preemption(config: SchedulerConfig, seen: Transition) -> bool:
    """A request that lacks blocks is itself the victim.

    Whoever preempts another needs more blocks than were free before, so it leaves fewer than the
    victim gave back; after a self-preemption all of them are free. (With priorities, those who
    come next may hide it.)
    """
    if not seen.preempted or seen.preempted[-1] not in seen.before.requests:
        return False
    table = seen.before.requests[seen.preempted[-1]].block_ids
    num_given_back = sum(seen.before.ref_cnt.get(block_id) == 1 for block_id in table)
    return seen.after.num_free_blocks >= num_given_back


@witness()
def resumption(config: SchedulerConfig, seen: Transition) -> bool:
    """A preempted request is admitted again."""
    return any(data.resumed for data in output_of(seen).scheduled_cached_reqs.values())


@witness()
def victim_before_the_cursor(config: SchedulerConfig, seen: Transition) -> bool:
    """A victim stands before a request that takes new blocks, so the step may have scheduled it."""
    running = seen.before.running
    cached = output_of(seen).scheduled_cached_reqs
    takers = [running.index(n) for n, d in cached.items() if d.new_block_ids and n in running]
    victims = [running.index(name) for name in seen.preempted if name in running]
    return bool(takers) and any(victim < max(takers) for victim in victims)


@witness()
def chunked_prefill(config: SchedulerConfig, seen: Transition) -> bool:
    """A step computes a part of a prompt that is not its last."""
    output, starts = output_of(seen), seen.starts
    return any(
        starts[name] + num_tokens < seen.after.requests[name].num_prompt_tokens
        for name, num_tokens in output.num_scheduled_tokens.items()
    )


@witness()
def prefix_hit(config: SchedulerConfig, seen: Transition) -> bool:
    """A request is admitted with tokens that it need not compute."""
    starts = seen.starts
    return any(starts[name] > 0 for name in seen.admitted)


@witness()
def full_hit(config: SchedulerConfig, seen: Transition) -> bool:
    """All of a request's tokens are cached; its last block is computed again, to sample from.

    It takes an engine that tells what its published blocks are found by.
    """
    contents = seen.before.block_contents or {}
    return any(
        seen.starts[name] > 0
        and (seen.live[name].new.cache_salt, seen.live[name].token_ids) in contents.values()
        for name in seen.admitted
    )


@witness()
def shared_block(config: SchedulerConfig, seen: Transition) -> bool:
    """Two requests hold one block."""
    return any(count > 1 for count in seen.after.ref_cnt.values())


@witness()
def eviction(config: SchedulerConfig, seen: Transition) -> bool:
    """A block that could be found is handed out for other content."""
    before, after = seen.before.block_contents, seen.after.block_contents
    if before is None or after is None:
        return not set(seen.before.cached_block_ids) <= set(seen.after.cached_block_ids)
    return any(after.get(block_id) != content for block_id, content in before.items())


@witness()
def overtaking(config: SchedulerConfig, seen: Transition) -> bool:
    """A ready request is admitted before one that stood before it and was not ready."""
    before = seen.before.waiting
    places = [before.index(name) for name in seen.admitted]
    return any(
        not is_ready(config, seen.in_flight, name) for name in before[: max(places, default=0)]
    )


@witness(on=(FinishRequests,))
def abort_in_flight(config: SchedulerConfig, seen: Transition) -> bool:
    """A request is aborted while a step computes tokens of it."""
    assert isinstance(seen.action, FinishRequests), "`on` says so"
    return any(
        name in step.output.num_scheduled_tokens
        for name in seen.action.request_ids
        for step in seen.in_flight
    )


@witness(on=(FinishRequests,))
def abort_while_preempted(config: SchedulerConfig, seen: Transition) -> bool:
    """A preempted request is aborted."""
    assert isinstance(seen.action, FinishRequests), "`on` says so"
    return any(
        seen.before.requests[name].status == "PREEMPTED"
        for name in seen.action.request_ids
        if name in seen.before.requests
    )


@witness(on=(UpdateFromOutput,))
def stale_output(config: SchedulerConfig, seen: Transition) -> bool:
    """A token arrives of a step that a preemption has voided."""
    step = seen.outcome.returned
    assert isinstance(seen.action, UpdateFromOutput), "`on` says so"
    assert step is not None, "only an update returns a step"
    return any(seen.action.sampled_token_ids.get(name) for name in step.voided)


@witness(on=(UpdateFromOutput,))
def stop_by_eos(config: SchedulerConfig, seen: Transition) -> bool:
    """A request ends with its end-of-sequence token."""
    return any(
        output.new_token_ids[-1] == seen.live[output.request_id].new.eos_token_id
        for output in ended(seen, "stop")
    )


@witness(on=(UpdateFromOutput,))
def stop_by_stop_token(config: SchedulerConfig, seen: Transition) -> bool:
    """A request ends with one of its stop tokens."""
    return any(
        output.new_token_ids[-1] in seen.live[output.request_id].new.stop_token_ids
        for output in ended(seen, "stop")
    )


@witness(on=(UpdateFromOutput,))
def stop_by_max_tokens(config: SchedulerConfig, seen: Transition) -> bool:
    """A request ends because it has produced max_tokens."""
    return any(
        live.num_output_tokens + len(output.new_token_ids) >= live.new.max_tokens
        for output in ended(seen, "length")
        for live in [seen.live[output.request_id]]
    )


@witness(on=(UpdateFromOutput,))
def stop_by_max_model_len(config: SchedulerConfig, seen: Transition) -> bool:
    """A request ends because its context is full."""
    return any(
        len(seen.live[output.request_id].token_ids) + len(output.new_token_ids)
        >= config.max_model_len
        for output in ended(seen, "length")
    )


@witness(on=(UpdateFromOutput,))
def stop_by_repetition(config: SchedulerConfig, seen: Transition) -> bool:
    """A request ends because it repeats itself."""
    return bool(ended(seen, "repetition"))


@witness()
def refused_by_token_budget(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because the budget is used up."""
    return find_refusing_gate(config, seen) == "token_budget"


@witness()
def refused_by_max_num_seqs(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because enough requests run."""
    return find_refusing_gate(config, seen) == "max_num_seqs"


@witness()
def refused_by_preemption(config: SchedulerConfig, seen: Transition) -> bool:
    """Others than the victims wait because the step preempted somebody."""
    return bool(seen.preempted) and len(seen.after.waiting) > len(seen.preempted)


@witness()
def refused_as_not_ready(config: SchedulerConfig, seen: Transition) -> bool:
    """Nobody who waits is ready."""
    return find_refusing_gate(config, seen) == "not_ready"


@witness()
def refused_by_whole_prompt_budget(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because its prompt must not be cut."""
    return find_refusing_gate(config, seen) == "whole_prompt_budget"


@witness()
def refused_by_free_blocks(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because not even its first chunk fits."""
    return find_refusing_gate(config, seen) == "free_blocks"


@witness()
def refused_by_whole_sequence(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because its first chunk fits and its whole sequence does not."""
    return find_refusing_gate(config, seen) == "whole_sequence"


@witness()
def refused_by_watermark(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because it would eat into the watermark."""
    return find_refusing_gate(config, seen) == "watermark"


@witness()
def refused_by_reserve(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because admitted prompts still need the free blocks."""
    return find_refusing_gate(config, seen) == "reserve"


@witness(on=EVERY_ACTION)
def idle_pool(config: SchedulerConfig, seen: Transition) -> bool:
    """Everybody has finished, and the pool is whole again."""
    return bool(seen.before.requests) and not seen.after.requests


def ended(seen: Transition, reason: str) -> list[EngineCoreOutput]:
    """The outputs of an update that end a live request for a reason."""
    return [
        output
        for outputs in (seen.outcome.results or {}).values()
        for output in outputs
        if output.finish_reason == reason and output.request_id in seen.live
    ]
