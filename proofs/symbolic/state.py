"""States of the spec with a bounded number of requests: symbolic ones, and plain ones from a model.

Entry points: `Shape`, which says how many of what, and `make_state`, which builds both kinds from
the same names: with `integer` every number is a symbol, with `values_of(model)` it is what the
model says. `injected` lends the spec the `min`, `max` and `len` that do not fork.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

import attrs
import z3
from attrs import define, field, frozen

import spec.block_pool
import spec.lifecycle
import spec.request
import spec.request_queue
import spec.scheduler
from proofs.invariant import StepTokens
from proofs.symbolic.lending import lend_all
from proofs.symbolic.overheard import OverheardScheduler
from proofs.symbolic.pools import AnyHitsPool, PublicationPool
from proofs.symbolic.values import (
    integer,
    is_symbolic,
    symbolic_len,
    symbolic_max,
    symbolic_min,
    value_in,
)
from spec.block_pool import CountedBlockPool
from spec.interface import NewRequest, Policy, RequestStatus, SchedulerConfig
from spec.request import Request

Numbers = Callable[[str], Any]
"""Gives each name its number, symbolic or plain, the same each time."""

SPEC_MODULES: tuple[ModuleType, ...] = (
    spec.scheduler,
    spec.lifecycle,
    spec.block_pool,
    spec.request,
    spec.request_queue,
)
BUILTINS: dict[str, Callable[..., Any]] = {
    "min": symbolic_min,
    "max": symbolic_max,
    "len": symbolic_len,
}


@frozen(kw_only=True)
class Shape:
    """How many requests stand where, and what is fixed; every other number is free."""

    num_running: int
    num_waiting: int
    policy: Policy = "fcfs"
    is_async: bool = False
    pool: Literal["counted", "any_hits", "publication"] = "counted"
    num_steps: int = 1
    """Steps in flight."""
    block_size: int = 16
    """A constant, so that rounding up to blocks stays linear."""
    switches: frozenset[tuple[str, bool | str]] = frozenset()
    """Choices of `SchedulerConfig` that differ from its defaults."""

    @property
    def label(self) -> str:
        """What it is called in a table."""
        words = [f"{self.num_running} running", f"{self.num_waiting} waiting", self.policy]
        words += ["async"] if self.is_async else []
        words += {"counted": [], "any_hits": ["any hits"], "publication": ["cache"]}[self.pool]
        words += [] if self.block_size == 16 else [f"blocks of {self.block_size}"]
        words += [f"{name}={value}" for name, value in sorted(self.switches)]
        return ", ".join(words)

    @property
    def request_ids(self) -> list[str]:
        """The names of the requests, running ones first."""
        return [f"r{number}" for number in range(self.num_running + self.num_waiting)]


@define
class State:
    """The spec between two calls, and the steps in flight."""

    shape: Shape
    numbers: Numbers
    """For what an action or the environment chooses."""
    scheduler: OverheardScheduler
    steps: list[StepTokens] = field(factory=list)
    """Oldest first."""
    notes: list[str] = field(factory=list)
    """What an action has to say to a reader of plain numbers, beside what it leaves behind."""


CONFIG_NUMBERS = (
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "max_num_seqs",
    "max_model_len",
    "num_blocks",
    "long_prefill_token_threshold",
    "num_watermark_blocks",
)
REQUEST_NUMBERS = (
    "num_prompt_tokens",
    "num_output_tokens",
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_stale_output_tokens",
    "num_output_placeholders",
    "num_preemptions",
    "num_blocks",
    "max_tokens",
    "priority",
    "arrival_time",
)


def make_state(
    shape: Shape,
    numbers: Numbers,
    make_scheduler: Callable[
        [SchedulerConfig, CountedBlockPool], OverheardScheduler
    ] = OverheardScheduler,
) -> State:
    """Builds a state of a shape, each number by its name."""
    config = _make_config(shape, numbers)
    scheduler = make_scheduler(config, _make_pool(shape, config, numbers))
    scheduler.block_pool.num_free_blocks = numbers("num_free_blocks")
    for place, request_id in enumerate(shape.request_ids):
        is_running = place < shape.num_running
        request = _make_request(request_id, is_running, numbers)
        scheduler.requests[request_id] = request
        (scheduler.running if is_running else scheduler.waiting.items).append(request)
    steps = [_make_step(shape, number, numbers) for number in range(shape.num_steps)]
    return State(shape, numbers, scheduler, steps)


def make_new_request(request_id: str, numbers: Numbers) -> NewRequest:
    """Builds an arrival; of its prompt only the length is there."""
    num_prompt_tokens = numbers(f"{request_id}.num_prompt_tokens")
    return NewRequest(
        request_id=request_id,
        prompt_token_ids=PromptOfLength(num_prompt_tokens),  # type: ignore[arg-type]
        max_tokens=numbers(f"{request_id}.max_tokens"),
        priority=numbers(f"{request_id}.priority"),
        arrival_time=numbers(f"{request_id}.arrival_time"),
    )


class PromptOfLength:
    """Stands for the tokens of a prompt, which no decision looks at."""

    def __init__(self, num_tokens: Any) -> None:
        self.num_tokens = num_tokens

    def symbolic_len(self) -> Any:
        """Answers `symbolic_len`, which does not insist on a plain integer."""
        return self.num_tokens

    def __len__(self) -> int:
        num_tokens: int = self.num_tokens
        return num_tokens


def _make_config(shape: Shape, numbers: Numbers) -> SchedulerConfig:
    fields: dict[str, Any] = {name: numbers(name) for name in CONFIG_NUMBERS}
    fields |= dict(shape.switches)
    # Symbols are no ints; the invariant asks of them what the validators would. A plain
    # configuration is validated, so the two cannot differ unnoticed.
    lift = (
        attrs.validators.disabled if is_symbolic(fields["num_blocks"]) else contextlib.nullcontext
    )
    with lift():
        return SchedulerConfig(
            block_size=shape.block_size,
            policy=shape.policy,
            async_scheduling=shape.is_async,
            enable_prefix_caching=shape.pool != "counted",
            **fields,
        )


def _make_pool(shape: Shape, config: SchedulerConfig, numbers: Numbers) -> CountedBlockPool:
    if shape.pool == "any_hits":
        return AnyHitsPool(config.num_blocks, config.block_size, numbers)
    if shape.pool == "publication":
        return PublicationPool(config.num_blocks, config.block_size, numbers, shape.request_ids)
    return CountedBlockPool(config.num_blocks)


def _make_request(request_id: str, is_running: bool, numbers: Numbers) -> Request:
    request = Request(NewRequest(request_id=request_id, prompt_token_ids=(), max_tokens=0))
    for name in REQUEST_NUMBERS:
        setattr(request, name, numbers(f"{request_id}.{name}"))
    request.eos_token_id = numbers(f"{request_id}.eos_token_id")
    request.stop_token_ids = (numbers(f"{request_id}.stop_token_id"),)
    request.status = RequestStatus.RUNNING if is_running else numbers(f"{request_id}.status")
    return request


def _make_step(shape: Shape, number: int, numbers: Numbers) -> StepTokens:
    return {name: numbers(f"{name}.step{number}") for name in shape.request_ids}


def values_of(model: z3.ModelRef) -> Numbers:
    """The plain numbers of a model; what it does not mention may be anything, so it is 0."""
    return lambda name: value_in(model, integer(name))


def injected() -> contextlib.AbstractContextManager[None]:
    """Lends the spec's modules the `min`, `max` and `len` that take symbols."""
    return lend_all(dict.fromkeys(SPEC_MODULES, BUILTINS))
