"""KV that a remote store brings while its request waits, and who holds blocks for it.

Entry point: `RemoteKV`, on which `impl.scheduler` plans. Nothing of it happens without
`load_kv_async`.
"""

from __future__ import annotations

from impl.block_pool import CacheHit
from impl.lifecycle import RequestLifecycle
from impl.request import Request
from spec.interface import (
    KVLoad,
    RequestStatus,
    RetainedBlocks,
    SchedulerConfig,
    SchedulerOutput,
)


class RemoteKV(RequestLifecycle):
    """Loads from their beginning to their end."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        # Requests whose load has ended, until they are looked at again.
        self.finished_recving: set[str] = set()
        # Loads that have not begun, with their fences, in the order of admission.
        self.deferred_loads: dict[str, tuple[int, KVLoad]] = {}
        # Blocks of those who have ended before their load, with the fences of their own steps.
        self.abandoned_loads: dict[str, tuple[int, list[int]]] = {}
        # Whose prompt is computed or loaded in part. What they lack is left alone by loads.
        self.inflight_prefills: set[Request] = set()

    def finish_recving(self, request_id: str, num_valid_tokens: int) -> None:
        """Notes the end of a load; frees its blocks if its request has ended already."""
        request = self.requests.get(request_id)
        if request_id in self.abandoned_loads:
            self._free_abandoned(request_id)
        elif request is not None and self._is_loading(request):
            request.num_computed_tokens = num_valid_tokens
            self.finished_recving.add(request_id)

    def _free_abandoned(self, request_id: str) -> None:
        fence, block_ids = self.abandoned_loads.pop(request_id)
        if fence > self.processed_step_seq:
            self._defer(block_ids)
        else:
            self.block_pool.free_blocks(reversed(block_ids))

    def _is_loading(self, request: Request) -> bool:
        """Whether a transfer writes a request's blocks now."""
        return (
            self._is_waiting_for_kv(request)
            and request.request_id not in self.finished_recving
            and request.request_id not in self.deferred_loads
        )

    def _is_waiting_for_kv(self, request: Request) -> bool:
        return request.status == RequestStatus.WAITING_FOR_REMOTE_KVS

    # ---- the beginning ---------------------------------------------------------------------------

    def _end_of_load(self, request: Request, hit: CacheHit) -> int:
        """Up to which token the store holds full blocks beyond a hit; 0 if it is of no use."""
        if not self.config.load_kv_async or request.block_ids:
            return 0
        num_blocks = request.num_remote_tokens // self.config.block_size
        return num_blocks * self.config.block_size if num_blocks > len(hit.block_ids) else 0

    def _begin_load(self, request: Request, end: int, hit: CacheHit) -> None:
        """Gives a request the blocks of its load, which are neither zeroed nor published yet."""
        pool = self.block_pool
        num_new_blocks = pool.compute_num_new_blocks(request, end, hit)
        block_ids = pool.allocate(request, num_new_blocks, hit)
        pool.leave_unzeroed(num_new_blocks)
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.num_computed_tokens = end
        self.inflight_prefills.add(request)
        start = end - num_new_blocks * self.config.block_size
        fence = self.sched_step_seq if self.config.defer_async_loads else 0
        self.deferred_loads[request.request_id] = (fence, KVLoad(start, end, list(block_ids)))

    def _tell_loads(self, output: SchedulerOutput) -> None:
        """Lets the loads begin for which all steps that were in flight have returned."""
        loads = self.deferred_loads.items()
        due = [name for name, (fence, _) in loads if fence <= self.processed_step_seq]
        output.kv_loads = {name: self.deferred_loads.pop(name)[1] for name in due}

    def _num_blocks_of_prefills(self) -> int:
        """Blocks that unfinished prefills and loads still need, and those of a step of drafts."""
        num_beside = self._num_tokens_beside()
        num_blocks = self.block_pool.num_blocks_for(num_beside)
        for request in self.inflight_prefills:
            num_tokens = min(request.num_tokens, self.config.max_model_len) + num_beside
            num_blocks += self.block_pool.compute_num_new_blocks(request, num_tokens)
        return num_blocks

    def _num_tokens_beside(self) -> int:
        """What a step of drafts adds to the known tokens of a request."""
        config = self.config
        if config.num_speculative_tokens == 0:
            return 0
        return 1 + config.num_speculative_tokens + config.num_lookahead_tokens

    def _forget_finished_prefills(self) -> None:
        """At the end of a step: whoever runs and has computed all that it knows is through."""
        self.inflight_prefills = {
            request
            for request in self.inflight_prefills
            if request.status != RequestStatus.RUNNING
            or request.num_computed_tokens < request.num_tokens
        }

    # ---- the end ---------------------------------------------------------------------------------

    def _promote_loaded(self, request: Request) -> None:
        """Lets a request whose load has ended go on with what has arrived.

        A token must be sampled, so the last one is computed here even if it was loaded.
        """
        if request.request_id not in self.finished_recving:
            return
        self.finished_recving.remove(request.request_id)
        is_resumed = request.num_preemptions > 0
        request.status = RequestStatus.PREEMPTED if is_resumed else RequestStatus.WAITING
        num_tokens = request.num_computed_tokens
        if num_tokens == 0:
            self._forget_lost(request)
            return
        self.block_pool.cache_full_blocks(request, num_tokens)
        self.block_pool.zero(request.block_ids[num_tokens // self.config.block_size :])
        request.num_computed_tokens = min(num_tokens, request.num_tokens - 1)

    def _forget_lost(self, request: Request) -> None:
        """Nothing has arrived: the blocks are free, and nothing is reserved for the request."""
        if not self.config.reserve_for_lost_loads:
            self.inflight_prefills.discard(request)
        self.block_pool.free(request)

    def _free_request_blocks(self, request: Request) -> None:
        """As the parent, unless a transfer still writes the blocks."""
        if not self.config.load_kv_async:
            super()._free_request_blocks(request)
            return
        name = request.request_id
        self.inflight_prefills.discard(request)
        if self._is_loading(request):
            fence = 0 if self._can_be_freed(request) else self.sched_step_seq
            self.abandoned_loads[name] = (fence, self.block_pool.pop_blocks(request))
            return
        self.finished_recving.discard(name)
        fence, _ = self.deferred_loads.pop(name, (0, None))
        if fence > self.processed_step_seq:
            self._defer(self.block_pool.pop_blocks(request))
        else:
            super()._free_request_blocks(request)

    # ---- seen from outside -----------------------------------------------------------------------

    def _observe_retained(self) -> list[RetainedBlocks]:
        """Blocks of nobody that are not free yet."""
        kept = [
            RetainedBlocks(list(block_ids), self._num_steps_to(fence))
            for fence, block_ids in self.deferred_frees
        ]
        return kept + [
            RetainedBlocks(list(block_ids), self._num_steps_to(fence), name)
            for name, (fence, block_ids) in self.abandoned_loads.items()
        ]

    def _num_steps_to(self, fence: int) -> int:
        return max(fence - self.processed_step_seq, 0)
