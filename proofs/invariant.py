"""The inductive invariant: what holds between any two calls of the scheduler.

Entry points: `CLAUSES`, and `instances`, which says all clauses of a state. A clause is written
once, as a function that yields facts and never forks, so it serves three readers:
- plain integers: a fact is True or False (`broken_clauses` names those that fail in a real state);
- symbols of a bounded number of requests: a fact is a `SymBool`, assumed before a call and obliged
  after it;
- any number of requests: the proof hands a clause *one arbitrary* request (any object with the
  fields of `spec.request.Request` as `SymInt`), or two arbitrary neighbours, or the totals as ghost
  sums, and quantifies over it.

The kind of a clause says what it is handed, always after the configuration:

| kind | handed | holds for |
|---|---|---|
| config | nothing else | the configuration |
| request | a request | every live request |
| running | a request | every request in `running` |
| waiting | a request | every request in `waiting` |
| neighbours | two requests | each request in `waiting` and the one right behind it |
| totals | `Totals` | the whole state |
| steps | a request, its tokens in each step in flight, oldest first | every request in `running` |
| voided | the same | every request in `waiting` |

It is stated for the dialect of vLLM 0.33.0 (the defaults of `SchedulerConfig`); clauses that depend
on a dialect field ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

from attrs import frozen

from proofs.symbolic.values import all_of, any_of, choose, implies
from spec.interface import RequestStatus
from spec.scheduler import ReferenceScheduler, cdiv

Kind = Literal["config", "request", "running", "waiting", "neighbours", "totals", "steps", "voided"]
Fact = Any
"""A plain truth or a symbolic one."""
StepTokens = dict[str, Any]
"""The tokens of each request in one step in flight; a request that has no part in it has 0."""


@frozen
class Totals:
    """What a clause may ask about the whole state."""

    num_running: Any
    num_free_blocks: Any
    num_held_blocks: Any
    """The sum of `num_blocks` over all requests."""


@frozen
class Clause:
    """One conjunct of the invariant."""

    name: str
    sentence: str
    kind: Kind
    facts: Callable[..., Iterator[Fact]]


CLAUSES: dict[str, Clause] = {}
"""By name, in the order of their definition."""

Facts = Callable[..., Iterator[Fact]]


def clause(kind: Kind) -> Callable[[Facts], Facts]:
    """Registers a clause under its function's name; the docstring is its sentence."""

    def register(facts: Facts) -> Facts:
        name = facts.__name__
        assert name not in CLAUSES, f"clause {name} is written twice; choose another name"
        assert facts.__doc__, f"clause {name} has no docstring; say what holds"
        CLAUSES[name] = Clause(name, facts.__doc__.partition("\n")[0], kind, facts)
        return facts

    return register


def clauses_of(kind: Kind) -> list[Clause]:
    """The clauses of a kind, in order."""
    return [each for each in CLAUSES.values() if each.kind == kind]


def instances(
    scheduler: ReferenceScheduler, steps: Sequence[StepTokens] = ()
) -> Iterator[tuple[str, Fact]]:
    """Yields every clause for everything it is about: its name with that, and the fact."""
    running, waiting = scheduler.running, scheduler.waiting.items
    yield from _say(scheduler, "config", "")
    yield from _say(scheduler, "totals", "", totals_of(scheduler))
    for request in running + waiting:
        yield from _say(scheduler, "request", request.request_id, request)
    for request in running:
        yield from _say(scheduler, "running", request.request_id, request)
        yield from _say(scheduler, "steps", request.request_id, request, _parts(steps, request))
    for request in waiting:
        yield from _say(scheduler, "waiting", request.request_id, request)
        yield from _say(scheduler, "voided", request.request_id, request, _parts(steps, request))
    for ahead, behind in pairwise(waiting):
        yield from _say(
            scheduler, "neighbours", f"{ahead.request_id} {behind.request_id}", ahead, behind
        )


def broken_clauses(scheduler: ReferenceScheduler, steps: Sequence[StepTokens]) -> list[str]:
    """Names the clauses that do not hold in a state of plain integers."""
    return [name for name, fact in instances(scheduler, steps) if not fact]


