"""The environment of a scheduler: what may happen next, and what is known of it from outside.

Entry point: `Model`, which drives any `spec.interface.Scheduler` through `Action`s and keeps the
books that the checks need: who is alive with which tokens, and which steps are in flight.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import product
from typing import cast, get_args

import attrs
from attrs import define, field, frozen

from spec.books import deliver, give_drafts, start_positions, void
from spec.interface import (
    ConfigError,
    ControlledScheduler,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    Observation,
    PauseState,
    RequestStatus,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    at_least,
    is_bool,
)
from spec.worker import WorkerReport


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


Control = SetPauseState | GrammarReady | ResetPrefixCache
"""What an engine is told beside requests."""
Action = AddRequest | Schedule | UpdateFromOutput | FinishRequests | Control

ACTION_NAMES: dict[type, str] = {
    AddRequest: "add_request",
    Schedule: "schedule",
    UpdateFromOutput: "update_from_output",
    FinishRequests: "finish_requests",
    SetPauseState: "set_pause_state",
    GrammarReady: "grammar_ready",
    ResetPrefixCache: "reset_prefix_cache",
}
"""What an action is called in files and reports: the call of `Scheduler` that it makes."""


@frozen(kw_only=True)
class Environment:
    """The bounds of what may happen. Raises `ConfigError` if they make no sense."""

    shapes: tuple[NewRequest, ...]
    """The menu of arrivals; id and arrival time are set when one arrives."""
    max_live_requests: int = field(
        validator=at_least(1, "somebody must be able to arrive, so raise it")
    )
    """The most requests alive at once; their number over time is not bounded."""
    max_in_flight: int = field(
        default=1, validator=at_least(1, "a step must be able to run, so raise it")
    )
    """Steps in flight at once: 1 is synchronous, more needs `async_scheduling`."""
    sampled_token_ids: tuple[int, ...] = (0,)
    """The tokens that a step may sample; with a stop token among them, requests may always stop."""
    draft_token_ids: tuple[int, ...] = ()
    """Speculative decoding: when a step returns, its requests are given these drafts, or none.

    With async scheduling the worker keeps its drafts to itself, so there are none here.
    """
    with_aborts: bool = field(default=True, validator=is_bool)
    """Whether clients may disconnect."""
    with_pauses: bool = field(default=False, validator=is_bool)
    """Whether the engine may be paused, in part or wholly, and go on."""
    with_resets: bool = field(default=False, validator=is_bool)
    """Whether the prefix cache may be reset, with running requests or without."""
    max_arrivals: int = field(default=0, validator=at_least(0, "0 is no limit"))
    """The most requests over all time; 0 is no limit. Only to test that renaming loses nothing."""

    def __attrs_post_init__(self) -> None:
        if not self.shapes:
            raise ConfigError("shapes is empty, so nothing ever arrives; name at least one")
        if not self.sampled_token_ids:
            raise ConfigError(
                "sampled_token_ids is empty, so no step can return; name at least one token"
            )
        for shape in self.shapes:
            if not shape.prompt_token_ids:
                raise ConfigError("a shape has an empty prompt; give it at least one token")
            if shape.max_tokens < 1:
                raise ConfigError(f"a shape has max_tokens={shape.max_tokens}, below 1; raise it")

    def check_fits(self, config: SchedulerConfig) -> None:
        """Raises `ConfigError` if an arrival or a depth breaks a precondition of `config`."""
        for shape in self.shapes:
            if len(shape.prompt_token_ids) >= config.max_model_len:
                raise ConfigError(
                    f"a shape has {len(shape.prompt_token_ids)} prompt tokens, "
                    f"max_model_len={config.max_model_len} leaves no room for an output token; "
                    "shorten it, or raise max_model_len"
                )
        if self.with_resets and not config.enable_prefix_caching:
            raise ConfigError(
                "with_resets=True needs enable_prefix_caching=True, or there is nothing to reset; "
                "switch both on or both off"
            )
        if self.max_in_flight > 1 and not config.async_scheduling:
            raise ConfigError(
                f"max_in_flight={self.max_in_flight} needs async_scheduling=True; "
                "switch it on, or keep one step in flight"
            )
        if len(self.draft_token_ids) > config.num_speculative_tokens:
            raise ConfigError(
                f"draft_token_ids={list(self.draft_token_ids)} are more than "
                f"num_speculative_tokens={config.num_speculative_tokens}; name fewer, or raise that"
            )
        if self.draft_token_ids and config.async_scheduling:
            raise ConfigError(
                f"draft_token_ids={list(self.draft_token_ids)} are told to no scheduler with "
                "async_scheduling=True; leave them out, or switch it off"
            )


@define
class LiveRequest:
    """A request that has arrived and has not ended, as its client knows it.

    Replaced, never changed in place.
    """

    new: NewRequest
    token_ids: tuple[int, ...]
    """Prompt and delivered output."""
    shape: int = -1
    """Its place in `Environment.shapes`; -1 outside of a menu."""
    waits_for_grammar: bool = False
    """Whether its grammar is still being compiled."""
    draft_token_ids: tuple[int, ...] = ()
    """The drafts that it was given and that no step has taken up."""

    @property
    def num_output_tokens(self) -> int:
        """Delivered output tokens."""
        return len(self.token_ids) - len(self.new.prompt_token_ids)

    def receive(self, new_token_ids: list[int]) -> LiveRequest:
        """The request after its client has received more tokens; its drafts are used up."""
        token_ids = (*self.token_ids, *new_token_ids)
        return LiveRequest(self.new, token_ids, self.shape, self.waits_for_grammar)


@define
class StepInFlight:
    """A step that is scheduled and has not returned. Replaced, never changed in place."""

    output: SchedulerOutput
    samplers: tuple[str, ...]
    """Who samples a token in it, in order."""
    voided: tuple[str, ...] = ()
    """Whose part a preemption has voided since."""

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
        if step is None or not step.output.scheduled_spec_decode_tokens:
            return {}
        assert isinstance(self.action, UpdateFromOutput), "only an update returns a step"
        return {
            name: len(drafts) + 1 - len(self.action.sampled_token_ids[name])
            for name, drafts in step.output.scheduled_spec_decode_tokens.items()
            if self.action.sampled_token_ids.get(name) and name not in step.voided
        }

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
        """Block tables that hold a block after the action, by block."""
        if self._num_holders is None:
            holders: dict[int, int] = {}
            for request in self.after.requests.values():
                for block_id in request.block_ids:
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


class Model:
    """A scheduler in its environment. `scheduler` is called by `do` and by nobody else."""

    def __init__(self, environment: Environment | None, scheduler: Scheduler) -> None:
        self.environment = environment
        self.scheduler = scheduler
        # Both are replaced, never changed in place, so that transitions and snapshots may hold
        # them.
        self.live: dict[str, LiveRequest] = {}
        # Oldest first.
        self.in_flight: tuple[StepInFlight, ...] = ()
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

        Drafts that the worker keeps to itself may be any token. A voided step of drafts may also be
        thrown away, and then it gets nothing.
        """
        step, tokens = self.in_flight[0], self.bounds.sampled_token_ids
        drafts = [tokens[0] if draft < 0 else draft for draft in step.drafts_of(request_id)]
        rows = [[*drafts[:n], token] for n in range(len(drafts) + 1) for token in tokens]
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
        return [*self.pauses(), *self.grammars(), *self.resets()]

    def pauses(self) -> list[SetPauseState]:
        """The engine is told another pause state than it has."""
        if not self.bounds.with_pauses:
            return []
        return [SetPauseState(state) for state in get_args(PauseState) if state != self.pause_state]

    def grammars(self) -> list[GrammarReady]:
        """One for each live request whose grammar is being compiled."""
        return [GrammarReady(name) for name, live in self.live.items() if live.waits_for_grammar]

    def resets(self) -> list[ResetPrefixCache]:
        """The prefix cache is reset, with running requests or without."""
        return [ResetPrefixCache(False), ResetPrefixCache(True)] if self.bounds.with_resets else []

    @property
    def is_waited_for(self) -> bool:
        """Whether the engine has to wait for others: for the end of a pause, or for a grammar."""
        return self.pause_state != "unpaused" or any(
            live.waits_for_grammar for live in self.live.values()
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
        return Outcome()

    def _schedule(self) -> Outcome:
        output = self.scheduler.schedule()
        if output.preempted_req_ids:
            self.in_flight = tuple(
                [void(step, output.preempted_req_ids) for step in self.in_flight]
            )
        self.in_flight = (*self.in_flight, StepInFlight(output, self._samplers(output)))
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
        self.live = deliver(self.live, results)
        if action.draft_token_ids:
            drafts = action.draft_token_ids
            scheduler = cast(ControlledScheduler, self.scheduler)
            scheduler.update_draft_token_ids({n: list(ids) for n, ids in drafts.items()})
            self.live = give_drafts(
                self.live, {n: tuple(ids) for n, ids in drafts.items() if n in step.samplers}
            )
        return Outcome(results=results, returned=step)

    def _end(self, action: FinishRequests) -> Outcome:
        self.scheduler.finish_requests(list(action.request_ids), action.status)
        self.live = {
            name: live for name, live in self.live.items() if name not in action.request_ids
        }
        return Outcome()

    def _control(self, action: Control) -> Outcome:
        scheduler = cast(ControlledScheduler, self.scheduler)
        if isinstance(action, ResetPrefixCache):
            return self._reset(action, scheduler)
        if isinstance(action, SetPauseState):
            scheduler.set_pause_state(action.pause_state)
            self.pause_state = action.pause_state
        else:
            scheduler.grammar_ready(action.request_id)
            compiled = attrs.evolve(self.live[action.request_id], waits_for_grammar=False)
            self.live = {**self.live, action.request_id: compiled}
        return Outcome()

    def _reset(self, action: ResetPrefixCache, scheduler: ControlledScheduler) -> Outcome:
        is_reset = scheduler.reset_prefix_cache(action.reset_running_requests)
        if action.reset_running_requests:
            # Whoever has a part in a step in flight that was not void ran until now.
            self.in_flight = tuple([void(step, self._valid_in(step)) for step in self.in_flight])
            self.live = give_drafts(self.live, dict.fromkeys(self.live, ()))
        return Outcome(is_reset=is_reset)

    def _valid_in(self, step: StepInFlight) -> list[str]:
        scheduled = step.output.num_scheduled_tokens
        return [name for name in scheduled if name in self.live and name not in step.voided]


@functools.lru_cache(maxsize=4096)
def _arrive(shape: NewRequest, number: int, rank: int) -> NewRequest:
    """A request of the menu under its name; the same few come up in walk after walk."""
    return attrs.evolve(shape, request_id=f"r{number}", arrival_time=float(rank))
