"""What the tests of `spec` share: short makers, a driver, walks, and two explorers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from random import Random
from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from spec.actions import (
    AddRequest,
    FinishRequests,
    GrammarReady,
    KVReceived,
    ResetPrefixCache,
    Schedule,
    SetPauseState,
    UpdateFromOutput,
)
from spec.dialects import CHOICES, DIALECTS
from spec.environment import Environment
from spec.interface import (
    EngineCoreOutput,
    NewRequest,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.model import Model
from spec.request import Request
from spec.scheduler import ReferenceScheduler
from spec.snapshot import Snapshot, SpecModel, freeze, rewind, save, thaw
from spec.transition import Outcome


def make_config(**changes: Any) -> SchedulerConfig:
    """Builds a small configuration: blocks of 4, a budget of 16, room for 16 blocks."""
    fields: dict[str, Any] = {
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 32,
        "block_size": 4,
        "num_blocks": 16,
    }
    return SchedulerConfig(**{**fields, **changes})


def make_request(
    request_id: str, prompt: int | tuple[int, ...], max_tokens: int = 8, **fields: Any
) -> NewRequest:
    """Builds a request; a prompt given by its length holds tokens that no other request's has."""
    tokens = prompt if isinstance(prompt, tuple) else (1000 + ord(request_id[0]),) * prompt
    return NewRequest(
        request_id=request_id, prompt_token_ids=tokens, max_tokens=max_tokens, **fields
    )


MAX_STEPS = 1000
"""More steps than any test needs."""


