"""What may happen to a scheduler: the calls of `spec.interface.Scheduler`, as values."""

from __future__ import annotations

from attrs import field, frozen

from spec.interface import NewRequest, PauseState, RequestStatus, StreamingUpdate


@frozen
class AddRequest:
    """A request arrives."""

    request: NewRequest
    shape: int = field(default=-1, eq=False)
    """Its place in `Environment.shapes`; -1 outside of a menu."""


@frozen
class Schedule:
    """The engine plans a step, which is in flight from then on."""


@frozen
class UpdateFromOutput:
    """The oldest step in flight returns."""

    sampled_token_ids: dict[str, list[int]]
    """What the live requests that sample in that step get: accepted drafts, and one token more.

    The others sample none.
    """
    draft_token_ids: dict[str, list[int]] = field(factory=dict)
    """What a drafter then guesses to follow, by request. Not with async scheduling."""


@frozen
class FinishRequests:
    """Requests are ended from outside: aborted, or stopped by a stop string."""

    request_ids: tuple[str, ...]
    status: RequestStatus = RequestStatus.FINISHED_ABORTED


@frozen
class SetPauseState:
    """The engine is paused or goes on, as when its weights are exchanged."""

    pause_state: PauseState


@frozen
class GrammarReady:
    """The grammar that a request's output follows is compiled."""

    request_id: str


@frozen
class ResetPrefixCache:
    """The prefix cache is forgotten, as when the weights have changed."""

    reset_running_requests: bool


@frozen
class KVReceived:
    """A load of KV from a remote store has ended."""

    request_id: str
    num_valid_tokens: int
    """So many of the request's first tokens have their KV now, in whole blocks; 0 if nothing of it
    may be used."""


@frozen
class StreamingChunk:
    """The next chunk of a resumable request arrives, or its end."""

    request_id: str
    update: StreamingUpdate | None
    """None closes the request: it ends with the turn that it has begun."""


Control = SetPauseState | GrammarReady | KVReceived | StreamingChunk | ResetPrefixCache
"""What an engine is told beside requests."""
Action = AddRequest | Schedule | UpdateFromOutput | FinishRequests | Control

ACTION_NAMES: dict[type, str] = {
    AddRequest: "add_request",
    Schedule: "schedule",
    UpdateFromOutput: "update_from_output",
    FinishRequests: "finish_requests",
    SetPauseState: "set_pause_state",
    GrammarReady: "grammar_ready",
    KVReceived: "finish_recving",
    StreamingChunk: "streaming_update",
    ResetPrefixCache: "reset_prefix_cache",
}
"""What an action is called in files and reports: the call of `Scheduler` that it makes."""
