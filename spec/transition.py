"""One action and what was seen of it, with the books before and after.

Entry point: `Transition`, which every invariant and witness judges. What a client and the worker
know of a request is a `LiveRequest`, a step that has not returned a `StepInFlight`; `spec.books`
says how they change.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from spec.actions import Action, ResetPrefixCache, UpdateFromOutput
from spec.books import count_rejected, start_positions
from spec.interface import (
    EngineCoreOutput,
    KVLoad,
    NewRequest,
    Observation,
    PauseState,
    SchedulerOutput,
    StreamingUpdate,
)
from spec.sessions import find_turns
from spec.worker import WorkerReport


@define
class LiveRequest:
    """A request that has arrived and has not ended, as its client knows it.

    Replaced, never changed in place.
    """

    new: NewRequest
    """As it arrived; once a chunk has followed, as if it had arrived with all tokens so far."""
    token_ids: tuple[int, ...]
    """Prompt and delivered output."""
    shape: int = -1
    """Its place in `Environment.shapes`; -1 outside of a menu."""
    waits_for_grammar: bool = False
    """Whether its grammar is still being compiled."""
    draft_token_ids: tuple[int, ...] = ()
    """The drafts that it was given and that no step has taken up."""
    waits_for_chunk: bool = False
    """Streaming input: whether its turn is over, and no chunk has followed."""
    streaming_queue: tuple[StreamingUpdate | None, ...] = ()
    """Chunks that wait until its turn is over; None closes it."""
    has_lost_kv: bool = False
    """Whether its load has brought nothing, and no step or load has begun for it since."""

    @property
    def num_output_tokens(self) -> int:
        """Delivered output tokens."""
        return len(self.token_ids) - len(self.new.prompt_token_ids)

    @property
    def is_open(self) -> bool:
        """Whether chunks may follow."""
        return self.new.resumable and None not in self.streaming_queue

    def receive(self, new_token_ids: list[int]) -> LiveRequest:
        """The request after its client has received more tokens; its drafts are used up."""
        return LiveRequest(
            self.new,
            (*self.token_ids, *new_token_ids),
            self.shape,
            self.waits_for_grammar,
            streaming_queue=self.streaming_queue,
        )


@define
class StepInFlight:
    """A step that is scheduled and has not returned. Replaced, never changed in place."""

    output: SchedulerOutput
    samplers: tuple[str, ...]
    """Who samples a token in it, in order."""
    voided: tuple[str, ...] = ()
    """Whose part a preemption has voided since."""
    dropped: tuple[str, ...] = ()
    """Who of those is sent nothing of it."""
    padded: tuple[str, ...] = ()
    """Whose drafts nobody guessed: it was admitted with them, and all are rejected."""

    def drafts_of(self, request_id: str) -> list[int]:
        """The drafts that it verifies for a request."""
        return self.output.scheduled_spec_decode_tokens.get(request_id, [])


@define
class Outcome:
    """What an engine answered to an action."""

    output: SchedulerOutput | None = None
    """Of `schedule`."""
    results: dict[int, list[EngineCoreOutput]] | None = None
    """Of `update_from_output`, and of an `add_request` that was refused."""
    returned: StepInFlight | None = None
    """The step that `update_from_output` took out of flight."""
    is_reset: bool | None = None
    """Of `reset_prefix_cache`."""


@define
class Transition:
    """One action and what was seen of it: what every invariant and witness judges.

    What several of them ask for is worked out once, when the first one asks.
    """

    action: Action
    before: Observation
    after: Observation
    outcome: Outcome
    live: dict[str, LiveRequest]
    """Who was alive before the action, with which tokens."""
    live_after: dict[str, LiveRequest]
    in_flight: tuple[StepInFlight, ...]
    """Before the action, oldest first."""
    in_flight_after: tuple[StepInFlight, ...]
    worker: WorkerReport | None = None
    """What the ghost worker makes of the step; None without a ghost, or without a step."""
    published_faults: list[str] | None = None
    """What the ghost worker knows against published blocks; None if no ghost follows this run."""
    pause_state: PauseState = "unpaused"
    """What the engine was told last, this action included."""
    loads: dict[str, KVLoad] = field(factory=dict)
    """The loads that had begun and not ended before the action, also of those who have ended."""
    loads_after: dict[str, KVLoad] = field(factory=dict)
    refusing_gate: str | None = field(default=None, init=False)
    """Kept by `spec.gates.find_refusing_gate`."""

    _starts: dict[str, int] | None = field(default=None, init=False)
    _preempted: list[str] | None = field(default=None, init=False)
    _admitted: list[str] | None = field(default=None, init=False)
    _num_holders: dict[int, int] | None = field(default=None, init=False)

    @property
    def num_rejected(self) -> dict[str, int]:
        """How many drafts of each live request are wrong, of those that the step has verified.

        A step that a preemption has voided, or that sampled nothing, says nothing of its drafts.
        """
        step = self.outcome.returned
        if step is None or not isinstance(self.action, UpdateFromOutput):
            return {}
        return count_rejected(step, self.action.sampled_token_ids)

    @property
    def turned(self) -> list[str]:
        """Who was told an end and is alive all the same: a resumable request has ended a turn."""
        return find_turns(self.live_after, self.outcome.results or {})

    @property
    def starts(self) -> dict[str, int]:
        """Where each request's part of the step begins, as the worker is told."""
        if self._starts is None:
            output = self.outcome.output
            self._starts = {} if output is None else start_positions(output)
        return self._starts

    @property
    def preempted(self) -> list[str]:
        """Who lost its place in this step, in order where the engine tells it."""
        if self._preempted is None:
            self._preempted = list(self._find_preempted())
        return self._preempted

    @property
    def admitted(self) -> list[str]:
        """Who came from waiting to running in this step, in the order of running."""
        if self._admitted is None:
            waited = self.before.waiting if self.outcome.output is not None else ()
            self._admitted = [name for name in self.after.running if name in waited]
        return self._admitted

    @property
    def num_holders(self) -> dict[int, int]:
        """Block tables that hold a block after the action, by block, those kept back included."""
        if self._num_holders is None:
            holders: dict[int, int] = {}
            for table in self.after.block_tables:
                for block_id in table:
                    holders[block_id] = holders.get(block_id, 0) + 1
            self._num_holders = holders
        return self._num_holders

    def _find_preempted(self) -> Iterator[str]:
        output = self.outcome.output
        is_reset = isinstance(self.action, ResetPrefixCache)
        if output is None and not is_reset:
            return
        if output is not None and output.preempted_req_ids:
            yield from output.preempted_req_ids
        else:
            waiting = self.after.waiting
            yield from (name for name in reversed(self.before.running) if name in waiting)