class Driver(Model):
    """The reference scheduler in its environment, with one short call for what a test does."""

    scheduler: ReferenceScheduler

    def __init__(
        self,
        config: SchedulerConfig,
        *requests: NewRequest,
        make_scheduler: type[ReferenceScheduler] = ReferenceScheduler,
    ) -> None:
        super().__init__(None, make_scheduler(config))
        self.num_steps = 0
        for new in requests:
            self.add(new)

    def __getitem__(self, request_id: str) -> Request:
        """The live request of that name."""
        return self.scheduler.requests[request_id]

    @property
    def running(self) -> list[str]:
        """Who runs, in order."""
        return [request.request_id for request in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        """Who waits, in order."""
        return [request.request_id for request in self.scheduler.waiting.items]

    @property
    def num_free_blocks(self) -> int:
        """How many blocks are free."""
        return self.scheduler.block_pool.num_free_blocks

    def add(self, new: NewRequest) -> None:
        """Lets a request arrive."""
        self.do(AddRequest(new))

    def schedule(self) -> SchedulerOutput:
        """Puts a step in flight; a run that does not end fails instead of hanging."""
        self.num_steps += 1
        assert self.num_steps < MAX_STEPS, (
            f"no test needs {MAX_STEPS} steps, so this run never ends"
        )
        output = self.do(Schedule()).output
        assert output is not None, "`schedule` always answers"
        return output

    def update(self, **tokens: int) -> dict[str, EngineCoreOutput]:
        """Lets the oldest step return; who samples gets its token from `tokens`, else a 0."""
        sampled = {name: [tokens.get(name, 0)] for name in self.live_samplers()}
        results = self.do(UpdateFromOutput(sampled)).results or {}
        return {out.request_id: out for outputs in results.values() for out in outputs}

    def step(self, **tokens: int) -> SchedulerOutput:
        """Schedules a step and lets it return at once."""
        output = self.schedule()
        self.update(**tokens)
        return output

    def abort(self, *request_ids: str) -> None:
        """Lets clients disconnect."""
        self.do(FinishRequests(request_ids, RequestStatus.FINISHED_ABORTED))


# ---- walks ---------------------------------------------------------------------------------------

SHAPES = (
    NewRequest(request_id="", prompt_token_ids=(1, 1, 1, 1, 1), max_tokens=5, priority=1),
    NewRequest(request_id="", prompt_token_ids=(1, 1, 2), max_tokens=6, eos_token_id=3),
    NewRequest(request_id="", prompt_token_ids=(1, 1, 1, 1), max_tokens=4, priority=-1),
)
"""Prompts that share prefixes, fill blocks exactly, and outrank each other."""

OPTIONS: dict[str, tuple[Any, ...]] = {
    "max_num_batched_tokens": (5, 8),
    "max_num_seqs": (3, 4),
    "max_model_len": (8, 9),
    "block_size": (1, 2),
    "num_blocks": (7, 10),
    "long_prefill_token_threshold": (0, 3),
    "policy": ("fcfs", "priority"),
    "num_watermark_blocks": (0, 1),
    "num_speculative_tokens": (0, 0, 2),
    "num_lookahead_tokens": (0, 2),
    "num_draft_slots": (0, 1),
    "max_num_partial_prefills": (0, 0, 1, 2),
    "max_long_partial_prefills": (0, 0, 1),
    "max_loras": (0, 0, 1),
    **CHOICES,
    **dict.fromkeys(
        (
            *DIALECTS["vllm-0.33.0-as-released"],
            "enable_prefix_caching",
            "async_scheduling",
            "enable_chunked_prefill",
            "scheduler_reserve_full_isl",
            "reserve_admitted_prefills",
            "load_kv_async",
            "defer_block_free",
            "defer_async_loads",
            "reject_too_large",
        ),
        (False, True),
    ),
}
"""A few values for every field of a configuration, small enough that blocks run out."""


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    """Any combination of `OPTIONS` that makes sense."""
    fields = {name: draw(st.sampled_from(values)) for name, values in OPTIONS.items()}
    if fields["num_speculative_tokens"] == 0:
        fields["num_lookahead_tokens"] = fields["num_draft_slots"] = 0
    if not fields["enable_chunked_prefill"]:
        fields["max_num_batched_tokens"] = 8 + fields["num_draft_slots"]
    if not fields["long_prefill_token_threshold"]:
        fields["max_long_partial_prefills"] = 0
    if not fields["scheduler_reserve_full_isl"]:
        fields["reserve_admitted_prefills"] = False
    fields["pad_admitted_decodes"] &= (
        fields["max_num_batched_tokens"] - fields["num_draft_slots"]
        > fields["num_speculative_tokens"]
    )
    fields["load_kv_async"] &= fields["wait_for_stale_output"]
    if fields["load_kv_async"] and fields["async_scheduling"]:
        fields["defer_block_free"] = True
    fields["defer_async_loads"] &= fields["load_kv_async"] and fields["defer_block_free"]
    return SchedulerConfig(**fields)


def without_loads(config: SchedulerConfig) -> SchedulerConfig:
    """The same configuration, with all KV computed here."""
    return evolve(config, load_kv_async=False, defer_async_loads=False)


def make_environment(config: SchedulerConfig, **changes: Any) -> Environment:
    """The small environment of the walks; three steps in flight if the configuration allows any.

    Where adapters are limited, each shape has another one, and the first has none. Where KV is
    loaded, a store holds that of two tokens of the second, and of all tokens of the third.
    """
    loras = range(len(SHAPES)) if config.max_loras else [0] * len(SHAPES)
    stored = (0, 2, 4) if config.load_kv_async else [0] * len(SHAPES)
    shapes = tuple(
        evolve(shape, lora_id=lora_id, num_remote_tokens=num_remote_tokens)
        for shape, lora_id, num_remote_tokens in zip(SHAPES, loras, stored, strict=True)
    )
    num_drafts = 0 if config.async_scheduling else config.num_speculative_tokens
    fields: dict[str, Any] = {
        "shapes": shapes,
        "max_live_requests": 4,
        "max_in_flight": 3 if config.async_scheduling else 1,
        "sampled_token_ids": (1, 2, 3),
        "draft_token_ids": (1, 2)[:num_drafts],
    }
    return Environment(**{**fields, **changes})


def make_driver_for_walks(
    config: SchedulerConfig, make_scheduler: type[ReferenceScheduler] = ReferenceScheduler
) -> Driver:
    """A driver with the small environment of the walks."""
    driver = Driver(config, make_scheduler=make_scheduler)
    driver.environment = make_environment(config)
    return driver


def _make_choices(seed: int, length: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(2**16) for _ in range(length)]


choices = st.builds(_make_choices, st.integers(0, 2**32), st.integers(0, 120))
"""A walk: at each state, which of the enabled actions happens. Random, since runs must get far."""


WEIGHTS: dict[type, int] = {
    Schedule: 8,
    UpdateFromOutput: 6,
    AddRequest: 4,
    KVReceived: 3,
    FinishRequests: 1,
    SetPauseState: 1,
    GrammarReady: 1,
    ResetPrefixCache: 1,
}
"""How likely each kind of action is in a walk, if it is enabled."""


def walk(model: Model, walk_choices: list[int]) -> Iterator[Outcome]:
    """Drives a model along a walk, stopping after each action: a choice picks a kind, then one."""
    for choice in walk_choices:
        actions = model.enabled_actions()
        kinds = {type(action) for action in actions}
        menu = [kind for kind in WEIGHTS if kind in kinds for _ in range(WEIGHTS[kind])]
        if not menu:
            return
        kind = menu[choice % len(menu)]
        of_kind = [action for action in actions if isinstance(action, kind)]
        yield model.do(of_kind[choice // len(menu) % len(of_kind)])


# ---- steps in flight -----------------------------------------------------------------------------


def tokens_in_flight(model: Driver | SpecModel) -> dict[str, tuple[int, int]]:
    """Each live request's tokens in flight and stale ones, as the scheduler counts them."""
    return {
        name: (request.num_in_flight_tokens, request.num_stale_output_tokens)
        for name, request in model.scheduler.requests.items()
    }


def tokens_of_steps_in_flight(model: Driver | SpecModel) -> dict[str, tuple[int, int]]:
    """The same, added up over the steps in flight and their void parts."""
    return {
        name: (
            sum(step.output.num_scheduled_tokens.get(name, 0) for step in model.in_flight),
            sum(
                step.output.num_scheduled_tokens[name]
                for step in model.in_flight
                if name in step.voided
            ),
        )
        for name in model.scheduler.requests
    }


# ---- explorers -----------------------------------------------------------------------------------


def make_root(config: SchedulerConfig, environment: Environment) -> SpecModel:
    """The state in which nothing has happened yet."""
    environment.check_fits(config)
    return SpecModel(environment, ReferenceScheduler(config))


def explore(root: SpecModel) -> dict[Snapshot, frozenset[Snapshot]]:
    """Visits every state by its canonical value; returns for each the values one action away."""
    successors: dict[Snapshot, frozenset[Snapshot]] = {}
    frontier = [freeze(root)]
    while frontier:
        value = frontier.pop()
        if value not in successors:
            successors[value] = next_values(thaw(root, value))
            frontier.extend(successors[value])
    return successors


def next_values(model: SpecModel) -> frozenset[Snapshot]:
    """The canonical values one action away."""
    saved = save(model)
    values = set()
    for action in model.enabled_actions():
        model.do(action)
        values.add(freeze(model))
        rewind(model, saved)
    return frozenset(values)


def explore_with_names(root: SpecModel) -> Iterator[tuple[Snapshot, frozenset[Snapshot]]]:
    """Visits every state with its real names; yields its value, and those one action away.

    Uses neither `thaw` nor `rewind`: states are copied, and known by all that they hold.
    """
    seen = {spell_out(root)}
    frontier = [root]
    while frontier:
        model = frontier.pop()
        values = set()
        for action in model.enabled_actions():
            after = copy_model(model)
            after.do(action)
            values.add(freeze(after))
            name = spell_out(after)
            if name not in seen:
                seen.add(name)
                frontier.append(after)
        yield freeze(model), frozenset(values)


def copy_model(model: SpecModel) -> SpecModel:
    """A copy that shares nothing with the original."""
    copy: SpecModel = pickle.loads(pickle.dumps(model))
    return copy


def spell_out(model: SpecModel) -> str:
    """Everything that a state holds, with the names that it happens to have."""
    scheduler, pool = model.scheduler, model.pool
    return repr(
        (
            [(request.request_id, request.save()) for request in scheduler.requests.values()],
            [request.request_id for request in scheduler.running],
            [request.request_id for request in scheduler.kv_holding_waiting.items],
            [request.request_id for request in scheduler.waiting.items],
            # Requests tell by their names how many came, chunks do not.
            (
                scheduler.num_waiting_for_streaming_input,
                bool(model.bounds.chunks) and model.num_arrivals,
            ),
            scheduler.finished_req_ids,
            (pool.free_block_queue, pool.num_free_blocks, pool.new_block_ids),
            (pool.ref_cnt, pool.block_hash, pool.cached_blocks),
            model.live,
            model.in_flight,
            (model.pause_state, scheduler.pause_state),
        )
    )