def totals_of(scheduler: ReferenceScheduler) -> Totals:
    """The sums over a bounded state."""
    num_held_blocks = 0
    for request in scheduler.requests.values():
        num_held_blocks = num_held_blocks + request.num_blocks
    return Totals(len(scheduler.running), scheduler.block_pool.num_free_blocks, num_held_blocks)


def _say(
    scheduler: ReferenceScheduler, kind: Kind, whom: str, *about: Any
) -> Iterator[tuple[str, Fact]]:
    for each in clauses_of(kind):
        name = f"{each.name} {whom}".rstrip()
        yield name, all_of(*each.facts(scheduler.config, *about))


def _parts(steps: Sequence[StepTokens], request: Any) -> list[Any]:
    return [step.get(request.request_id, 0) for step in steps]


# ---- the clauses ---------------------------------------------------------------------------------


@clause("config")
def the_configuration_makes_sense(config: Any) -> Iterator[Fact]:
    """Every bound is at least what `SchedulerConfig` asks for."""
    yield config.max_num_batched_tokens >= 1
    yield config.max_num_scheduled_tokens >= 1
    yield config.max_num_scheduled_tokens <= config.max_num_batched_tokens
    yield config.max_num_seqs >= 1
    yield config.max_model_len >= 2
    yield config.num_blocks >= 1
    yield config.long_prefill_token_threshold >= 0
    yield config.num_watermark_blocks >= 0
    if not config.enable_chunked_prefill:
        yield config.max_num_scheduled_tokens >= config.max_model_len - 1


@clause("totals")
def at_most_max_num_seqs_run(config: Any, totals: Totals) -> Iterator[Fact]:
    """At most `max_num_seqs` requests run."""
    yield totals.num_running <= config.max_num_seqs


@clause("totals")
def blocks_are_conserved(config: Any, totals: Totals) -> Iterator[Fact]:
    """Free and held blocks make up the pool; where prefixes are shared, the free ones are in it."""
    yield totals.num_free_blocks >= 0
    if config.enable_prefix_caching:
        yield totals.num_free_blocks <= config.num_blocks
    else:
        yield totals.num_free_blocks + totals.num_held_blocks == config.num_blocks


@clause("request")
def tokens_are_in_bounds(config: Any, request: Any) -> Iterator[Fact]:
    """A live request has a prompt, and room for another token in every limit."""
    yield request.num_prompt_tokens >= 1
    yield request.num_output_tokens >= 0
    yield request.num_output_tokens < request.max_tokens
    yield request.num_tokens < config.max_model_len


@clause("request")
def computed_is_within_tokens(config: Any, request: Any) -> Iterator[Fact]:
    """Only tokens that are known or being sampled are computed, fewer than `max_model_len`."""
    yield request.num_computed_tokens >= 0
    yield request.num_computed_tokens <= request.num_tokens + request.num_output_placeholders
    yield request.num_computed_tokens < config.max_model_len


@clause("request")
def stale_output_is_in_flight(config: Any, request: Any) -> Iterator[Fact]:
    """What a preemption has voided is part of what is in flight."""
    yield request.num_stale_output_tokens >= 0
    yield request.num_stale_output_tokens <= request.num_in_flight_tokens


@clause("running")
def running_requests_run(config: Any, request: Any) -> Iterator[Fact]:
    """Who stands in `running` has that status."""
    yield request.status == RequestStatus.RUNNING


@clause("running")
def blocks_are_exact(config: Any, request: Any) -> Iterator[Fact]:
    """A running request holds exactly the blocks of its computed tokens."""
    yield request.num_blocks == cdiv(request.num_computed_tokens, config.block_size)


@clause("running")
def running_requests_have_no_stale_output(config: Any, request: Any) -> Iterator[Fact]:
    """Nobody runs beside its own voided steps, where the dialect waits for them."""
    if config.wait_for_stale_output:
        yield request.num_stale_output_tokens == 0


