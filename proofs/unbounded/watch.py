"""The same claims on plain integers: random runs of the spec, watched at every point.

Entry point: `find_breach`. It tells whether a claim that was not proved is wrong (a run shows it)
or only too hard, and whether the claims that are assumed ever hold at all. A breach is a fact; that
none was found is none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import z3
from attrs import define, field, frozen

from proofs.invariant import StepTokens
from proofs.symbolic.values import symbolic_len
from proofs.theorem import Failure, Say, be_quiet
from proofs.unbounded.points import (
    Point,
    advancing,
    between_steps,
    broken_claims,
    in_pass_1,
    in_pass_2,
    making_room,
    num_left,
)
from proofs.unbounded.state import Dialect
from spec.block_pool import CountedBlockPool
from spec.interface import NewRequest, SchedulerConfig, SchedulerOutput
from spec.model import Action, AddRequest, Environment, FinishRequests, Model, Schedule
from spec.request import Request
from spec.scheduler import ReferenceScheduler, cdiv

NUM_RUNS = 120
NUM_ACTIONS = 40


class BreachError(Exception):
    """A claim does not hold."""


class WatchedScheduler(ReferenceScheduler):
    """The reference scheduler; raises `BreachError` where a point does not hold."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.steps: list[StepTokens] = []
        # How far the loop over running requests at the end of a step has come.
        self.cursor = 0
        # Requests that pass 1 had yet to look at before its rule began.
        self.num_left = 0
        # Points that were looked at, and how often.
        self.num_looks: dict[str, int] = {}
        counted = CountedBlockPool(config.num_blocks)
        super().__init__(config, None if config.enable_prefix_caching else counted)

    def total(self, name: str) -> int:
        """The sum of a field over all requests."""
        if name == "scheduled":
            return sum(self.output.num_scheduled_tokens.values())
        return sum(getattr(request, name) for request in self.requests.values())

    def parts(self, request: Any) -> list[int]:
        """The tokens of a request in each step in flight, oldest first."""
        return [step.get(request.request_id, 0) for step in self.steps]

    def look(self, place: str, point: Point) -> None:
        """Raises `BreachError` if a claim of a point does not hold here."""
        self.num_looks[place] = self.num_looks.get(place, 0) + 1
        for name in broken_claims(self, point):
            raise BreachError(f"{place}: {name}")

    def _schedule_next_running(self) -> bool:
        self.num_left = num_left(self)
        return self._watch(
            "pass 1", in_pass_1, lambda: num_left(self), super()._schedule_next_running
        )

    def _preempt_next_for(self, request: Request, num_new_tokens: int) -> bool:
        point = making_room(request, num_new_tokens, self.num_left)
        return self._watch(
            "making room",
            point,
            lambda: len(self.running),
            lambda: super(WatchedScheduler, self)._preempt_next_for(request, num_new_tokens),
        )

    def _choose_victim(self) -> Request:
        victim = super()._choose_victim()
        if self.config.policy == "priority":
            ranks = [(request.priority, request.arrival_time) for request in self.running]
            if ranks.index(max(ranks)) != self.running.index(victim):
                raise BreachError("choosing: the victim is the first of those served last")
        return victim

    def _admit_next_waiting(self) -> bool:
        return self._watch(
            "pass 2", in_pass_2, lambda: len(self.waiting.items), super()._admit_next_waiting
        )

    def _put_back_next_skipped(self) -> bool:
        return self._watch(
            "putting back", in_pass_2, lambda: len(self.skipped), super()._put_back_next_skipped
        )

    def _advance(self, request: Request) -> None:
        self.cursor = self.running.index(request)
        self.look("advancing", advancing)
        super()._advance(request)

    def _watch(
        self, place: str, point: Point, variant: Callable[[], int], rule: Callable[[], bool]
    ) -> bool:
        self.look(place, point)
        before = variant()
        goes_on = rule()
        if goes_on and not (before >= 1 and variant() < before):
            raise BreachError(f"{place}: the loop ends")
        return goes_on


