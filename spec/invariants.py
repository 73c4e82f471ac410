"""What must always hold, for every scheduler: each invariant judges one transition by what is seen from outside.

The four promises of the project stand first: budgets, no block used twice, head-of-line admission, monotone
counters. To add one, write a decorated function: its name is its identity, its first line the rule, and it yields
one sentence of evidence per breach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from spec.gates import (
    cap_long_prefill,
    find_refusing_gate,
    is_ready,
    num_blocks_of_sequence,
    num_reserved_blocks,
    tokens_left,
)
from spec.interface import (
    EngineCoreOutput,
    Observation,
    RequestObservation,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.model import (
    AddRequest,
    FinishRequests,
    LiveRequest,
    Schedule,
    StepInFlight,
    Transition,
    UpdateFromOutput,
)
from spec.registry import invariant
from spec.scheduler import cdiv
from spec.stop import ends_in_repetition

SCHEDULE = "vllm/v1/core/sched/scheduler.py: schedule"
UPDATE = "vllm/v1/core/sched/scheduler.py: update_from_output"
POOL = "vllm/v1/core/block_pool.py: BlockPool"


def output_of(seen: Transition) -> SchedulerOutput:
    """The output of a `schedule` action."""
    assert seen.outcome.output is not None, "only a schedule action has an output"
    return seen.outcome.output


# ---- budgets ---------------------------------------------------------------------------------------------


@invariant(source=SCHEDULE, on=(Schedule,))
def token_budget_is_kept(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step schedules at most max_num_scheduled_tokens tokens."""
    total = output_of(seen).total_num_scheduled_tokens
    if total > config.max_num_scheduled_tokens:
        yield f"{total} tokens are scheduled, max_num_scheduled_tokens={config.max_num_scheduled_tokens}"