@clause("running")
def the_last_token_is_not_settled(config: Any, request: Any) -> Iterator[Fact]:
    """Of a running request's known tokens, one at least has not been through a returned step."""
    if config.wait_for_stale_output:
        num_settled_tokens = request.num_computed_tokens - request.num_in_flight_tokens
        yield num_settled_tokens >= 0
        yield num_settled_tokens < request.num_tokens


@clause("running")
def placeholders_stand_for_samples(config: Any, request: Any) -> Iterator[Fact]:
    """A placeholder stands for each token being sampled; without async scheduling there is none."""
    if not config.async_scheduling:
        yield request.num_output_placeholders == 0
    elif config.wait_for_stale_output:
        num_placeholders = request.num_output_placeholders
        num_ahead = request.num_computed_tokens - request.num_tokens + 1
        yield num_placeholders >= 0
        yield implies(num_ahead > 0, num_placeholders == num_ahead)
        yield implies(num_ahead <= 0, num_placeholders == 0)


@clause("waiting")
def waiting_requests_wait(config: Any, request: Any) -> Iterator[Fact]:
    """Who stands in `waiting` is new there, or was preempted; a new one has nothing in flight."""
    is_new = request.status == RequestStatus.WAITING
    yield any_of(is_new, request.status == RequestStatus.PREEMPTED)
    yield implies(is_new, request.num_in_flight_tokens == 0)


@clause("waiting")
def waiting_requests_hold_nothing(config: Any, request: Any) -> Iterator[Fact]:
    """A waiting request has no blocks, nothing computed, no placeholder, and only void steps."""
    yield request.num_blocks == 0
    yield request.num_computed_tokens == 0
    yield request.num_output_placeholders == 0
    yield request.num_stale_output_tokens == request.num_in_flight_tokens


@clause("neighbours")
def waiting_is_sorted(config: Any, ahead: Any, behind: Any) -> Iterator[Fact]:
    """Under the priority policy, nobody in `waiting` is served after the one behind it."""
    if config.policy == "priority":
        is_tie = ahead.priority == behind.priority
        yield ahead.priority <= behind.priority
        yield implies(is_tie, ahead.arrival_time <= behind.arrival_time)


@clause("steps")
def steps_end_at_known_tokens(config: Any, request: Any, parts: list[Any]) -> Iterator[Fact]:
    """No step in flight ends behind what is known once the samples before it have arrived."""
    if config.wait_for_stale_output:
        yield sum(parts, 0) == request.num_in_flight_tokens
        num_samples: Any = 0
        for place, samples in enumerate(samplers(request, parts)):
            yield parts[place] >= 0
            yield end_of_part(request, parts, place) <= request.num_tokens + num_samples
            num_samples = num_samples + choose(samples, 1, 0)
        if config.async_scheduling:
            yield request.num_output_placeholders == num_samples


@clause("voided")
def voided_steps_are_counted(config: Any, request: Any, parts: list[Any]) -> Iterator[Fact]:
    """What is in flight of a waiting request is what the steps in flight compute of it."""
    yield sum(parts, 0) == request.num_in_flight_tokens
    for num_tokens in parts:
        yield num_tokens >= 0


def end_of_part(request: Any, parts: list[Any], place: int) -> Any:
    """How many tokens of a running request are computed once a step in flight has returned."""
    return request.num_computed_tokens - sum(parts[place + 1 :], 0)


def samplers(request: Any, parts: list[Any]) -> list[Any]:
    """Whether each step in flight samples a token: it completes all that is known before it."""
    found: list[Any] = []
    num_known_tokens = request.num_tokens
    for place, num_tokens in enumerate(parts):
        end = end_of_part(request, parts, place)
        found.append(all_of(num_tokens > 0, end == num_known_tokens))
        num_known_tokens = num_known_tokens + choose(found[-1], 1, 0)
    return found


def is_sampler(request: Any, parts: list[Any], place: int) -> Any:
    """Whether one of the steps in flight samples a token for a running request."""
    return samplers(request, parts)[place]
