"""vLLM's own scheduler, unmodified, as a `spec.interface.Scheduler`.

Entry point: `Vllm`. vLLM is imported by `Vllm.prepare`, which costs seconds; no model is loaded and
no device is used (`impl.adapters.vllm_config`). Tried with 0.33.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from impl.adapters.vllm_config import import_vllm, make_scheduler
from impl.adapters.vllm_request import BlockContents, make_request
from spec.interface import (
    CachedRequestData,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    NewRequestData,
    Observation,
    PauseState,
    RequestObservation,
    RequestStatus,
    RetainedBlocks,
    SchedulerConfig,
    SchedulerOutput,
    StreamingUpdate,
)


class Vllm:
    """Shows what vLLM's scheduler has done, and decides nothing.

    | Observation field                     | where vLLM keeps it                                 |
    |---------------------------------------|-----------------------------------------------------|
    | running                               | Scheduler.running                                   |
    | waiting                               | kv_holding_waiting, then waiting                    |
    | status                                | Request.status; once its grammar is compiled,       |
    |                                       | WAITING, as vLLM has it when it next looks          |
    | num_prompt_tokens … num_output_tokens | Request, under the same names                       |
    | num_computed_tokens … num_preemptions | Request, under the same names                       |
    | num_stale_output_tokens               | Request, under the same name                        |
    | num_draft_tokens                      | Request.spec_token_ids                              |
    | block_ids                             | KVCacheManager.get_block_ids                        |
    | num_free_blocks, free_block_ids       | BlockPool.free_block_queue                          |
    | ref_cnt                               | KVCacheBlock.ref_cnt                                |
    | cached_block_ids                      | blocks with a KVCacheBlock.block_hash               |
    | block_contents                        | what was hashed to it, remembered by BlockContents  |
    | finished_req_ids                      | Scheduler.finished_req_ids, a set: sorted           |
    | retained                              | Scheduler.deferred_frees, then finished requests in |
    |                                       | Scheduler.requests: their loads have not ended      |
    | deferred_loads                        | Scheduler.deferred_loads, and what its connector    |
    |                                       | has not told a worker yet                           |

    Of a step's output: `preempted_req_ids` without those whom a reset of the prefix cache
    preempted before, and `new_block_ids_to_zero` as for models whose new blocks must be zeroed.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = make_scheduler(config)
        self.contents = BlockContents(config)
        # Resumable requests as they arrived; a chunk comes as a request of the same name.
        self.sessions: dict[str, NewRequest] = {}
        # What vLLM answered, for the steps in flight, oldest first; they return in order.
        self.in_flight: deque[Any] = deque()
        # Who has ended while a load wrote, in that order; vLLM has them in the order of arrival.
        self.abandoned: list[str] = []

    @staticmethod
    def prepare() -> None:
        """Imports vLLM; raises ImportError if that fails."""
        import_vllm()

    # ---- calls -----------------------------------------------------------------------------------

    def add_request(self, new: NewRequest) -> None:
        """Puts a request into a waiting queue; vLLM's scheduler refuses none."""
        if new.resumable:
            self.sessions[new.request_id] = new
        self.scheduler.add_request(make_request(new, self.contents.hasher_of(new)))

    def schedule(self) -> SchedulerOutput:
        """Lets vLLM plan a step."""
        preempted_by_reset = set(self.scheduler.reset_preempted_req_ids)
        output = self.scheduler.schedule()
        self.in_flight.append(output)
        preempted = output.preempted_req_ids - preempted_by_reset
        return SchedulerOutput(
            num_scheduled_tokens=dict(output.num_scheduled_tokens),
            scheduled_new_reqs={
                new.req_id: NewRequestData(
                    tuple(new.prompt_token_ids), new.num_computed_tokens, list(new.block_ids[0])
                )
                for new in output.scheduled_new_reqs
            },
            scheduled_cached_reqs=_list_cached(output.scheduled_cached_reqs),
            # A set: under FCFS the one preempted last stands first.
            preempted_req_ids=[name for name in reversed(self._waiting()) if name in preempted],
            scheduled_spec_decode_tokens={
                name: list(drafts) for name, drafts in output.scheduled_spec_decode_tokens.items()
            },
            finished_req_ids=sorted(output.finished_req_ids),
            new_block_ids_to_zero=list(output.new_block_ids_to_zero or ()),
            kv_loads=self.scheduler.connector.take_begun() if self.scheduler.connector else {},
        )

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """Lets vLLM settle its oldest step, which is the one that returns."""
        from vllm.v1.outputs import ModelRunnerOutput as Result

        names = list(output.num_scheduled_tokens)
        sampled = [list(result.sampled_token_ids[name]) for name in names]
        results = self.scheduler.update_from_output(
            self.in_flight.popleft(),
            Result(names, {name: index for index, name in enumerate(names)}, sampled),
        )
        return {
            client: [
                EngineCoreOutput(
                    sent.request_id,
                    list(sent.new_token_ids),
                    None if sent.finish_reason is None else str(sent.finish_reason),
                )
                for sent in outputs.outputs
            ]
            for client, outputs in results.items()
        }

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """Ends requests, one by one: vLLM frees those of one call in the order of a set."""
        from vllm.v1.request import RequestStatus as Status

        ids, status = list(request_ids), Status[finished_status.name]
        num_known = sum(name in self.scheduler.requests for name in ids)
        calls = [ids] if num_known < 2 else [[name] for name in ids]
        ended = [r for call in calls for r in self.scheduler.finish_requests(call, status)]
        for name in [request.request_id for request in ended]:
            if name in self.scheduler.requests:
                self.abandoned.append(name)
                if self._store_forgets(name):
                    self.finish_recving(name, 0)

    def update_draft_token_ids(self, draft_token_ids: dict[str, list[int]]) -> None:
        """Hands over drafts."""
        from vllm.v1.outputs import DraftTokenIds

        drafts = [list(token_ids) for token_ids in draft_token_ids.values()]
        self.scheduler.update_draft_token_ids(DraftTokenIds(list(draft_token_ids), drafts))

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Pauses, or goes on."""
        from vllm.v1.core.sched.interface import PauseState as State

        self.scheduler.set_pause_state(State[pause_state.upper()])

    def grammar_ready(self, request_id: str) -> None:
        """Lets the compiler of grammars be done with one."""
        if request_id in self.scheduler.requests:
            self.scheduler.requests[request_id].structured_output_request.grammar = object()

    def finish_recving(self, request_id: str, num_valid_tokens: int) -> None:
        """Lets a load end, as a worker tells it with the result of a step that computes nothing."""
        from vllm.v1.core.sched.output import SchedulerOutput as Output
        from vllm.v1.outputs import KVConnectorOutput
        from vllm.v1.outputs import ModelRunnerOutput as Result

        request = self.scheduler.requests.get(request_id)
        if request is None:
            return
        told = KVConnectorOutput(finished_recving={request_id})
        if request_id in self.abandoned:
            self.abandoned.remove(request_id)
        elif num_valid_tokens == 0:
            told.failed_recving = {request_id}
        elif num_valid_tokens < request.num_computed_tokens:
            block_ids = self._block_ids_of(request_id)
            told.invalid_block_ids = {block_ids[num_valid_tokens // self.scheduler.block_size]}
        self.scheduler.update_from_output(
            Output.make_empty(), Result([], {}, [], kv_connector_output=told)
        )

    def streaming_update(self, request_id: str, update: StreamingUpdate | None) -> None:
        """Hands over a chunk, or closes its request, which one that is not resumable does."""
        if request_id not in self.scheduler.requests:
            return
        new = self.sessions[request_id]
        if update is None:
            chunk = attrs.evolve(new, resumable=False)
        else:
            chunk = attrs.evolve(new, **attrs.asdict(update, recurse=False))
        self.scheduler.add_request(make_request(chunk, None))

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Resets the prefix cache."""
        return bool(self.scheduler.reset_prefix_cache(reset_running_requests))

    # ---- what can be seen ------------------------------------------------------------------------

    def observe(self) -> Observation:
        """Shows the state between two calls."""
        pool = self.scheduler.kv_cache_manager.block_pool
        blocks = [block for block in pool.blocks if not block.is_null]
        contents = {
            block.block_id: self.contents.of_hash(block.block_hash)
            for block in blocks
            if block.block_hash is not None
        }
        return Observation(
            running=[request.request_id for request in self.scheduler.running],
            waiting=self._waiting(),
            requests={
                name: self._observe_request(request)
                for name, request in self.scheduler.requests.items()
                if name not in self.abandoned
            },
            num_free_blocks=pool.get_num_free_blocks(),
            free_block_ids=[b.block_id for b in pool.free_block_queue.get_all_free_blocks()],
            ref_cnt={block.block_id: block.ref_cnt for block in blocks if block.ref_cnt > 0},
            cached_block_ids=sorted(contents),
            finished_req_ids=sorted(self.scheduler.finished_req_ids),
            block_contents=contents,
            retained=list(self._observe_retained()),
            deferred_loads=self._observe_deferred_loads(),
        )

    def _waiting(self) -> list[str]:
        queues = (self.scheduler.kv_holding_waiting, self.scheduler.waiting)
        return [request.request_id for queue in queues for request in queue]

    def _store_forgets(self, request_id: str) -> bool:
        """Whether a load is called off, since no worker has been told of it yet."""
        connector = self.scheduler.connector
        return connector is not None and connector.begun.pop(request_id, None) is not None

    def _block_ids_of(self, request_id: str) -> list[int]:
        return list(self.scheduler.kv_cache_manager.get_block_ids(request_id)[0])

    def _num_steps_to(self, fence: int) -> int:
        num_returned: int = self.scheduler.processed_step_seq
        return max(fence - num_returned, 0)

    def _observe_retained(self) -> Iterator[RetainedBlocks]:
        for fence, blocks in self.scheduler.deferred_frees:
            yield RetainedBlocks([b.block_id for b in blocks], self._num_steps_to(fence))
        for name in self.abandoned:
            fence = self.scheduler.requests[name].last_sched_seq
            yield RetainedBlocks(self._block_ids_of(name), self._num_steps_to(fence), name)

    def _observe_deferred_loads(self) -> dict[str, int]:
        """Loads that no worker has been told of; those that are due are the connector's by now."""
        connector, deferred = self.scheduler.connector, self.scheduler.deferred_loads
        due = dict.fromkeys(connector.begun, 0) if connector else {}
        return due | {name: self._num_steps_to(fence) for name, (fence, *_) in deferred.items()}

    def _observe_request(self, request: Any) -> RequestObservation:
        return RequestObservation(
            status=_status_of(request),
            num_prompt_tokens=request.num_prompt_tokens,
            num_tokens=request.num_tokens,
            num_output_tokens=request.num_output_tokens,
            num_computed_tokens=request.num_computed_tokens,
            num_preemptions=request.num_preemptions,
            num_output_placeholders=request.num_output_placeholders,
            num_in_flight_tokens=request.num_in_flight_tokens,
            block_ids=self._block_ids_of(request.request_id),
            num_stale_output_tokens=request.num_stale_output_tokens,
            num_draft_tokens=len(request.spec_token_ids),
        )


def _status_of(request: Any) -> str:
    name: str = request.status.name
    is_compiled = request.use_structured_output and request.structured_output_request.grammar
    if name == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR.name and is_compiled:
        return RequestStatus.WAITING.name
    return name


def _list_cached(cached: Any) -> dict[str, CachedRequestData]:
    """Turns a list for each field into one entry for each request; no new blocks are None."""
    return {
        name: CachedRequestData(
            name in cached.resumed_req_ids,
            list(cached.new_block_ids[index][0]) if cached.new_block_ids[index] else [],
            cached.num_computed_tokens[index],
        )
        for index, name in enumerate(cached.req_ids)
    }
