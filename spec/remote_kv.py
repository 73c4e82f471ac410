"""KV that is loaded from a remote store while its request waits.

Entry point: `RemoteKV`, on which `spec.scheduler` plans. A request that begins a load gets blocks
for it and nothing to compute, and waits among those who hold KV. When the transfer has ended it is
looked at again at its turn, as a request that has computed what arrived. Off by default
(`load_kv_async`), as in every proof.

Source: vllm/v1/core/sched/scheduler.py: schedule (load_kv_async), _update_waiting_for_remote_kv,
_update_from_kv_xfer_finished, _update_requests_with_invalid_blocks, _handle_failed_recving,
finish_requests (delay_free_blocks), _drain_deferred_loads, _inflight_prefill_reserved_blocks.

A request whose load has brought nothing gives its blocks up, and the store is asked again. The
release goes on counting it among the prefills in flight (`reserve_for_lost_loads`), so its next
load must leave free what it needs itself, and may be refused for ever.
"""

from __future__ import annotations

from spec.block_pool import CacheHit, CountedBlockPool, cdiv
from spec.deferred_frees import KeptBlocks, WaitsForSteps
from spec.interface import KVLoad, RequestStatus, SchedulerConfig, SchedulerOutput
from spec.lifecycle import RequestLifecycle
from spec.request import Request


class DeferredLoad:
    """A load that begins when steps in flight have returned."""

    __slots__ = ("load", "num_steps")

    def __init__(self, load: KVLoad, num_steps: int) -> None:
        self.load = load
        self.num_steps = num_steps


class RemoteKV(RequestLifecycle):
    """Who waits for KV, and whose blocks a transfer still writes."""

    def __init__(self, config: SchedulerConfig, block_pool: CountedBlockPool | None = None) -> None:
        super().__init__(config, block_pool)
        # In the order of their admission.
        self.deferred_loads: dict[str, DeferredLoad] = {}
        # Blocks of those who have ended while a transfer writes there, in the order of their ends.
        self.abandoned_loads: dict[str, KeptBlocks] = {}

    def finish_recving(self, request_id: str, num_valid_tokens: int) -> None:
        """Notes that a load has ended with so many of its request's first tokens there.

        If its request has ended, too, the blocks are free from now on.
        """
        if request_id in self.abandoned_loads:
            self._free_abandoned(self.abandoned_loads.pop(request_id))
        elif request_id in self.requests and self._is_loading(self.requests[request_id]):
            self.requests[request_id].num_computed_tokens = num_valid_tokens
            self.requests[request_id].is_kv_received = True

    def _free_abandoned(self, kept: KeptBlocks) -> None:
        """Frees blocks that a transfer wrote; they may have to wait for steps in flight, too."""
        if kept.num_steps == 0:
            self.block_pool.free(kept)
        else:
            kept.num_steps = self.num_steps_in_flight
            self.deferred_frees.append(kept)

    def _is_loading(self, request: Request) -> bool:
        """Whether a transfer writes the blocks of a request."""
        return (
            request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
            and not request.is_kv_received
            and request.request_id not in self.deferred_loads
        )

    # ---- the beginning ---------------------------------------------------------------------------

    def _end_of_load(self, request: Request, hit: CacheHit) -> int:
        """Up to which token the store holds KV beyond a prefix hit, in whole blocks; else 0.

        Whoever holds blocks has asked before.
        """
        if not self.config.load_kv_async or request.num_blocks > 0:
            return 0
        num_blocks = request.num_remote_tokens // self.config.block_size
        return num_blocks * self.config.block_size if num_blocks > hit.num_blocks else 0

    def _begin_load(self, request: Request, end: int, hit: CacheHit) -> None:
        """Gives a request the blocks of a load; what is loaded is not zeroed, nor published yet.

        Nothing of it is drafted ahead, so that both sides count the same blocks.
        """
        num_new_blocks = cdiv(end, self.config.block_size) - hit.num_blocks
        block_ids = self.block_pool.allocate(request, hit, num_new_blocks)
        self.block_pool.leave_unzeroed(block_ids)
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.num_computed_tokens = end
        request.is_prefill_chunk = True
        load = KVLoad(hit.num_blocks * self.config.block_size, end, block_ids)
        num_steps = self.num_steps_in_flight if self.config.defer_async_loads else 0
        self.deferred_loads[request.request_id] = DeferredLoad(load, num_steps)

    def _tell_loads(self, output: SchedulerOutput) -> None:
        """Tells the worker of the loads that nothing in flight stands in the way of any more."""
        for request_id, deferred in list(self.deferred_loads.items()):
            if deferred.num_steps == 0:
                output.kv_loads[request_id] = self.deferred_loads.pop(request_id).load

    def _all_who_wait(self) -> list[WaitsForSteps]:
        return [
            *super()._all_who_wait(),
            *self.deferred_loads.values(),
            *self.abandoned_loads.values(),
        ]

    # ---- the end ---------------------------------------------------------------------------------

    def _promote_loaded(self, request: Request) -> None:
        """Lets a request whose load has ended go on with what has arrived, which others may hit.

        The last token is computed here in any case, since a token must be sampled from it. What did
        not arrive will be computed, too. If nothing has, its blocks are free, and it may hit some.
        """
        if not (self.config.load_kv_async and request.is_kv_received):
            return
        request.is_kv_received = False
        request.status = RequestStatus.WAITING
        if request.num_preemptions > 0:
            request.status = RequestStatus.PREEMPTED
        if request.num_computed_tokens == 0:
            request.is_prefill_chunk = self.config.reserve_for_lost_loads
            self.block_pool.free(request)
            return
        self._publish(request, request.num_computed_tokens)
        num_full_blocks = request.num_computed_tokens // self.config.block_size
        self.block_pool.zero(request.block_ids[num_full_blocks:])
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)

    def _free_request_blocks(self, request: Request) -> None:
        """As the parent, but what a transfer writes is kept until it has ended.

        A load that was deferred never began, and nobody will report its end.
        """
        if not self.config.load_kv_async:
            super()._free_request_blocks(request)
            return
        if self._is_loading(request):
            num_steps = 0 if self._can_be_freed(request) else self.num_steps_in_flight
            self.abandoned_loads[request.request_id] = KeptBlocks(request, num_steps)
            return
        deferred = self.deferred_loads.pop(request.request_id, None)
        if deferred is not None and deferred.num_steps > 0:
            self._keep_back(request)
        else:
            super()._free_request_blocks(request)


def num_blocks_of_prefills(config: SchedulerConfig, requests: dict[str, Request]) -> int:
    """Blocks that prompts computed or loaded in part lack, and those of one step of drafts.

    A load holds its blocks for the whole transfer and cannot be preempted. It leaves these alone,
    or two loads might wait for each other's blocks for ever.
    """
    num_blocks = cdiv(num_tokens_of_drafts(config), config.block_size)
    for request in requests.values():
        if request.is_prefill_chunk and (request.num_blocks > 0 or config.reserve_for_lost_loads):
            num_tokens = min(request.num_tokens, config.max_model_len)
            num_required = cdiv(num_tokens + num_tokens_of_drafts(config), config.block_size)
            num_blocks += max(num_required - request.num_blocks, 0)
    return num_blocks


def num_tokens_of_drafts(config: SchedulerConfig) -> int:
    """Tokens of one step beside its prompt: drafts, those ahead of them, and the sampled one."""
    if config.num_speculative_tokens == 0:
        return 0
    return 1 + config.num_speculative_tokens + config.num_lookahead_tokens
