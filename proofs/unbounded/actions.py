"""What may happen to any state, as bodies for `proofs.symbolic.prover.Prover.prove`.

Entry points: `prove_action` and the actions. Each starts in any state that satisfies the invariant
and calls the real method; the environment is as free as `spec.model` says, and no freer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import z3
from attrs import define, field, frozen

from proofs.invariant import instances, samplers
from proofs.symbolic.heap import NOWHERE, sum_of
from proofs.symbolic.loops import Loop
from proofs.symbolic.prover import PathDoneError, Prover
from proofs.symbolic.values import SymBool, SymInt, all_of, term
from proofs.unbounded.cuts import CutScheduler, Extra, no_extra
from proofs.unbounded.points import between_steps, general_facts, quantified
from proofs.unbounded.state import (
    FIXED_FIELDS,
    FLIGHT_FIELDS,
    RUNNING,
    STEP_FIELDS,
    Dialect,
    SymbolicOutput,
    injected,
    make_config,
    make_scheduler,
)
from spec.block_pool import CountedBlockPool
from spec.interface import NewRequest, RequestStatus
from spec.scheduler import ReferenceScheduler

Action = Callable[[CutScheduler], None]


@frozen(kw_only=True)
class Question:
    """What is asked about an action beside the invariant; nothing, by default."""

    extras: dict[str, Extra] = field(factory=dict)
    """Claims by place: in a step, "planned" when nothing more is decided, "end" after an action."""
    shows_invariant: bool = True
    """Whether the invariant is obliged, or taken as shown by another theorem."""
    assume: Extra = no_extra
    """What is assumed of the start, beside the invariant."""
    true_of_sums: Extra = no_extra
    """What the sums say of requests that the question is about."""
    front: type[CutScheduler] = CutScheduler
    """Who cuts the loops, and keeps the ghosts that the question is about."""


def prove_action(
    action: Action,
    dialect: Dialect,
    question: Question,
    base: type[ReferenceScheduler] = ReferenceScheduler,
) -> Prover:
    """Discharges what a question obliges of an action, from any state and along every path."""
    prover = Prover()
    said: dict[tuple[Any, ...], dict[str, Any]] = {}

    def body() -> None:
        scheduler = make_scheduler(prover, dialect, question.front, base, said)
        scheduler.add_ghosts()
        scheduler.extras = question.extras
        scheduler.shows_invariant = question.shows_invariant
        scheduler.true_of_sums = question.true_of_sums
        with injected(scheduler):
            _begin(scheduler, action, question)
            action(scheduler)
            _end(scheduler, question)

    prover.prove(body)
    return prover


def _begin(scheduler: CutScheduler, action: Action, question: Question) -> None:
    if action is not schedule:
        # One more step is in flight than when the next one is planned.
        scheduler.num_steps += 1
    scheduler.output = SymbolicOutput(scheduler.memory)  # type: ignore[assignment]
    scheduler.lists["skipped"].empty()
    scheduler.start = scheduler.memory.snapshot()
    scheduler.known_attributes = frozenset({*vars(scheduler), *vars(scheduler.block_pool)}) | {
        "known_attributes"
    }
    scheduler.prover.assume(
        *quantified(scheduler, between_steps).values(),
        *general_facts(scheduler).values(),
        *question.assume(scheduler).values(),
    )


def _end(scheduler: CutScheduler, question: Question) -> None:
    prover = scheduler.prover
    prover.place = "end"
    if question.shows_invariant:
        prover.oblige_all(lambda: quantified(scheduler, between_steps))
    prover.oblige_all(lambda: question.extras.get("end", no_extra)(scheduler))


# ---- the actions ---------------------------------------------------------------------------------


def schedule(scheduler: CutScheduler) -> None:
    """A step is planned."""
    scheduler.schedule()


def add_request(scheduler: CutScheduler) -> None:
    """A request arrives whose name is neither in use nor in a step in flight."""
    prover, memory = scheduler.prover, scheduler.memory
    key = prover.any_integer("arriving")
    num_prompt_tokens = prover.any_integer("num_prompt_tokens")
    max_tokens = prover.any_integer("max_tokens")
    prover.assume(
        memory.select("where", term(key)) == NOWHERE,
        *[memory.select(name, term(key)) == 0 for name in FLIGHT_FIELDS],
        all_of(num_prompt_tokens >= 1, num_prompt_tokens < scheduler.config.max_model_len),
        max_tokens >= 1,
    )
    numbers: dict[str, Any] = {
        name: prover.any_integer(name)
        for name in ("min_tokens", "eos_token_id", "priority", "arrival_time")
    }
    prompt: Any = _TokensOfLength(num_prompt_tokens)
    scheduler.add_request(
        NewRequest(
            request_id=key,  # type: ignore[arg-type]
            prompt_token_ids=prompt,
            max_tokens=max_tokens,  # type: ignore[arg-type]
            **numbers,
        )
    )


def abort(scheduler: CutScheduler) -> None:
    """A request is ended from outside, alive or not; a list of them is this, repeated."""
    key: Any = scheduler.prover.any_integer("aborted")
    scheduler.finish_requests([key], RequestStatus.FINISHED_ABORTED)


def update(scheduler: CutScheduler) -> None:
    """The oldest step in flight returns."""
    step = _Step(scheduler)
    output: Any = step
    result: Any = step
    scheduler.update_from_output(output, result)
    memory = scheduler.memory
    for name, later in pairwise(FLIGHT_FIELDS):
        memory[name] = memory[later]
    memory.clear(FLIGHT_FIELDS[-1])
    scheduler.num_steps -= 1


@frozen
class _TokensOfLength:
    """A prompt of which only the length matters."""

    num_tokens: Any

    def symbolic_len(self) -> Any:
        """Answers `len`."""
        return self.num_tokens


@define
class _Step:
    """The step that returns, as output and as result; an entry that is settled is set to 0."""

    scheduler: CutScheduler
    sampled: list[Any] = field(factory=list)

    @property
    def num_scheduled_tokens(self) -> _Step:
        """Its entries."""
        return self

    @property
    def sampled_token_ids(self) -> _Step:
        """Their tokens."""
        return self

    @property
    def scheduled_spec_decode_tokens(self) -> tuple[Any, ...]:
        """No proof is about drafts, so there are none."""
        return ()

    def items(self) -> Iterator[tuple[SymInt, SymInt]]:
        """Cuts the loop over the entries, of which there are finitely many."""
        scheduler = self.scheduler
        memory, prover = scheduler.memory, scheduler.prover
        loop = self._loop()
        start = loop.enter()
        if prover.any_truth("an entry is left"):
            key = prover.fresh("settled", z3.IntSort())
            num_tokens = SymInt(memory.select(FLIGHT_FIELDS[0], key))
            prover.assume(num_tokens >= 1)
            self.sampled = self._sample(key)
            memory.store(FLIGHT_FIELDS[0], key, z3.IntVal(0))
            yield SymInt(key), num_tokens
            loop.close(start)
            prover.place = "settling again"
            prover.oblige_all(loop.obliged)
            raise PathDoneError
        key = z3.Int("request")
        left = memory.select(FLIGHT_FIELDS[0], key)
        prover.assume(z3.ForAll([key], left == 0, patterns=[left]))

    def __getitem__(self, request_id: Any) -> list[Any]:
        return self.sampled

    def _loop(self) -> Loop:
        scheduler = self.scheduler
        kept = {*FIXED_FIELDS, *STEP_FIELDS, sum_of("scheduled"), *FLIGHT_FIELDS[1:]}
        writes = [name for name in scheduler.memory.cells if name not in kept]
        return scheduler.loop("settling", between_steps, writes)

    def _sample(self, key: Any) -> list[Any]:
        """A running request has sampled if it completed what is known; a void part may have."""
        scheduler = self.scheduler
        request = scheduler.see(key)
        if SymBool(scheduler.memory.select("where", key) == RUNNING):
            has_sampled = bool(samplers(request, scheduler.parts(request))[0])
        else:
            has_sampled = scheduler.prover.any_truth("has sampled")
        return [scheduler.prover.any_integer("token")] if has_sampled else []


def prove_start(dialect: Dialect, base: type[ReferenceScheduler] = ReferenceScheduler) -> Prover:
    """Shows the invariant of a scheduler that was just built, whatever its configuration."""
    prover = Prover()

    def body() -> None:
        config = make_config(prover, dialect)
        scheduler = base(config, CountedBlockPool(config.num_blocks))
        prover.place = "start"
        facts = dict(instances(scheduler))
        prover.assume(facts.pop("the_configuration_makes_sense"))
        prover.oblige_all(lambda: facts)

    prover.prove(body)
    return prover
