"""From a failed proof to a state of small numbers, and to what the spec does there, rule by rule.

Entry points: `find_small_model` and `explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import z3

from checkers.explain import ExplainedScheduler
from proofs.replay import Raised, call
from proofs.symbolic.overheard import OverheardScheduler
from proofs.symbolic.pools import PublicationPool
from proofs.symbolic.state import CONFIG_NUMBERS, Shape, State, make_state, values_of
from proofs.symbolic.values import all_of, any_of, term
from spec.block_pool import CountedBlockPool
from spec.interface import RequestStatus, SchedulerConfig
from spec.request import Request

LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 1024)
TIMEOUT_MS = 3_000


def find_small_model(facts: Sequence[z3.BoolRef], wishes: Iterable[z3.BoolRef] = ()) -> z3.ModelRef:
    """Returns a model of satisfiable facts in which no number is larger than it must be, roughly.

    First the wishes that the facts allow, one after the other; then the least bound for all
    numbers; then as many of them as possible small.
    """
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.set("ctrl_c", False)
    solver.add(*facts)
    for wish in wishes:
        if solver.check(wish) == z3.sat:
            solver.add(wish)
    numbers = _numbers_in(solver.assertions())
    for limit in LIMITS:
        bounds = [z3.And(number >= 0, number <= limit) for number in numbers]
        if solver.check(*bounds) == z3.sat:
            return _shrink(solver, numbers, bounds)
    assert solver.check() == z3.sat, "the caller has found a model"
    return solver.model()


def _shrink(solver: z3.Solver, numbers: list[z3.ArithRef], bounds: list[z3.BoolRef]) -> z3.ModelRef:
    """Lowers one number after the other as far as the facts allow."""
    solver.add(*bounds)
    solver.check()
    model = solver.model()
    for number in numbers:
        value = model.eval(number, model_completion=True).as_long()
        for lower in range(value):
            if solver.check(number == lower) == z3.sat:
                model = solver.model()
                value = lower
                break
        solver.add(number == value)
    return model


def wishes_of(state: State) -> Iterator[z3.BoolRef]:
    """Yields what is so in most states that a run gets to, whatever the invariant says of it."""
    scheduler = state.scheduler
    budget = scheduler.config.max_num_scheduled_tokens
    for step in state.steps:
        yield term(sum(step.values()) <= budget)
    for request in scheduler.running:
        yield term(request.num_computed_tokens > 0)
        lacks_a_token = all_of(
            request.num_computed_tokens >= request.num_prompt_tokens,
            request.num_computed_tokens >= request.num_tokens - 1,
        )
        yield term(lacks_a_token)
        yield term(any_of(lacks_a_token, request.num_output_tokens == 0))
    for request in scheduler.waiting.items:
        yield term(request.status == RequestStatus.WAITING)
    if scheduler.config.policy == "priority":
        times = [request.arrival_time for request in scheduler.requests.values()]
        yield term(all_of(*[earlier < later for earlier, later in pairwise(times)]))
        yield z3.Distinct(*map(term, times))


def _numbers_in(facts: Sequence[z3.BoolRef]) -> list[z3.ArithRef]:
    """The constants of some facts: of the configuration first, then by name."""
    found: dict[str, z3.ArithRef] = {}
    seen: set[int] = set()
    left: list[z3.ExprRef] = list(facts)
    while left:
        each = left.pop()
        if each.get_id() in seen:
            continue
        seen.add(each.get_id())
        if z3.is_int(each) and z3.is_const(each) and each.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found[each.decl().name()] = each
        left.extend(each.children())
    return [found[name] for name in sorted(found, key=lambda n: (n not in CONFIG_NUMBERS, n))]


def explain(shape: Shape, action: Callable[[State], Any], model: z3.ModelRef) -> tuple[str, ...]:
    """Shows a failing start in plain numbers, what the spec does from there, and what comes out."""
    state = make_state(shape, values_of(model), ToldScheduler)
    before = tuple(_show(state))
    # An action may build another scheduler.
    scheduler = state.scheduler
    result = call(action, state)
    if isinstance(result, Raised):
        state.notes.append(f"the call raises {result.text}")
    assert isinstance(scheduler, ToldScheduler), "it was built as one"
    told = tuple(f"  {sentence}" for sentence in scheduler.told)
    notes = tuple(f"  {sentence}" for sentence in state.notes)
    return ("before", *before, "the call", *told, "after", *_show(state), *notes)


class ToldScheduler(ExplainedScheduler, OverheardScheduler):
    """The reference scheduler; `told` keeps what the rules and gates of all calls say."""

    def __init__(self, config: SchedulerConfig, block_pool: CountedBlockPool) -> None:
        self.told: list[str] = []
        self.log = []
        # The explained scheduler builds a pool of identities; this one is given a pool.
        OverheardScheduler.__init__(self, config, block_pool)

    def _publish(self, request: Request, num_tokens: int) -> None:
        pool = self.block_pool
        super()._publish(request, num_tokens)
        if isinstance(pool, PublicationPool):
            num_published_tokens = pool.num_published_tokens[request.request_id]
            self._note(f"{request.request_id} has {num_published_tokens} tokens published")

    def _note(self, sentence: str) -> None:
        self.told.append(sentence)


def _show(state: State) -> Iterator[str]:
    config, scheduler = state.scheduler.config, state.scheduler
    numbers = {name: getattr(config, name) for name in ("block_size", *CONFIG_NUMBERS)}
    if config.max_num_scheduled_tokens == config.max_num_batched_tokens:
        del numbers["max_num_scheduled_tokens"]
    # What is 0 is switched off.
    yield "  " + " ".join(f"{name}={number}" for name, number in numbers.items() if number)
    yield f"  {scheduler.block_pool.num_free_blocks} of {config.num_blocks} blocks are free"
    for request in scheduler.running + scheduler.waiting.items:
        yield "  " + _show_request(state, request)
    for request in scheduler.kv_holding_waiting.items:
        yield "  " + _show_request(state, request) + ", waits apart"


def _show_request(state: State, request: Request) -> str:
    parts = [step.get(request.request_id, 0) for step in state.steps]
    in_flight = f", in flight {parts}" if any(parts) else ""
    rank = f", priority {request.priority}" if state.shape.policy == "priority" else ""
    return (
        f"{request.request_id} {RequestStatus(request.status).name}: "
        f"{request.num_computed_tokens} of {request.num_tokens} tokens computed "
        f"(prompt {request.num_prompt_tokens}), {request.num_blocks} blocks{in_flight}{rank}"
    )
