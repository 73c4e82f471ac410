"""What can be seen of the reference scheduler from outside.

Entry point: `observe`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec.block_pool import BlockPool
from spec.interface import Observation, RequestObservation, RequestStatus, RetainedBlocks
from spec.request import Request

if TYPE_CHECKING:
    from spec.scheduler import ReferenceScheduler


def observe(scheduler: ReferenceScheduler) -> Observation:
    """Shows a scheduler with a pool of identities."""
    pool = scheduler.block_pool
    assert isinstance(pool, BlockPool), "a counted pool has no blocks to show"
    return Observation(
        running=[request.request_id for request in scheduler.running],
        waiting=[
            request.request_id
            for queue in (scheduler.kv_holding_waiting, scheduler.waiting)
            for request in queue.items
        ],
        requests={
            request.request_id: observe_request(request) for request in scheduler.requests.values()
        },
        num_free_blocks=pool.num_free_blocks,
        free_block_ids=list(pool.free_block_queue),
        ref_cnt={block_id: count for block_id, count in pool.ref_cnt.items() if count > 0},
        cached_block_ids=sorted(pool.block_hash),
        finished_req_ids=list(scheduler.finished_req_ids),
        block_contents=dict(pool.block_hash),
        retained=[
            *[RetainedBlocks(kept.block_ids, kept.num_steps) for kept in scheduler.deferred_frees],
            *[
                RetainedBlocks(kept.block_ids, kept.num_steps, name)
                for name, kept in scheduler.abandoned_loads.items()
            ],
        ],
        deferred_loads={name: load.num_steps for name, load in scheduler.deferred_loads.items()},
    )


def observe_request(request: Request) -> RequestObservation:
    """Shows a request."""
    return RequestObservation(
        STATUS_NAMES[request.status],
        request.num_prompt_tokens,
        request.num_tokens,
        request.num_output_tokens,
        request.num_computed_tokens,
        request.num_preemptions,
        request.num_output_placeholders,
        request.num_in_flight_tokens,
        # Replaced, never changed in place.
        request.block_ids,
        request.num_stale_output_tokens,
        request.num_draft_tokens,
    )


STATUS_NAMES: dict[int, str] = {status: status.name for status in RequestStatus}
