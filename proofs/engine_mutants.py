"""Wrong versions of our engine, for the theorems that compare it with the spec."""

from __future__ import annotations

from typing import Any

from checkers.planting import Method
from proofs.mutants import mutant

ENGINE = "impl.scheduler:FastScheduler"
ENGINE_POOL = "impl.block_pool:BlockPool"


@mutant(f"{ENGINE}._take_back")
def our_victim_keeps_its_tokens(original: Method) -> Method:
    """What a victim was granted in this step does not return to the budget."""

    def _take_back(self: Any, victim: Any) -> None:
        token_budget = self.token_budget
        original(self, victim)
        self.token_budget = token_budget

    return _take_back


@mutant(f"{ENGINE}._schedule_decodes")
def our_decode_is_not_awaited(original: Method) -> Method:
    """A request that only decodes is scheduled again before its token is known."""

    def _schedule_decodes(self: Any) -> None:
        start = self.req_index
        original(self)
        for request in self.running[start : self.req_index]:
            request.num_output_placeholders = 0

    return _schedule_decodes


@mutant(f"{ENGINE}._has_room_for")
def our_watermark_is_forgotten(original: Method) -> Method:
    """Admission leaves no blocks for those that run."""

    def _has_room_for(self: Any, *args: Any) -> bool:
        running, self.running = self.running, []
        has_room: bool = original(self, *args)
        self.running = running
        return has_room

    return _has_room_for


@mutant(f"{ENGINE}._cursor_follows")
def our_cursor_skips_a_request(original: Method) -> Method:
    """Where a victim that was scheduled leaves a gap, the next request is not looked at."""

    def _cursor_follows(self: Any, victim: Any) -> bool:
        return False

    return _cursor_follows


@mutant(f"{ENGINE}._settle")
def our_stale_token_fills_a_placeholder(original: Method) -> Method:
    """A token of a voided step counts as one that was awaited."""

    def _settle(self: Any, request: Any, num_scheduled_tokens: Any, sampled: Any) -> Any:
        is_stale = request.num_stale_output_tokens > 0
        sent = original(self, request, num_scheduled_tokens, sampled)
        if is_stale and sent is not None:
            request.num_output_placeholders -= 1
        return sent

    return _settle


@mutant(f"{ENGINE}._finish")
def our_end_leaves_its_blocks(original: Method) -> Method:
    """A request that ends while it runs does not give its blocks back."""

    def _finish(self: Any, request: Any, status: Any) -> None:
        free, self.block_pool.free = self.block_pool.free, lambda _: None
        original(self, request, status)
        self.block_pool.free = free

    return _finish


@mutant("impl.request:Request.__init__")
def our_arrival_may_be_longer(original: Method) -> Method:
    """A request may have one token more than asked for."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (it takes its place)
        original(self, *args, **kwargs)
        self.max_num_tokens = self.max_num_tokens + 1

    return __init__


@mutant(f"{ENGINE_POOL}._set_decode_until")
def our_decode_publishes_too_late(original: Method) -> Method:
    """The token that fills a block counts as one that has nothing to publish."""

    def _set_decode_until(self: Any, request: Any) -> None:
        original(self, request)
        request.decode_until += 1

    return _set_decode_until
