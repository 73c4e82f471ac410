"""Who stands where, who is admitted, and who is preempted."""

from __future__ import annotations

from collections.abc import Iterator

from spec.actions import ResetPrefixCache, Schedule
from spec.gates import cap_long_prefill, num_blocks_ahead, order_of_admission
from spec.gates_of_loads import begins_load, is_loading
from spec.interface import SchedulerConfig, SchedulerOutput
from spec.invariants.sources import SCHEDULE
from spec.registry import invariant
from spec.transition import LiveRequest, Transition

WAITING_FOR_GRAMMAR = ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",)
WAITING_FOR_KV = ("WAITING_FOR_REMOTE_KVS",)
WAITING_FOR_CHUNK = ("WAITING_FOR_STREAMING_REQ",)
WAITING = ("WAITING", "PREEMPTED", *WAITING_FOR_GRAMMAR)
"""An engine may notice only when it looks at a request that its grammar is compiled."""


@invariant(source="vllm/v1/core/sched/request_queue.py", on=(Schedule,))
def nobody_overtakes(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """No ready request is admitted before one that stands before it (head-of-line admission).

    One that lacks a slot, for its adapter or its long prompt, is passed over, too.
    """
    admitted = seen.admitted
    gates = order_of_admission(config, seen)
    served = [name for name in gates if name in admitted or begins_load(seen, name)]
    ready = [name for name, gate in gates.items() if gate is None or name in served]
    for name in admitted:
        if gates[name] == "stale_output":
            yield f"{name} is admitted while output of its voided steps is in flight"
        elif gates[name] == "grammar":
            yield f"{name} is admitted while its grammar is being compiled"
        elif gates[name] == "streaming_input":
            yield f"{name} is admitted, however no chunk has followed on its turn"
        elif gates[name] == "remote_kv":
            yield f"{name} is admitted while its KV is being loaded"
    if served != ready[: len(served)] or admitted != [n for n in served if n in admitted]:
        yield f"served are {served}, however the ready ones stood in the order {ready}"


@invariant(source=SCHEDULE, on=(Schedule,))
def no_admission_after_preemption(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step that preempts admits nobody."""
    preempted, admitted = seen.preempted, seen.admitted
    if preempted and admitted:
        yield f"{admitted} are admitted in a step that preempted {preempted}"


@invariant(source="vllm/v1/core/sched/scheduler.py: requests, waiting, running", of_state=True)
def requests_are_conserved(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Every live request, and nobody else, stands in the one queue that its status says."""
    after = seen.after
    queued = after.running + after.waiting
    if sorted(queued) != sorted(seen.live_after):
        yield (
            f"running {after.running}, waiting {after.waiting}, "
            f"however alive are {sorted(seen.live_after)}"
        )
    if sorted(after.requests) != sorted(seen.live_after):
        yield f"the engine knows {sorted(after.requests)}, alive are {sorted(seen.live_after)}"
    for name in after.running:
        if name in after.requests and after.requests[name].status != "RUNNING":
            yield f"{name} runs with status {after.requests[name].status}"
    for name in after.waiting:
        live = seen.live_after.get(name)
        expected = WAITING_FOR_GRAMMAR if live and live.waits_for_grammar else WAITING
        if live and live.waits_for_chunk:
            expected = WAITING_FOR_CHUNK
        if config.load_kv_async:
            is_loaded = is_loading(seen, name)
            expected = WAITING_FOR_KV if is_loaded else (*expected, *WAITING_FOR_KV)
        if name in after.requests and after.requests[name].status not in expected:
            yield f"{name} waits with status {after.requests[name].status}"


@invariant(source="vllm/v1/core/sched/request_queue.py")
def queues_keep_their_order(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Nobody changes places in a queue.

    Victims go to the head of waiting, arrivals and who has ended a turn to its tail (with
    priorities: all to their rank), and whoever is admitted to the tail of running. Who waits and
    holds KV has a queue of its own.
    """
    before, after = seen.before, seen.after
    preempted, admitted = seen.preempted, seen.admitted
    arrived = [name for name in seen.live_after if name not in seen.live]
    turned = seen.turned
    gone = {*preempted, *turned}
    running = [name for name in before.running if name in after.requests and name not in gone]
    if after.running != running + admitted:
        yield f"running is {after.running}, expected {running + admitted}"
    gone = {*admitted, *turned}
    stayed = [name for name in before.waiting if name in after.requests and name not in gone]
    waiting = preempted[::-1] + stayed + turned + arrived
    if config.policy == "priority":
        waiting.sort(key=lambda name: rank(seen.live_after, name))
    orders = possible_orders(seen, waiting)
    # Which of the two queues is the first is for another rule to say.
    if holders_first(seen, after.waiting) not in [holders_first(seen, order) for order in orders]:
        yield f"waiting is {after.waiting}, expected {orders[-1]}"


def holders_first(seen: Transition, waiting: list[str]) -> list[str]:
    """The queue of those who hold KV, then the others, each in its order."""
    requests = seen.after.requests
    holders = [name for name in waiting if name in requests and requests[name].block_ids]
    return holders + [name for name in waiting if name not in holders]


def possible_orders(seen: Transition, waiting: list[str]) -> list[list[str]]:
    """How `waiting` may stand: who holds KV before who does not.

    Whose load has brought nothing stays among the former, unless it is passed over.
    """
    requests, live = seen.after.requests, seen.live_after
    holders = {name for name in waiting if name in requests and requests[name].block_ids}
    lost = {name for name in waiting if name in live and live[name].has_lost_kv} - holders
    sizes = range(len(holders), len(holders) + len(lost) + 1)
    firsts = [holders | lost.intersection(seen.after.waiting[:size]) for size in sizes]
    return [sorted(waiting, key=lambda name: name not in first) for first in firsts]


@invariant(source=f"{SCHEDULE}, _preempt_request", on=(Schedule,))
def victims_are_the_last_served(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Each victim is the running request that is served last.

    That is the last one; with priorities the first of the greatest (priority, arrival_time).
    """
    running = list(seen.before.running)
    for victim in seen.preempted:
        expected = running[-1] if running else None
        if running and config.policy == "priority":
            expected = max(running, key=lambda name: rank(seen.live, name)[:2])
        if victim != expected:
            yield f"{victim} is preempted, however {expected} is served last of {running}"
        if victim in running:
            running.remove(victim)


@invariant(source=SCHEDULE, on=(Schedule,))
def nobody_is_preempted_for_nothing(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Nobody is preempted while there is room for whoever asks.

    The last victim of a step asked itself, or whoever preempted it took more blocks than were free
    before. With priorities others may take blocks after it, so less can be said. And where blocks
    are kept back while a step in flight writes them, nobody is preempted for those; but whoever
    asks may be left without another victim, so no more is said.
    """
    written = [step.output.num_scheduled_tokens for step in seen.in_flight]
    is_kept_back = config.defer_block_free and any(written)
    for name in seen.preempted:
        if is_kept_back and any(name in scheduled for scheduled in written):
            yield f"{name} is preempted, however a step in flight writes its blocks: none is free"
    victim = seen.preempted[-1] if seen.preempted else ""
    before = seen.before.requests.get(victim)
    if before is None or is_kept_back:
        return
    num_drafts = before.num_draft_tokens
    num_known = before.num_tokens + (before.num_output_placeholders or 0)
    # If it does not tell how many drafts it has, they may be as many as there can be.
    num_known += config.num_speculative_tokens if num_drafts is None else num_drafts
    gap = num_known - before.num_computed_tokens
    num_new_tokens = min(
        cap_long_prefill(config, seen.before, gap), config.max_num_scheduled_tokens
    )
    num_held = len(before.block_ids)
    num_tokens = before.num_computed_tokens + max(num_new_tokens, 0)
    num_wanted = max(num_blocks_ahead(config, num_tokens), num_held)
    num_given_back = num_wanted if config.policy == "priority" else num_held
    num_free = seen.after.num_free_blocks - num_given_back
    if num_free >= 0 and num_wanted - num_held <= num_free:
        yield f"{victim} is preempted, however {num_free} blocks were free before, all it asked for"


@invariant(
    source="vllm/v1/core/sched/scheduler.py: _preempt_request", on=(Schedule, ResetPrefixCache)
)
def victims_keep_only_their_tokens(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A preempted request keeps its tokens and nothing else.

    It has no blocks, nothing computed, no placeholders, and no part in the step.
    """
    output = seen.outcome.output or SchedulerOutput()
    for name in seen.preempted:
        before, after = seen.before.requests.get(name), seen.after.requests.get(name)
        if before is None or after is None:
            yield f"{name} is preempted, however it is unknown"
            continue
        kept = (after.num_computed_tokens, after.num_output_placeholders or 0, len(after.block_ids))
        if after.status != "PREEMPTED" or kept != (0, 0, 0):
            yield (
                f"{name} is {after.status} with num_computed_tokens={kept[0]}, "
                f"num_output_placeholders={kept[1]}, block_ids={after.block_ids}"
            )
        if after.num_tokens != before.num_tokens:
            yield f"{name} had {before.num_tokens} tokens, has {after.num_tokens}"
        if name in output.num_scheduled_tokens:
            num_tokens = output.num_scheduled_tokens[name]
            yield f"{name} is preempted, however the step computes {num_tokens} of its tokens"


def rank(live: dict[str, LiveRequest], name: str) -> tuple[int, float, str]:
    """Who is served first under the priority policy: the smallest."""
    if name not in live:
        return (0, 0.0, name)
    new = live[name].new
    return (new.priority, new.arrival_time, name)
