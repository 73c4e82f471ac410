"""The environment of a scheduler: what may happen next, and what is known of it from outside.

Entry point: `Model`, which drives any `spec.interface.Scheduler` through `Action`s and keeps the
books that the checks need: who is alive with which tokens, and which steps are in flight.
"""

from __future__ import annotations

import functools
from itertools import product
from typing import cast, get_args

import attrs

from spec.actions import (
    Action,
    AddRequest,
    Control,
    FinishRequests,
    GrammarReady,
    KVReceived,
    ResetPrefixCache,
    Schedule,
    SetPauseState,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.books import (
    deliver,
    find_padded,
    give_drafts,
    hand_over,
    mark_lost,
    note_compiled,
    start_positions,
    valid_ends,
    void,
)
from spec.environment import Environment
from spec.interface import (
    ControlledScheduler,
    KVLoad,
    ModelRunnerOutput,
    NewRequest,
    PauseState,
    Scheduler,
    SchedulerOutput,
    StreamingUpdate,
)
from spec.sessions import find_chunks, find_turns
from spec.transition import LiveRequest, Outcome, StepInFlight


class Model:
    """A scheduler in its environment. `scheduler` is called by `do` and by nobody else."""

    def __init__(self, environment: Environment | None, scheduler: Scheduler) -> None:
        self.environment = environment
        self.scheduler = scheduler
        # Both are replaced, never changed in place, so that transitions and snapshots may hold
        # them.
        self.live: dict[str, LiveRequest] = {}
        # Who has ended in a step or was aborted, as last known: somebody may still speak of them.
        # Replaced as well, and no part of a state: nothing depends on it but late calls.
        self.ended: dict[str, LiveRequest] = {}
        # Oldest first.
        self.in_flight: tuple[StepInFlight, ...] = ()
        # The loads that have begun and not ended. Replaced as well.
        self.loads: dict[str, KVLoad] = {}
        self.num_arrivals = 0
        self.pause_state: PauseState = "unpaused"

    def enabled_actions(self) -> list[Action]:
        """All that may happen next, in a fixed order."""
        return [
            *self.arrivals(),
            *self.aborts(),
            *([Schedule()] if self.may_schedule() else []),
            *self.updates(),
            *self.controls(),
        ]

    def arrivals(self) -> list[AddRequest]:
        """One arrival for each shape of the menu."""
        bounds = self.bounds
        if len(self.live) >= bounds.max_live_requests or (
            0 < bounds.max_arrivals <= self.num_arrivals
        ):
            return []
        return [self.arrival(shape) for shape in range(len(bounds.shapes))]

    def arrival(self, shape: int) -> AddRequest:
        """The next arrival, of a given shape."""
        return self.make_arrival(shape, self.num_arrivals, self.num_arrivals)

    def make_arrival(self, shape: int, number: int, rank: int) -> AddRequest:
        """An arrival named by its number, with its rank as its time."""
        return AddRequest(_arrive(self.bounds.shapes[shape], number, rank), shape)

    def aborts(self) -> list[FinishRequests]:
        """One abort for each live request."""
        if not self.bounds.with_aborts:
            return []
        return [self.make_abort(request_id) for request_id in self.live]

    def make_abort(self, request_id: str) -> FinishRequests:
        """The abort of one request."""
        return FinishRequests((request_id,))

    def may_schedule(self) -> bool:
        """Whether another step may be put in flight."""
        return bool(self.live) and len(self.in_flight) < self.bounds.max_in_flight

    def updates(self) -> list[UpdateFromOutput]:
        """The oldest step returns: one action for each choice of sampled tokens and drafts."""
        if not self.in_flight:
            return []
        samplers = self.live_samplers()
        new_drafts = self.new_drafts()
        return [
            UpdateFromOutput(
                {name: list(row) for name, row in zip(samplers, rows, strict=True)}, drafts
            )
            for rows in product(*[self.rows(name) for name in samplers])
            for drafts in ([{}, new_drafts] if new_drafts else [{}])
        ]

    def rows(self, request_id: str) -> list[list[int]]:
        """What a request may get from the oldest step: some of its drafts, and one token more.

        Drafts that the worker keeps to itself may be any token, but padding is none.
        A voided step of drafts may also be thrown away, and then it gets nothing. What is dropped
        is any one token.
        """
        step, tokens = self.in_flight[0], self.bounds.sampled_token_ids
        if request_id in step.dropped:
            return [[tokens[0]]]
        drafts = [tokens[0] if draft < 0 else draft for draft in step.drafts_of(request_id)]
        guesses = [] if request_id in step.padded else drafts
        rows = [[*guesses[:n], token] for n in range(len(guesses) + 1) for token in tokens]
        return [*rows, []] if drafts and request_id in step.voided else rows

    def new_drafts(self) -> dict[str, list[int]]:
        """What the live requests of the oldest step may be given as drafts when it returns.

        The drafter does not know who stops, nor who is in the middle of a prompt.
        """
        if not self.bounds.draft_token_ids:
            return {}
        scheduled = self.in_flight[0].output.num_scheduled_tokens
        return {name: list(self.bounds.draft_token_ids) for name in scheduled if name in self.live}

    def live_samplers(self) -> list[str]:
        """Who samples a token in the oldest step in flight and is still alive."""
        return [name for name in self.in_flight[0].samplers if name in self.live]

    def controls(self) -> list[Action]:
        """What the engine may be told beside requests."""
        return [
            *self.pauses(),
            *self.grammars(),
            *self.transfers(),
            *self.chunks(),
            *self.resets(),
        ]

    def pauses(self) -> list[SetPauseState]:
        """The engine is told another pause state than it has."""
        if not self.bounds.with_pauses:
            return []
        return [SetPauseState(state) for state in get_args(PauseState) if state != self.pause_state]

    def grammars(self) -> list[GrammarReady]:
        """One for each live request whose grammar is being compiled."""
        return [GrammarReady(name) for name, live in self.live.items() if live.waits_for_grammar]

    def transfers(self) -> list[KVReceived]:
        """Each load ends: with all that was asked for, with some blocks of it, or with nothing.

        Of those who have ended nobody asks what has arrived.
        """
        return [
            KVReceived(name, num_tokens)
            for name, load in self.loads.items()
            for num_tokens in (valid_ends(load) if name in self.live else [0])
        ]

    def chunks(self) -> list[StreamingChunk]:
        """Chunks of resumable requests, and their ends."""
        is_over = 0 < self.bounds.max_arrivals <= self.num_arrivals
        return [
            self.chunk(name, update)
            for name, live in self.live.items()
            for update in find_chunks(self.bounds, live)
            if update is None or not is_over
        ]

    def chunk(self, request_id: str, update: StreamingUpdate | None) -> StreamingChunk:
        """A chunk of the menu, or the end of a request, as it arrives now."""
        if update is not None:
            update = attrs.evolve(update, arrival_time=float(self.num_arrivals))
        return StreamingChunk(request_id, update)

    def resets(self) -> list[ResetPrefixCache]:
        """The prefix cache is reset, with running requests or without."""
        return [ResetPrefixCache(False), ResetPrefixCache(True)] if self.bounds.with_resets else []

    def late_controls(self) -> list[Action]:
        """What may still be told of those who were aborted, by somebody who has not heard of it.

        A compiler goes on with its grammar, and a client may have sent a chunk or the end of its
        request. A worker tells of each load once, so of those that are over nobody speaks.
        """
        return [
            *[GrammarReady(name) for name, live in self.ended.items() if live.waits_for_grammar],
            *[
                self.chunk(name, update)
                for name, live in self.ended.items()
                for update in find_chunks(self.bounds, live)
            ],
        ]

    @property
    def is_waited_for(self) -> bool:
        """Whether the engine waits for others: the end of a pause or load, a grammar, or input."""
        return (
            self.pause_state != "unpaused"
            or bool(self.loads)
            or any(live.waits_for_grammar or live.waits_for_chunk for live in self.live.values())
        )

    @property
    def bounds(self) -> Environment:
        """The environment; a model that only replays actions has none."""
        assert self.environment is not None, "this model replays actions and has no menu"
        return self.environment

    # ---- doing it --------------------------------------------------------------------------------

    def do(self, action: Action) -> Outcome:
        """Lets an action happen, and keeps the books."""
        if isinstance(action, Schedule):
            return self._schedule()
        if isinstance(action, UpdateFromOutput):
            return self._update(action)
        if isinstance(action, AddRequest):
            return self._add(action)
        if isinstance(action, FinishRequests):
            return self._end(action)
        return self._control(action)

    def _add(self, action: AddRequest) -> Outcome:
        new = action.request
        refusal = self.scheduler.add_request(new)
        self.num_arrivals += 1
        if refusal is not None:
            return Outcome(results={new.client_index: [refusal]})
        arrived = LiveRequest(new, new.prompt_token_ids, action.shape, new.structured_output)
        self.live = {**self.live, new.request_id: arrived}
        if new.request_id in self.ended:
            self.ended = {n: live for n, live in self.ended.items() if n != new.request_id}
        return Outcome()

    def _schedule(self) -> Outcome:
        output = self.scheduler.schedule()
        if output.preempted_req_ids:
            self.in_flight = void(self.in_flight, output.preempted_req_ids)
        step = StepInFlight(output, self._samplers(output), padded=find_padded(output))
        self.in_flight = (*self.in_flight, step)
        if output.kv_loads:
            self.loads = {**self.loads, **output.kv_loads}
        self.live = mark_lost(self.live, [*output.num_scheduled_tokens, *output.kv_loads], False)
        self.live = give_drafts(
            self.live,
            dict.fromkeys([*output.num_scheduled_tokens, *output.preempted_req_ids], ()),
        )
        return Outcome(output=output)

    def _samplers(self, output: SchedulerOutput) -> tuple[str, ...]:
        """A step samples a token for each request all of whose known tokens it completes."""
        starts = start_positions(output)
        return tuple(
            request_id
            for request_id, num_tokens in output.num_scheduled_tokens.items()
            if request_id in self.live
            and starts.get(request_id, 0) + num_tokens >= len(self.live[request_id].token_ids)
        )

    def _update(self, action: UpdateFromOutput) -> Outcome:
        step, *later = self.in_flight
        self.in_flight = tuple(later)
        sampled: dict[str, list[int]] = {name: [] for name in step.output.num_scheduled_tokens}
        sampled.update(action.sampled_token_ids)
        results = self.scheduler.update_from_output(step.output, ModelRunnerOutput(sampled))
        known, self.live = self.live, deliver(self.live, results)
        self._note_ended(known)
        turns = find_turns(self.live, results)
        if turns:
            self.in_flight = void(self.in_flight, turns, drops=True)
        if action.draft_token_ids:
            drafts = action.draft_token_ids
            # Of a step that is void, or whose turn is over, no token follows.
            lost = {*step.voided, *turns}
            scheduler = cast(ControlledScheduler, self.scheduler)
            scheduler.update_draft_token_ids({n: list(ids) for n, ids in drafts.items()})
            self.live = give_drafts(
                self.live,
                {
                    name: tuple(token_ids)
                    for name, token_ids in drafts.items()
                    if name in step.samplers and name not in lost
                },
            )
        return Outcome(results=results, returned=step)

    def _end(self, action: FinishRequests) -> Outcome:
        self.scheduler.finish_requests(list(action.request_ids), action.status)
        known = self.live
        self.live = {name: live for name, live in known.items() if name not in action.request_ids}
        self._note_ended(known)
        return Outcome()

    def _note_ended(self, known: dict[str, LiveRequest]) -> None:
        ended = {name: live for name, live in known.items() if name not in self.live}
        if ended:
            self.ended = {**self.ended, **ended}

    def _control(self, action: Control) -> Outcome:
        scheduler = cast(ControlledScheduler, self.scheduler)
        if isinstance(action, ResetPrefixCache):
            return self._reset(action, scheduler)
        if isinstance(action, SetPauseState):
            scheduler.set_pause_state(action.pause_state)
            self.pause_state = action.pause_state
        elif isinstance(action, KVReceived):
            scheduler.finish_recving(action.request_id, action.num_valid_tokens)
            self.loads = {n: load for n, load in self.loads.items() if n != action.request_id}
            self.live = mark_lost(self.live, [action.request_id], action.num_valid_tokens == 0)
        elif isinstance(action, StreamingChunk):
            scheduler.streaming_update(action.request_id, action.update)
            self.num_arrivals += action.update is not None
            self.live = hand_over(self.live, action.request_id, action.update)
        else:
            scheduler.grammar_ready(action.request_id)
            self.live = note_compiled(self.live, action.request_id)
        return Outcome()

    def _reset(self, action: ResetPrefixCache, scheduler: ControlledScheduler) -> Outcome:
        is_reset = scheduler.reset_prefix_cache(action.reset_running_requests)
        if action.reset_running_requests:
            # Whoever has a part in a step in flight that was not void ran until now. It may run
            # again at once, so what it was sampling is dropped.
            ran = dict.fromkeys(name for step in self.in_flight for name in self._valid_in(step))
            self.in_flight = void(self.in_flight, list(ran), drops=True)
            self.live = give_drafts(self.live, dict.fromkeys(self.live, ()))
        return Outcome(is_reset=is_reset)

    def _valid_in(self, step: StepInFlight) -> list[str]:
        scheduled = step.output.num_scheduled_tokens
        return [name for name in scheduled if name in self.live and name not in step.voided]


@functools.lru_cache(maxsize=4096)
def _arrive(shape: NewRequest, number: int, rank: int) -> NewRequest:
    """A request of the menu under its name; the same few come up in walk after walk."""
    return attrs.evolve(shape, request_id=f"r{number}", arrival_time=float(rank))