@frozen
class Seen:
    """A scheduler before a step."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    not_ready: frozenset[str]
    """Those of `waiting` whose voided steps are in flight."""
    at_the_end: frozenset[str]
    """Those of `running` that sample their last token in a step in flight."""
    num_computed_tokens: dict[str, int]
    protects_prompts: bool
    """Whether the gate is reserve-aware, and nobody who runs has an output token, known or not."""
    num_spare_blocks: int
    """Free blocks less those that running prompts lack."""


def see(scheduler: ReferenceScheduler) -> Seen:
    """Looks at a scheduler."""
    return Seen(
        tuple(request.request_id for request in scheduler.running),
        tuple(request.request_id for request in scheduler.waiting.items),
        frozenset(
            request.request_id
            for request in scheduler.waiting.items
            if request.num_stale_output_tokens > 0
        ),
        frozenset(
            request.request_id
            for request in scheduler.running
            if request.num_computed_tokens >= scheduler.config.max_model_len - 1
            or _samples_its_last_token(request)
        ),
        {name: request.num_computed_tokens for name, request in scheduler.requests.items()},
        scheduler.config.reserve_admitted_prefills
        and not any(
            request.num_output_tokens + request.num_output_placeholders
            for request in scheduler.running
        ),
        scheduler.block_pool.num_free_blocks
        - sum(_num_lacked_blocks(scheduler.config, request) for request in scheduler.running),
    )


def _num_lacked_blocks(config: SchedulerConfig, request: Request) -> int:
    """Blocks that a request without output lacks for its prompt."""
    if request.num_output_tokens > 0:
        return 0
    return max(cdiv(request.num_prompt_tokens, config.block_size) - request.num_blocks, 0)


def _samples_its_last_token(request: Request) -> bool:
    num_placeholders = request.num_output_placeholders
    num_tokens_at_most = request.num_prompt_tokens + request.max_tokens
    return num_placeholders > 0 and (
        request.num_computed_tokens + 2 - num_placeholders >= num_tokens_at_most
    )


Judge = Callable[[Seen, Seen, SchedulerOutput], Iterator[str]]
"""Says what is wrong about a step: what was before, what is after, and the answer."""


@define
class Run:
    """One random run."""

    model: Model
    scheduler: WatchedScheduler
    judges: Sequence[Judge]
    done: list[str] = field(factory=list)

    def do(self, action: Action) -> None:
        """Lets an action happen, and raises `BreachError` if something does not hold."""
        self.done.append(describe(action))
        before = see(self.scheduler)
        outcome = self.model.do(action)
        self.scheduler.steps = [
            dict(step.output.num_scheduled_tokens) for step in self.model.in_flight
        ]
        self.scheduler.look("between steps", between_steps)
        if outcome.output is not None:
            self.done.append(f"  {outcome.output.num_scheduled_tokens}")
            after = see(self.scheduler)
            for judge in self.judges:
                for sentence in judge(before, after, outcome.output):
                    raise BreachError(sentence)


def describe(action: Action) -> str:
    """Says what happens, in short."""
    if isinstance(action, AddRequest):
        new = action.request
        return f"{new.request_id} arrives with {len(new.prompt_token_ids)} prompt tokens"
    if isinstance(action, FinishRequests):
        return f"{', '.join(action.request_ids)} is aborted"
    return "schedule" if isinstance(action, Schedule) else "the oldest step returns"


def find_breach(
    dialects: Sequence[Dialect], judges: Sequence[Judge] = (), say: Say = be_quiet
) -> Failure | None:
    """Looks for a run in which a point or a judge is broken; the same runs each time."""
    for dialect in dialects:
        for seed in range(NUM_RUNS):
            say(f"{dialect.name}, run {seed + 1} of {NUM_RUNS}")
            failure = run_once(dialect, judges, seed)[1]
            if failure is not None:
                return failure
    return None


def run_once(
    dialect: Dialect, judges: Sequence[Judge], seed: int
) -> tuple[dict[str, int], Failure | None]:
    """Makes one random run; returns how often each point was looked at, and the breach, if any."""
    rng = random.Random(seed)
    config = draw_config(rng, dialect)
    scheduler = WatchedScheduler(config)
    run = Run(Model(draw_environment(rng, config), scheduler), scheduler, judges)
    try:
        scheduler.look("between steps", between_steps)
        for _ in range(NUM_ACTIONS):
            run.do(draw_action(rng, run.model))
    except BreachError as breach:
        return scheduler.num_looks, _failure(str(breach), run, seed)
    return scheduler.num_looks, None


def draw_config(rng: random.Random, dialect: Dialect) -> SchedulerConfig:
    """Draws a small configuration whose pool holds the longest request."""
    max_model_len, block_size = rng.randint(4, 10), rng.randint(1, 4)
    longest = cdiv(max_model_len, block_size)
    switches: dict[str, Any] = dict(dialect.switches)
    is_chunked = switches.get("enable_chunked_prefill", True)
    config = SchedulerConfig(
        max_num_batched_tokens=rng.randint(1 if is_chunked else max_model_len, 12),
        max_num_seqs=rng.randint(1, 4),
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=longest + rng.randint(0, 3),
        long_prefill_token_threshold=rng.choice([0, 0, 1, 3]),
        num_watermark_blocks=rng.choice([0, 0, 1]),
        **switches,
    )
    return _crowd(rng, config) if dialect.is_ranked else config


def _crowd(rng: random.Random, config: SchedulerConfig) -> SchedulerConfig:
    """Makes victims likely, and draws what the cursor does when one ahead of it leaves."""
    max_model_len, max_num_tokens = rng.randint(6, 8), rng.randint(6, 12)
    return attrs.evolve(
        config,
        max_num_batched_tokens=max_num_tokens,
        max_num_scheduled_tokens=max_num_tokens,
        max_num_seqs=rng.randint(3, 4),
        max_model_len=max_model_len,
        block_size=1,
        num_blocks=max_model_len + rng.randint(0, 1),
        scheduler_reserve_full_isl=False,
        num_watermark_blocks=0,
        cursor_follows_victim=rng.choice(["always", "scheduled", "never"]),
    )


def draw_environment(rng: random.Random, config: SchedulerConfig) -> Environment:
    """Draws a menu of arrivals that fit a configuration."""
    lengths = [rng.randint(1, config.max_model_len - 1) for _ in range(3)]
    is_ranked = config.policy == "priority"
    return Environment(
        shapes=tuple(
            NewRequest(
                request_id="",
                prompt_token_ids=(0,) * length,
                max_tokens=rng.randint(1, 6),
                stop_token_ids=(1,),
                priority=rng.randint(0, 2) if is_ranked else 0,
            )
            for length in lengths
        ),
        max_live_requests=5,
        max_in_flight=3 if config.async_scheduling else 1,
        sampled_token_ids=(0, 0, 0, 1),
    )


def draw_action(rng: random.Random, model: Model) -> Action:
    """Mostly steps; aborts are rare, so that runs get deep."""
    kinds: list[tuple[float, Callable[[], Sequence[Action]]]] = [
        (2.0, model.arrivals),
        (0.2, model.aborts),
        (4.0, lambda: [Schedule()] if model.may_schedule() else []),
        (3.0, model.updates),
    ]
    able = [(weight, actions) for weight, make in kinds if (actions := make())]
    (chosen,) = rng.choices([actions for _, actions in able], [weight for weight, _ in able])
    return rng.choice(chosen)


def _failure(sentence: str, run: Run, seed: int) -> Failure:
    config = run.scheduler.config
    head = (
        f"run {seed} on plain integers: block_size={config.block_size} "
        f"num_blocks={config.num_blocks} max_num_seqs={config.max_num_seqs} "
        f"max_num_batched_tokens={config.max_num_batched_tokens} "
        f"max_model_len={config.max_model_len} "
        f"long_prefill_token_threshold={config.long_prefill_token_threshold}"
    )
    return Failure(sentence, _model_of(run.scheduler), (head, *run.done, sentence))


def _model_of(scheduler: WatchedScheduler) -> z3.ModelRef:
    """The numbers of a state, as a model names them."""
    solver = z3.Solver()
    for request in scheduler.requests.values():
        for name in ("num_tokens", "num_computed_tokens", "num_blocks"):
            symbol = z3.Int(f"{request.request_id}.{name}")
            solver.add(symbol == getattr(request, name))
    solver.add(z3.Int("num_free_blocks") == scheduler.block_pool.num_free_blocks)
    solver.add(z3.Int("num_running") == symbolic_len(scheduler.running))
    solver.check()
    return solver.model()