@invariant(source=SCHEDULE, on=(Schedule,))
def input_budget_is_kept(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step puts at most max_num_batched_tokens tokens into the forward pass."""
    total = output_of(seen).total_num_scheduled_tokens
    if total > config.max_num_batched_tokens:
        yield f"{total} tokens are batched, max_num_batched_tokens={config.max_num_batched_tokens}"


@invariant(source="vllm/config/scheduler.py: max_num_seqs", of_state=True)
def max_num_seqs_is_kept(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """At most max_num_seqs requests run at once."""
    if len(seen.after.running) > config.max_num_seqs:
        yield f"{len(seen.after.running)} requests run, max_num_seqs={config.max_num_seqs}"


# ---- no block is used twice, none is lost ----------------------------------------------------------------


@invariant(source=f"{POOL}.touch, free_blocks", of_state=True)
def ref_cnt_counts_holders(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A block's ref_cnt is the number of block tables that hold it."""
    held = seen.num_holders
    if held == seen.after.ref_cnt:
        return
    for block_id in sorted(held.keys() | seen.after.ref_cnt.keys()):
        ref_cnt, num_holders = seen.after.ref_cnt.get(block_id, 0), held.get(block_id, 0)
        if ref_cnt != num_holders:
            yield f"block {block_id} has ref_cnt={ref_cnt}, however {num_holders} block tables hold it"


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
    """A running request holds the blocks of its computed tokens, each once; a waiting one holds none."""
    running = seen.after.running
    for request_id, request in seen.after.requests.items():
        table = request.block_ids
        num_blocks = cdiv(request.num_computed_tokens, config.block_size)
        num_blocks = num_blocks if request_id in running else 0
        if len(table) != num_blocks:
            yield f"{request_id} needs {num_blocks} blocks, however it holds {table}"
        if len(set(table)) < len(table):
            yield f"{request_id} holds a block twice: {request.block_ids}"


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
        num_old = len(before.block_ids) or starts[request_id] // config.block_size
        missing = [block_id for block_id in after.block_ids[num_old:] if block_id not in zeroed]
        if missing:
            yield f"{request_id} is given {missing}, zeroed are {sorted(zeroed)}"


def all_blocks(seen: Observation) -> set[int]:
    """Blocks that are free or held."""
    return set(seen.free_block_ids).union(*[r.block_ids for r in seen.requests.values()])


# ---- queues ----------------------------------------------------------------------------------------------


@invariant(source="vllm/v1/core/sched/request_queue.py", on=(Schedule,))
def nobody_overtakes(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """No ready request is admitted before one that stands before it in the queue (head-of-line admission)."""
    admitted = seen.admitted
    ready = [name for name in seen.before.waiting if is_ready(config, seen.in_flight, name)]
    for name in admitted:
        if name not in ready:
            yield f"{name} is admitted while output of its voided steps is in flight"
    if admitted != ready[: len(admitted)]:
        yield f"admitted are {admitted}, however the ready ones stood in the order {ready}"


@invariant(source=SCHEDULE, on=(Schedule,))
def no_admission_after_preemption(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step that preempts admits nobody."""
    preempted, admitted = seen.preempted, seen.admitted
    if preempted and admitted:
        yield f"{admitted} are admitted in a step that preempted {preempted}"


@invariant(source="vllm/v1/core/sched/scheduler.py: requests, waiting, running", of_state=True)
def requests_are_conserved(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Every live request stands in exactly one queue, the one that its status says; nobody else does."""
    after = seen.after
    queued = after.running + after.waiting
    if sorted(queued) != sorted(seen.live_after):
        yield f"running {after.running}, waiting {after.waiting}, alive are {sorted(seen.live_after)}"
    if sorted(after.requests) != sorted(seen.live_after):
        yield f"the engine knows {sorted(after.requests)}, alive are {sorted(seen.live_after)}"
    for name in after.running:
        if name in after.requests and after.requests[name].status != "RUNNING":
            yield f"{name} runs with status {after.requests[name].status}"
    for name in after.waiting:
        if name in after.requests and after.requests[name].status not in {"WAITING", "PREEMPTED"}:
            yield f"{name} waits with status {after.requests[name].status}"


@invariant(source="vllm/v1/core/sched/request_queue.py")
def queues_keep_their_order(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Nobody changes places: victims go to the head of waiting (priority: to their rank), admitted to the tail of
    running, arrivals to the tail of waiting (priority: to their rank)."""
    before, after = seen.before, seen.after
    preempted, admitted = seen.preempted, seen.admitted
    arrived = [seen.action.request.request_id] if isinstance(seen.action, AddRequest) else []
    running = [name for name in before.running if name in after.requests and name not in preempted]
    if after.running != running + admitted:
        yield f"running is {after.running}, expected {running + admitted}"
    stayed = [name for name in before.waiting if name in after.requests and name not in admitted]
    waiting = preempted[::-1] + stayed + arrived
    if config.policy == "priority":
        waiting.sort(key=lambda name: rank(seen.live_after, name))
    if after.waiting != waiting:
        yield f"waiting is {after.waiting}, expected {waiting}"


@invariant(source=f"{SCHEDULE}, _preempt_request", on=(Schedule,))
def victims_are_the_last_served(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Each victim is the last running request; with priorities the first of the greatest (priority, arrival_time)."""
    running = list(seen.before.running)
    for victim in seen.preempted:
        expected = running[-1] if running else None
        if running and config.policy == "priority":
            expected = max(running, key=lambda name: rank(seen.live, name)[:2])
        if victim != expected:
            yield f"{victim} is preempted, however {expected} is served last of {running}"
        if victim in running:
            running.remove(victim)


@invariant(source="vllm/v1/core/sched/scheduler.py: _preempt_request", on=(Schedule,))
def victims_keep_only_their_tokens(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A preempted request has no blocks, nothing computed, no placeholders, no part in the step, and all its tokens."""
    output = output_of(seen)
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
            yield f"{name} is preempted, however the step computes {output.num_scheduled_tokens[name]} of its tokens"


def rank(live: dict[str, LiveRequest], name: str) -> tuple[int, float, str]:
    """Who is served first under the priority policy: the smallest."""
    if name not in live:
        return (0, 0.0, name)
    new = live[name].new
    return (new.priority, new.arrival_time, name)


# ---- counters --------------------------------------------------------------------------------------------


@invariant(source="vllm/v1/core/sched/scheduler.py: _update_after_schedule")
def counters_are_monotone(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Counters grow by what happened and fall only by a preemption, which forgets what is computed."""
    starts = seen.starts
    preempted, admitted = seen.preempted, seen.admitted
    for name, after in seen.after.requests.items():
        before = seen.before.requests.get(name)
        if before is None or name in preempted:
            continue
        start = starts.get(name, 0) if name in admitted else before.num_computed_tokens
        num_tokens = 0
        if seen.outcome.output is not None:
            num_tokens = seen.outcome.output.num_scheduled_tokens.get(name, 0)
        if after.num_computed_tokens != start + num_tokens:
            yield (
                f"{name} has num_computed_tokens={after.num_computed_tokens} after {num_tokens} tokens from {start} on"
            )
        if name in admitted and start < before.num_computed_tokens:
            yield f"{name} is admitted at token {start}, it had computed {before.num_computed_tokens}"


@invariant(source="vllm/v1/request.py: num_tokens, num_preemptions", of_state=True)
def token_counts_follow_the_client(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request's tokens are its prompt and what was delivered of it."""
    for name, after in seen.after.requests.items():
        live = seen.live_after.get(name)
        if live is None:
            continue  # Another invariant objects.
        num_prompt_tokens, num_tokens = len(live.new.prompt_token_ids), len(live.token_ids)
        expected = (num_prompt_tokens, num_tokens - num_prompt_tokens, num_tokens)
        counts = (after.num_prompt_tokens, after.num_output_tokens, after.num_tokens)
        if counts != expected:
            yield f"{name} counts (prompt, output, all) = {counts}, its client knows {expected}"


@invariant(source="vllm/v1/request.py: num_preemptions", needs=("num_preemptions",))
def preemptions_are_counted(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request counts its preemptions one by one, from none at its arrival."""
    for name, after in seen.after.requests.items():
        before = seen.before.requests.get(name)
        num_before = 0 if before is None else before.num_preemptions or 0
        if after.num_preemptions != num_before + seen.preempted.count(name):
            yield f"{name} has num_preemptions={after.num_preemptions}, {num_before} before"


@invariant(
    source="vllm/v1/request.py: num_computed_tokens",
    needs=("num_output_placeholders",),
    of_state=True,
)
def computed_is_within_tokens(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Nothing is computed beyond the tokens that are known or being sampled, nor up to max_model_len."""
    for name, request in seen.after.requests.items():
        num_placeholders = request.num_output_placeholders or 0
        limit = min(request.num_tokens + num_placeholders, config.max_model_len - 1)
        if not 0 <= request.num_computed_tokens <= limit:
            yield f"{name} has num_computed_tokens={request.num_computed_tokens}, at most {limit} make sense"
        if num_placeholders < 0:
            yield f"{name} has num_output_placeholders={num_placeholders}"


@invariant(
    source="vllm/v1/core/sched/async_scheduler.py",
    needs=("num_output_placeholders",),
    of_state=True,
)
def placeholders_count_pending_samples(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Under async scheduling a request has one placeholder for each step in flight that samples for it; else none."""
    if not config.wait_for_stale_output:
        return  # A request that resumes beside its stale output samples tokens that arrive anyway.
    for name, request in seen.after.requests.items():
        expected = 0
        if config.async_scheduling:
            for step in seen.in_flight_after:
                expected += name in step.samplers and name not in step.voided
        if request.num_output_placeholders != expected:
            yield (
                f"{name} has num_output_placeholders={request.num_output_placeholders}, "
                f"{expected} of its tokens are being sampled"
            )


@invariant(
    source="vllm/v1/request.py: num_in_flight_tokens",
    needs=("num_in_flight_tokens",),
    of_state=True,
)
def in_flight_tokens_are_counted(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """num_in_flight_tokens is what steps in flight compute for a request, voided parts included."""
    for name, request in seen.after.requests.items():
        num_tokens = num_stale = 0
        for step in seen.in_flight_after:
            num_scheduled_tokens = step.output.num_scheduled_tokens.get(name, 0)
            num_tokens += num_scheduled_tokens
            num_stale += num_scheduled_tokens if name in step.voided else 0
        if request.num_in_flight_tokens != num_tokens:
            yield f"{name} has num_in_flight_tokens={request.num_in_flight_tokens}, in flight are {num_tokens}"
        if request.num_stale_output_tokens not in {None, num_stale}:
            yield f"{name} has num_stale_output_tokens={request.num_stale_output_tokens}, voided are {num_stale}"


# ---- grants and gates ------------------------------------------------------------------------------------


@invariant(source=SCHEDULE, on=(Schedule,))
def scheduled_requests_run(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step computes at least one token of each request that it names, and names running requests only."""
    running = set(seen.after.running)
    for name, num_tokens in output_of(seen).num_scheduled_tokens.items():
        if name not in running:
            yield f"{name} is given {num_tokens} tokens, however running are {seen.after.running}"
        if num_tokens < 1:
            yield f"{name} is given {num_tokens} tokens"


@invariant(source=SCHEDULE, on=(Schedule,), needs=("num_output_placeholders",))
def grants_are_maximal(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """In a step without preemption each request gets its gap, cut only by budget, threshold and max_model_len."""
    if seen.preempted:
        return  # What a victim gives back may go to waste.
    output, starts = output_of(seen), seen.starts
    num_left = min(config.max_num_scheduled_tokens, config.max_num_batched_tokens)
    for name in seen.after.running:
        request = seen.before.requests[name] if name in seen.before.requests else None
        if request is None:
            continue  # Another invariant objects.
        if name in seen.before.running:
            expected = compute_running_grant(config, seen, name, request)
        else:
            expected = cap_long_prefill(
                config, seen.before, request.num_tokens - starts.get(name, 0)
            )
        expected = max(min(expected, num_left), 0)
        num_tokens = output.num_scheduled_tokens.get(name, 0)
        if num_tokens != expected:
            yield f"{name} is given {num_tokens} tokens, however {expected} are due"
        num_left -= num_tokens


def compute_running_grant(
    config: SchedulerConfig, seen: Transition, name: str, request: RequestObservation
) -> int:
    """The gap of a running request under its own caps, budgets aside."""
    num_placeholders = request.num_output_placeholders or 0
    num_computed = request.num_computed_tokens
    max_tokens = seen.live[name].new.max_tokens if name in seen.live else 0
    if (
        config.stop_at_max_tokens_in_flight
        and num_placeholders > 0
        and num_computed + 2 - num_placeholders >= request.num_prompt_tokens + max_tokens
    ):
        return 0
    gap = request.num_tokens + num_placeholders - num_computed
    return min(cap_long_prefill(config, seen.before, gap), config.max_model_len - 1 - num_computed)


@invariant(source=SCHEDULE, on=(Schedule,))
def work_is_conserved(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A ready request waits only if a gate refuses it: budget, seats, or blocks."""
    if find_refusing_gate(config, seen) is None:
        output = output_of(seen)
        yield (
            f"{seen.after.waiting} wait, however {tokens_left(config, output)} tokens of budget, "
            f"{config.max_num_seqs - len(seen.after.running)} seats and {seen.after.num_free_blocks} free blocks are left"
        )


@invariant(source="vllm/config/scheduler.py: scheduler_reserve_full_isl", on=(Schedule,))
def admitted_sequences_fit(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Whoever is admitted finds its whole sequence in the free blocks, beside the watermark and what is reserved."""
    # Another invariant objects to a name that no request has.
    admitted = [name for name in seen.admitted if name in seen.after.requests]
    if not admitted or not config.scheduler_reserve_full_isl or seen.preempted:
        return
    starts = seen.starts
    known = [name for name in seen.after.running if name in seen.after.requests]
    running = [name for name in known if name not in admitted]
    held = {block_id for name in running for block_id in seen.after.requests[name].block_ids}
    for name in admitted:
        request = seen.after.requests[name]
        hit = request.block_ids[: starts.get(name, 0) // config.block_size]
        num_blocks = num_blocks_of_sequence(config, request) - len(hit)
        num_blocks += sum(block_id not in held for block_id in hit)
        num_blocks += config.num_watermark_blocks if running else 0
        num_blocks += num_reserved_blocks(config, seen.after, running)
        num_free = config.num_blocks - len(held)
        if num_blocks > num_free:
            yield f"{name} is admitted, it takes {num_blocks} blocks and {num_free} are free"
        held.update(request.block_ids)
        running.append(name)


# ---- the worker ------------------------------------------------------------------------------------------


@invariant(
    source="vllm/v1/worker/gpu_model_runner.py: _update_states", on=(Schedule,), needs=("worker",)
)
def diff_is_sufficient(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A worker that believes only the scheduler's outputs knows every block table and token count."""
    assert seen.worker is not None, "`needs` says so"
    yield from seen.worker.diff
    if seen.worker.diff:
        return
    for name, table in seen.worker.block_tables.items():
        request = seen.after.requests.get(name)
        if request is not None and table != request.block_ids:
            yield f"the worker believes that {name} holds {table}, the scheduler {request.block_ids}"


@invariant(source=SCHEDULE, on=(Schedule,), needs=("worker",))
def no_step_overwrites_kv(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A step writes KV only into blocks that no other running request holds."""
    assert seen.worker is not None, "`needs` says so"
    yield from seen.worker.writes


@invariant(source=SCHEDULE, on=(Schedule,), needs=("worker",))
def steps_read_what_was_written(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Every token that counts as computed has its KV, of the request's own tokens, written by an executed step."""
    assert seen.worker is not None, "`needs` says so"
    yield from seen.worker.reads


@invariant(source=f"{POOL}.cache_full_blocks", needs=("published_faults",))
def published_blocks_were_written(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A published block was written by an executed step, with the KV of the tokens that it is found by."""
    yield from seen.published_faults or ()


# ---- outputs and ends ------------------------------------------------------------------------------------


@invariant(source="vllm/v1/core/sched/output.py: finished_req_ids")
def finished_ids_are_told_once(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """The next schedule, and only that one, tells the worker who has finished."""
    before, after = seen.before.finished_req_ids, seen.after.finished_req_ids
    ended = [name for name in seen.live if name not in seen.live_after]
    if seen.outcome.output is None:
        if sorted(after) != sorted([*before, *ended]):
            yield f"finished_req_ids is {after}, expected {before} and {ended}"
        return
    if sorted(seen.outcome.output.finished_req_ids) != sorted(before):
        yield f"the worker is told {seen.outcome.output.finished_req_ids}, finished have {before}"
    if after:
        yield f"{after} would be told again"


@invariant(source=UPDATE, on=(UpdateFromOutput,))
def outputs_go_to_the_living(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Each live request that sampled gets exactly one output, its own client; nobody else gets any."""
    step, results = seen.outcome.returned, seen.outcome.results
    assert step is not None and results is not None, "only an update has results"
    received: Counter[str] = Counter()
    for client_index, outputs in results.items():
        for output in outputs:
            name = output.request_id
            received[name] += 1
            if name not in seen.live:
                yield f"{name} receives {output.new_token_ids} after its end"
            elif seen.live[name].new.client_index != client_index:
                yield f"the output of {name} goes to client {client_index}, its owner is {seen.live[name].new.client_index}"
    expected = Counter(name for name in due_outputs(config, seen, step) if name in seen.live)
    if received != expected and all(name in seen.live for name in received):
        yield f"outputs are for {sorted(received.elements())}, due for {sorted(expected.elements())}"


@invariant(source="vllm/v1/core/sched/utils.py: check_stop", on=(UpdateFromOutput,))
def stops_are_in_order(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request stops at the first token that stops it, for the first reason in the dialect's order."""
    assert isinstance(seen.action, UpdateFromOutput), "`on` says so"
    assert seen.outcome.results is not None, "only an update has results"
    for outputs in seen.outcome.results.values():
        for output in outputs:
            live = seen.live.get(output.request_id)
            sampled = seen.action.sampled_token_ids.get(output.request_id, [])
            if live is None:
                continue  # Another invariant objects.
            expected = expected_output(config, live, sampled)
            if output != expected:
                yield (
                    f"{output.request_id} is sent {output.new_token_ids} with finish_reason={output.finish_reason}, "
                    f"expected {expected.new_token_ids} with {expected.finish_reason}"
                )


@invariant(source="vllm/v1/core/sched/scheduler.py: finish_requests", on=(FinishRequests,))
def an_abort_ends_at_once(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """A request that is ended from outside is gone at once, whatever it was doing, and nobody else is touched."""
    assert isinstance(seen.action, FinishRequests), "`on` says so"
    for name in seen.action.request_ids:
        if name in seen.after.requests:
            yield f"{name} was ended, however it is {seen.after.requests[name].status}"
    for name, before in seen.before.requests.items():
        if name not in seen.action.request_ids and seen.after.requests.get(name) != before:
            yield f"{name} was not ended, however it changed to {seen.after.requests.get(name)}"


def due_outputs(config: SchedulerConfig, seen: Transition, step: StepInFlight) -> list[str]:
    """Who is due an output of a step: whoever was handed a token in it, stale ones as the dialect says."""
    assert isinstance(seen.action, UpdateFromOutput), "only an update returns a step"
    sampled = seen.action.sampled_token_ids
    return [
        name
        for name in step.output.num_scheduled_tokens
        if sampled.get(name) and (config.deliver_stale_output or name not in step.voided)
    ]


def expected_output(
    config: SchedulerConfig, live: LiveRequest, sampled: list[int]
) -> EngineCoreOutput:
    """What a request that sampled `sampled` is sent."""
    token_ids = live.token_ids
    for count, token_id in enumerate(sampled, 1):
        token_ids = (*token_ids, token_id)
        reason = find_finish_reason(config, live, token_ids)
        if reason is not None:
            return EngineCoreOutput(live.new.request_id, sampled[:count], reason)
    return EngineCoreOutput(live.new.request_id, list(sampled))


def find_finish_reason(
    config: SchedulerConfig, live: LiveRequest, token_ids: tuple[int, ...]
) -> str | None:
    """The first of the dialect's stop rules that ends a request with these tokens; None if it goes on."""
    new = live.new
    num_output_tokens = len(token_ids) - len(new.prompt_token_ids)
    is_capped = len(token_ids) >= config.max_model_len or num_output_tokens >= new.max_tokens
    is_stop = token_ids[-1] == new.eos_token_id or token_ids[-1] in new.stop_token_ids
    is_early = num_output_tokens < new.min_tokens
    if config.stop_order == "length_stop" and is_capped:
        return "length"
    if config.stop_order != "stop_length" and is_early:
        return None
    if is_stop:
        return "stop"
    if is_capped:
        return "length"
    detection = new.repetition_detection
    output_token_ids = token_ids[len(new.prompt_token_ids) :]
    if not is_early and detection and ends_in_repetition(output_token_ids, detection):
        return "repetition"
    return None


# ---- claims: checked where a configuration asks for them -------------------------------------------------


@invariant(
    source="vllm/config/scheduler.py: scheduler_reserve_full_isl", on=(Schedule,), is_claim=True
)
def prompts_are_not_preempted(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """No admitted prompt is preempted before all of it is computed."""
    for name in seen.preempted:
        before = seen.before.requests.get(name)
        if before is not None and before.num_computed_tokens < before.num_prompt_tokens:
            yield (
                f"{name} was admitted because its {before.num_prompt_tokens} prompt tokens fit, however it is "
                f"preempted with {before.num_computed_tokens} of them computed"
            )
