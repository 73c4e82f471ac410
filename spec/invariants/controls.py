"""What an engine is told beside requests, and the limits that are off by default."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import AddRequest, ResetPrefixCache, Schedule
from spec.gates import loras_with_a_slot, partial_prefills
from spec.gates_of_loads import holds_kv
from spec.interface import REFUSED, EngineCoreOutput, NewRequest, SchedulerConfig
from spec.invariants.sources import POOL, SCHEDULE, output_of
from spec.registry import invariant
from spec.transition import Transition


@invariant(source=f"{SCHEDULE}, set_pause_state", on=(Schedule,))
def pauses_are_kept(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A paused scheduler admits only who holds KV; if all is paused, nobody moves."""
    is_paused = seen.pause_state != "unpaused"
    admitted = [name for name in seen.admitted if is_paused and not holds_kv(seen, name)]
    if admitted:
        yield f"{admitted} are admitted, however the scheduler is {seen.pause_state}"
    if seen.pause_state == "paused_all":
        scheduled = output_of(seen).num_scheduled_tokens
        if scheduled or seen.preempted:
            yield (
                f"scheduled are {scheduled}, preempted {seen.preempted}, "
                "however the scheduler is paused_all"
            )


@invariant(source=f"{SCHEDULE}, scheduled_loras", on=(Schedule,))
def max_loras_is_kept(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Those who run have at most max_loras adapters; 0 is no limit.

    Where only the adapters of a step count, that is all that is promised; and with drafts in flight
    not even that: whoever rests at max_model_len gives its adapter up to an admission, and goes on
    once a draft is rejected.
    """
    if not config.idle_loras_count and config.async_scheduling and config.num_speculative_tokens:
        return
    loras = loras_with_a_slot(config, seen, seen.after.running)
    if 0 < config.max_loras < len(loras):
        yield f"the adapters {sorted(loras)} have slots, max_loras={config.max_loras}"


@invariant(source="vllm/config/scheduler.py: max_num_partial_prefills", of_state=True)
def partial_prefills_are_limited(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """At most so many prompts, and so many long ones, are computed in part as the limits allow."""
    partial = partial_prefills(seen.after, seen.after.running)
    if 0 < config.max_num_partial_prefills < len(partial):
        limit = config.max_num_partial_prefills
        yield f"the prompts of {partial} are computed in part, max_num_partial_prefills={limit}"
    threshold = config.long_prefill_token_threshold
    long = [name for name in partial if seen.after.requests[name].num_prompt_tokens > threshold]
    if 0 < config.max_long_partial_prefills < len(long):
        limit = config.max_long_partial_prefills
        yield f"the long prompts of {long} are computed in part, max_long_partial_prefills={limit}"


@invariant(source="vLLM #39734: a head of the queue larger than the pool", on=(AddRequest,))
def what_never_fits_is_refused(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request is refused at its arrival if it may outgrow the pool, where the dialect says so."""
    assert isinstance(seen.action, AddRequest), "`on` says so"
    new = seen.action.request
    is_too_large = count_blocks_to_hold(config, new) > config.num_blocks
    expected: dict[int, list[EngineCoreOutput]] = {}
    if config.reject_too_large and is_too_large:
        expected = {new.client_index: [EngineCoreOutput(new.request_id, [], REFUSED)]}
    if (seen.outcome.results or {}) != expected:
        yield (
            f"{new.request_id} {'may' if is_too_large else 'cannot'} outgrow the pool, "
            f"however {describe_refusal(seen.outcome.results)}"
        )


@invariant(source=f"{POOL}.reset_prefix_cache", on=(ResetPrefixCache,))
def a_reset_forgets_all_or_nothing(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A reset leaves nothing to be found, unless a block is held; then it changes nothing."""
    assert isinstance(seen.action, ResetPrefixCache), "`on` says so"
    before, after = seen.before.cached_block_ids, seen.after.cached_block_ids
    if seen.action.reset_running_requests and seen.after.running:
        yield f"{seen.after.running} still run, however running requests were to be reset"
    is_reset = not seen.after.ref_cnt
    if after != ([] if is_reset else before):
        yield f"{after} can be found, {before} before; held are {sorted(seen.after.ref_cnt)}"
    if seen.outcome.is_reset != is_reset:
        yield f"the answer is {seen.outcome.is_reset}; held are {sorted(seen.after.ref_cnt)}"


def describe_refusal(results: dict[int, list[EngineCoreOutput]] | None) -> str:
    """What the clients are sent at an arrival."""
    sent = [
        f"client {client_index} is sent {output.new_token_ids} for {output.request_id} "
        f"with finish_reason={output.finish_reason}"
        for client_index, outputs in (results or {}).items()
        for output in outputs
    ]
    return " and ".join(sent) or "it is taken"


def count_blocks_to_hold(config: SchedulerConfig, new: NewRequest) -> int:
    """The most blocks that a request may hold, found by letting it run alone, token by token.

    Each step writes all known tokens, then drafts that follow on a sampled one, below
    max_model_len; and a drafter writes ahead of them. What is sampled last is never written.
    """
    num_blocks, num_known = 0, len(new.prompt_token_ids)
    for num_output_tokens in range(new.max_tokens):
        if num_known == config.max_model_len:
            break
        last = num_known
        for _ in range(config.num_speculative_tokens if num_output_tokens > 0 else 0):
            last += last + 1 < config.max_model_len
        for _ in range(config.num_lookahead_tokens):
            last += last < config.max_model_len
        while num_blocks * config.block_size < last:
            num_blocks += 1
        num_known += 1
    return num_blocks
