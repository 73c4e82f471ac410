"""Streaming input as the environment knows it: which chunks may follow, and whose turn is over.

Entry points: `find_chunks` for what may arrive, `end_turn` and `take_chunk` for the books of a
model, `freeze_sessions` and `thaw_sessions` for the explorer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs

from spec.environment import Environment
from spec.interface import EngineCoreOutput, RequestStatus, StreamingUpdate
from spec.request import Request

if TYPE_CHECKING:
    from spec.snapshot import SpecModel
    from spec.transition import LiveRequest, Transition


def find_chunks(bounds: Environment, live: LiveRequest) -> Iterator[StreamingUpdate | None]:
    """Yields what may be handed over to a live request next: a chunk of the menu, or its end."""
    if live.is_open and len(live.streaming_queue) < bounds.max_queued_chunks:
        for chunk in bounds.chunks:
            if may_take(live, chunk, bounds.max_session_tokens):
                yield chunk
        yield None


def is_resumable(seen: Transition, request_id: str) -> bool:
    """Whether chunks may follow on a request that is alive after an action, or could have."""
    return request_id in seen.live_after and seen.live_after[request_id].new.resumable


def may_take(live: LiveRequest, chunk: StreamingUpdate, max_prompt_tokens: int) -> bool:
    """Whether a prompt stays in bounds that a chunk ends, whatever is kept of the outputs before.

    All are, but for the last of each turn.
    """
    num_tokens = len(live.token_ids)
    if not live.waits_for_chunk:
        num_tokens = len(live.new.prompt_token_ids) + live.new.max_tokens
    for update in live.streaming_queue:
        if update is not None:
            num_tokens += len(update.prompt_token_ids) + update.max_tokens - 1
    return num_tokens - 1 + len(chunk.prompt_token_ids) <= max_prompt_tokens


# ---- the books of a model ------------------------------------------------------------------------


def find_turns(
    live: dict[str, LiveRequest], results: dict[int, list[EngineCoreOutput]]
) -> list[str]:
    """Returns who has been told an end and is alive all the same: only a turn is over."""
    return [
        output.request_id
        for outputs in results.values()
        for output in outputs
        if output.finish_reason is not None and output.request_id in live
    ]


def end_turn(live: LiveRequest) -> LiveRequest | None:
    """A request that was told an end: it goes on with a chunk, or waits for one; else None."""
    if not live.new.resumable or live.streaming_queue[:1] == (None,):
        return None
    waiting = attrs.evolve(live, waits_for_chunk=True)
    if not live.streaming_queue:
        return waiting
    update, *later = live.streaming_queue
    return take_chunk(attrs.evolve(waiting, streaming_queue=tuple(later)), update)


def take_chunk(live: LiveRequest, update: StreamingUpdate | None) -> LiveRequest | None:
    """A request that is handed a chunk, or its end: it takes it at once if it waits for one."""
    if not live.waits_for_chunk:
        return attrs.evolve(live, streaming_queue=(*live.streaming_queue, update))
    if update is None:
        return None
    prompt_token_ids = live.token_ids[:-1] + update.prompt_token_ids
    new = attrs.evolve(
        live.new,
        prompt_token_ids=prompt_token_ids,
        max_tokens=update.max_tokens,
        arrival_time=update.arrival_time,
    )
    return attrs.evolve(live, new=new, token_ids=prompt_token_ids, waits_for_chunk=False)


# ---- canonical values ----------------------------------------------------------------------------


def arrival_times(order: list[Request]) -> list[float]:
    """When requests came, and then when their chunks did that wait their turn."""
    queued = [update for request in order for update in request.streaming_queue]
    return [request.arrival_time for request in order] + [
        update.arrival_time for update in queued if update is not None
    ]


def freeze_sessions(model: SpecModel, order: list[Request]) -> tuple[Any, ...]:
    """What chunks have made of each request, and those that wait their turn; () if there are none.

    Their arrival times are left out.
    """
    if not any(shape.resumable for shape in model.bounds.shapes):
        return ()
    return tuple([_freeze_session(request) if request.resumable else None for request in order])


def _freeze_session(request: Request) -> tuple[Any, ...]:
    queue = [
        None if update is None else (update.prompt_token_ids, update.max_tokens)
        for update in request.streaming_queue
    ]
    return request.num_prompt_tokens, request.max_tokens, tuple(queue)


def thaw_sessions(
    model: SpecModel, order: list[Request], sessions: tuple[Any, ...], ranks: dict[int, int]
) -> None:
    """Makes of requests as they arrived what chunks have made of them.

    `ranks` are those of `arrival_times`.
    """
    place = len(order)
    for request, session in zip(order, sessions, strict=True) if sessions else ():
        if session is None:
            continue
        num_prompt_tokens, max_tokens, chunks = session
        queue: list[StreamingUpdate | None] = []
        for chunk in chunks:
            if chunk is None:
                queue.append(None)
                continue
            time = float(ranks.get(place, 0))
            queue.append(
                StreamingUpdate(prompt_token_ids=chunk[0], max_tokens=chunk[1], arrival_time=time)
            )
            place += 1
        _thaw_session(model, request, num_prompt_tokens, max_tokens, tuple(queue))


def _thaw_session(
    model: SpecModel,
    request: Request,
    num_prompt_tokens: int,
    max_tokens: int,
    queue: tuple[StreamingUpdate | None, ...],
) -> None:
    request.num_prompt_tokens, request.max_tokens = num_prompt_tokens, max_tokens
    request.streaming_queue = queue
    if not model.tokens_matter:
        request.token_ids = (0,) * request.num_tokens
    is_waiting = request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
    model.scheduler.num_waiting_for_streaming_input += is_waiting
    live = model.live[request.request_id]
    new = attrs.evolve(
        live.new, prompt_token_ids=request.token_ids[:num_prompt_tokens], max_tokens=max_tokens
    )
    model.live[request.request_id] = attrs.evolve(
        live,
        new=new,
        token_ids=request.token_ids,
        waits_for_chunk=is_waiting,
        streaming_queue=queue,
    )
