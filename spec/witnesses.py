"""What must sometimes happen: checks that never saw it have looked at too little."""

from __future__ import annotations

import spec.witnesses_of_loads
import spec.witnesses_of_streaming  # noqa: F401  (both register)
from spec.actions import AddRequest, FinishRequests, ResetPrefixCache, UpdateFromOutput
from spec.gates import find_refusing_gate, order_of_admission
from spec.interface import EngineCoreOutput, SchedulerConfig
from spec.invariants.sources import output_of
from spec.registry import EVERY_ACTION, witness
from spec.transition import Transition


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
    starts, requests = seen.starts, seen.before.requests
    return any(starts[name] > 0 and not requests[name].block_ids for name in seen.admitted)


@witness()
def full_hit(config: SchedulerConfig, seen: Transition) -> bool:
    """All of a request's tokens are cached; its last block is computed again, to sample from.

    It takes an engine that tells what its published blocks are found by.
    """
    contents = seen.before.block_contents or {}
    return any(
        seen.starts[name] > 0
        and (seen.live[name].new.cache_key, seen.live[name].token_ids) in contents.values()
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
    """A request is admitted before one that stood before it and was skipped."""
    gates = list(order_of_admission(config, seen).values())
    places = [seen.before.waiting.index(name) for name in seen.admitted]
    return any(gate is not None for gate in gates[: max(places, default=0)])


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
def refused_by_input_budget(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because draft slots use up what the batch has room for."""
    return find_refusing_gate(config, seen) == "input_budget"


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
    return find_refusing_gate(config, seen) in {
        "stale_output",
        "grammar",
        "remote_kv",
        "streaming_input",
    }


@witness()
def refused_by_pause(config: SchedulerConfig, seen: Transition) -> bool:
    """Somebody waits because the scheduler is paused."""
    return find_refusing_gate(config, seen) == "pause"


@witness()
def paused_while_running(config: SchedulerConfig, seen: Transition) -> bool:
    """A running request rests because all is paused."""
    return seen.pause_state == "paused_all" and bool(seen.after.running)


@witness()
def refused_by_max_loras(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because as many adapters as may be have slots."""
    return find_refusing_gate(config, seen) == "loras"


@witness()
def refused_by_an_idle_lora(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because a request that rests in this step keeps its adapter."""
    resting = [
        name
        for name in seen.after.running
        if name not in output_of(seen).num_scheduled_tokens and name in seen.live
    ]
    return find_refusing_gate(config, seen) == "loras" and any(
        seen.live[name].new.lora_id for name in resting
    )


@witness()
def refused_by_partial_prefills(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because as many prompts as may be are computed in part."""
    return find_refusing_gate(config, seen) == "partial_prefills"


@witness()
def refused_by_long_prefills(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because as many long prompts as may be are computed in part."""
    return find_refusing_gate(config, seen) == "long_prefills"


@witness(on=(AddRequest,))
def refused_at_arrival(config: SchedulerConfig, seen: Transition) -> bool:
    """A request is refused because it may outgrow the pool."""
    return bool(seen.outcome.results)


@witness(on=(ResetPrefixCache,))
def reset_of_content(config: SchedulerConfig, seen: Transition) -> bool:
    """A reset makes the engine forget something."""
    return bool(seen.before.cached_block_ids) and not seen.after.cached_block_ids


@witness(on=(ResetPrefixCache,))
def reset_in_flight(config: SchedulerConfig, seen: Transition) -> bool:
    """A reset takes a request's blocks while a step computes tokens of it."""
    return any(
        name in step.output.num_scheduled_tokens
        for name in seen.preempted
        for step in seen.in_flight
    )


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


@witness(on=(UpdateFromOutput,))
def dropped_output(config: SchedulerConfig, seen: Transition) -> bool:
    """A token of a live request arrives, and is dropped, since a reset has voided its step."""
    step = seen.outcome.returned
    assert isinstance(seen.action, UpdateFromOutput), "`on` says so"
    assert step is not None, "only an update returns a step"
    return any(seen.action.sampled_token_ids.get(name) for name in step.dropped)


@witness(on=(UpdateFromOutput,))
def draft_accepted(config: SchedulerConfig, seen: Transition) -> bool:
    """A draft is accepted, and the one after it is not."""
    return any(
        0 < num_rejected < len(seen.outcome.returned.drafts_of(name))
        for name, num_rejected in seen.num_rejected.items()
        if seen.outcome.returned is not None
    )


@witness(on=(UpdateFromOutput,))
def draft_rejected(config: SchedulerConfig, seen: Transition) -> bool:
    """A step computes drafts for nothing: the first of them is wrong."""
    return any(
        num_rejected == len(seen.outcome.returned.drafts_of(name))
        for name, num_rejected in seen.num_rejected.items()
        if seen.outcome.returned is not None and name not in seen.outcome.returned.padded
    )


@witness(on=(UpdateFromOutput,))
def all_drafts_accepted(config: SchedulerConfig, seen: Transition) -> bool:
    """Every draft of a request is right."""
    return 0 in seen.num_rejected.values()


@witness()
def padded_admission(config: SchedulerConfig, seen: Transition) -> bool:
    """A request is admitted with draft slots, though nobody has guessed what follows."""
    return any(name in output_of(seen).scheduled_spec_decode_tokens for name in seen.admitted)


@witness()
def refused_by_padding(config: SchedulerConfig, seen: Transition) -> bool:
    """The head of the queue waits because its one token fits the budget, but not its padding."""
    return find_refusing_gate(config, seen) == "padding"


@witness()
def drafts_are_cut(config: SchedulerConfig, seen: Transition) -> bool:
    """A budget, the threshold or max_model_len leaves no room for all drafts of a request."""
    output = output_of(seen)
    return any(
        len(output.scheduled_spec_decode_tokens.get(name, []))
        < (seen.before.requests[name].num_draft_tokens or 0)
        for name in output.num_scheduled_tokens
    )


@witness()
def drafts_are_taken_back(config: SchedulerConfig, seen: Transition) -> bool:
    """A victim with drafts stands before a request that takes new blocks."""
    has_drafts = any(
        seen.before.requests[name].num_draft_tokens
        for name in seen.preempted
        if name in seen.before.requests
    )
    return has_drafts and victim_before_the_cursor(config, seen)


@witness(on=(UpdateFromOutput,))
def drafts_of_a_voided_step(config: SchedulerConfig, seen: Transition) -> bool:
    """A step returns whose drafts a preemption has voided."""
    step = seen.outcome.returned
    return step is not None and any(step.drafts_of(name) for name in step.voided)


@witness(on=EVERY_ACTION)
def idle_pool(config: SchedulerConfig, seen: Transition) -> bool:
    """Everybody has finished, and the pool is whole again."""
    is_idle = [not (shown.requests or shown.retained) for shown in (seen.before, seen.after)]
    return is_idle == [False, True]


def ended(seen: Transition, reason: str) -> list[EngineCoreOutput]:
    """The outputs of an update that end a live request for a reason."""
    return [
        output
        for outputs in (seen.outcome.results or {}).values()
        for output in outputs
        if output.finish_reason == reason and output.request_id in seen.live
    ]
