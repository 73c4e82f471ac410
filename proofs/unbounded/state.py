"""The reference scheduler with any number of requests.

Entry point: `make_scheduler`. It is the class of the spec, or a mutant of it, with containers of
`proofs.symbolic.heap` in the place of its own; whoever cuts its loops puts a class in front.
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

import attrs
import z3
from attrs import frozen

import proofs.invariant
import spec.lifecycle
import spec.request
import spec.request_queue
import spec.scheduler
from proofs.symbolic.heap import (
    Cell,
    Counter,
    Emptied,
    KeySet,
    Memory,
    RequestCell,
    RequestMap,
    Sink,
    SymList,
    TokenMap,
    View,
    sum_of,
)
from proofs.symbolic.lending import lend_all
from proofs.symbolic.pools import AnyHitsPool
from proofs.symbolic.prover import Prover
from proofs.symbolic.state import BUILTINS
from proofs.symbolic.values import (
    SymBool,
    SymInt,
    all_of,
    any_of,
    symbolic_min,
    term,
)
from proofs.unbounded.ranks import RankedQueue
from spec.block_pool import CacheHit, CountedBlockPool
from spec.interface import RequestStatus, SchedulerConfig
from spec.request import Request
from spec.request_queue import RequestQueue
from spec.scheduler import ReferenceScheduler

RUNNING, WAITING, SKIPPED = 1, 2, 3
"""The lists that a request may be in, as the ghost `where` names them."""

FIXED_FIELDS = (
    "num_prompt_tokens",
    "max_tokens",
    "min_tokens",
    "eos_token_id",
    "priority",
    "arrival_time",
)
CHANGING_FIELDS = (
    "status",
    "num_output_tokens",
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_stale_output_tokens",
    "num_output_placeholders",
    "num_preemptions",
    "num_blocks",
)
STEP_FIELDS = ("scheduled", "cached")
"""What the step being planned says of each request: its tokens, and whether the worker knows it."""
FLIGHT_FIELDS = ("step 0", "step 1", "step 2")
"""The tokens of each request in the steps in flight, oldest first."""
NUMBERS = (
    "token_budget",
    "input_budget",
    "req_index",
    "long_prefill_token_threshold",
    "num_reserved_blocks",
    "num_free_blocks",
    "num_preempted",
    "cursor",
    "victim",
    "rank",
)


FREE_SWITCHES = (
    "threshold_spares_lone_request",
    "continue_after_self_preemption",
    "stop_at_max_tokens_in_flight",
    "deliver_stale_output",
)
"""Switches that every proof leaves open; both ways are taken."""

SWITCHED_OFF = (
    "max_num_partial_prefills",
    "max_long_partial_prefills",
    "max_loras",
    "num_speculative_tokens",
    "num_lookahead_tokens",
    "num_draft_slots",
)
"""Limits of features that no proof is about yet; at 0 they are off."""


@frozen
class Dialect:
    """A configuration whose switches are fixed: as vLLM 0.33.0, but for those named here."""

    name: str
    switches: tuple[tuple[str, bool | str], ...] = ()

    @property
    def is_async(self) -> bool:
        """Whether a step is planned while another one is in flight."""
        return bool(dict(self.switches).get("async_scheduling", False))

    @property
    def finds_hits(self) -> bool:
        """Whether prefixes are cached."""
        return bool(dict(self.switches).get("enable_prefix_caching", False))

    @property
    def is_ranked(self) -> bool:
        """Whether priorities decide who is served first."""
        return dict(self.switches).get("policy") == "priority"

    @property
    def kind(self) -> tuple[bool, bool]:
        """What a claim about a step may depend on."""
        return self.is_ranked, self.finds_hits

    @property
    def num_steps(self) -> int:
        """Steps in flight when one is planned; at least 2 make a request wait for stale output."""
        return 2 if self.is_async else 0


SYNCHRONOUS = Dialect("synchronous")
ASYNCHRONOUS = Dialect("asynchronous", (("async_scheduling", True),))
WHOLE_PROMPTS = Dialect(
    "whole prompts only",
    (("enable_chunked_prefill", False), ("same_step_prefix_hits", False)),
)
CHUNK_GATE = Dialect(
    "a chunk's gate",
    (("scheduler_reserve_full_isl", False), ("publish_at_grant", True)),
)
RESERVE_AWARE = Dialect(
    "asynchronous, reserve-aware gate",
    (("async_scheduling", True), ("reserve_admitted_prefills", True)),
)
PRIORITY = Dialect("priority", (("policy", "priority"),))
ASYNCHRONOUS_PRIORITY = Dialect(
    "asynchronous, priority", (("async_scheduling", True), ("policy", "priority"))
)
CACHING = Dialect("prefix cache", (("enable_prefix_caching", True),))
ASYNCHRONOUS_CACHING = Dialect(
    "asynchronous, prefix cache", (("async_scheduling", True), ("enable_prefix_caching", True))
)
PRIORITY_CACHING = Dialect(
    "priority, prefix cache", (("policy", "priority"), ("enable_prefix_caching", True))
)
DIALECTS = (
    SYNCHRONOUS,
    ASYNCHRONOUS,
    CHUNK_GATE,
    WHOLE_PROMPTS,
    RESERVE_AWARE,
    PRIORITY,
    ASYNCHRONOUS_PRIORITY,
    CACHING,
    ASYNCHRONOUS_CACHING,
    PRIORITY_CACHING,
)


class Choice:
    """One of several words, all of them possible."""

    def __init__(self, prover: Prover, name: str, words: tuple[str, ...]) -> None:
        self.number = prover.any_integer(name)
        prover.assume(all_of(self.number >= 0, self.number < len(words)))
        self.words = words

    def __eq__(self, word: object) -> SymBool:  # type: ignore[override]
        return self.number == self._number_of(word)

    def __ne__(self, word: object) -> SymBool:  # type: ignore[override]
        return self.number != self._number_of(word)

    def _number_of(self, word: object) -> int:
        """The number of a word; of one that is not possible, a number that no word has."""
        return self.words.index(str(word)) if word in self.words else len(self.words)

    __hash__ = None  # type: ignore[assignment]


class AnySet:
    """A set of which nothing is known."""

    def __init__(self, prover: Prover) -> None:
        self.prover = prover

    def __contains__(self, element: Any) -> bool:
        return self.prover.any_truth("is in the set")


class SymbolicPool(CountedBlockPool):
    """The counted pool, its number in memory."""

    num_free_blocks = Cell()  # type: ignore[assignment]

    def __init__(self, memory: Memory, num_blocks: Any) -> None:
        self.memory = memory
        self.num_blocks = num_blocks


class HitBlocks(SymInt):
    """A number of blocks that are hit, and how many tokens they hold."""

    __slots__ = ("block_size", "num_tokens")

    def __init__(self, num_blocks: SymInt, num_tokens: SymInt, block_size: Any) -> None:
        super().__init__(num_blocks.term)
        self.num_tokens = num_tokens
        self.block_size = block_size

    def __mul__(self, other: Any) -> SymInt:
        """Their tokens, for the size of a block; for anything else as the parent."""
        return self.num_tokens if other is self.block_size else super().__mul__(other)


class SymbolicAnyHitsPool(AnyHitsPool):
    """The pool of any hits, its number in memory, for any block size."""

    num_free_blocks = Cell()  # type: ignore[assignment]

    def __init__(self, prover: Prover, memory: Memory, config: Any) -> None:
        self.prover = prover
        self.memory = memory
        self.num_blocks = config.num_blocks
        self.block_size = config.block_size
        self.numbers = prover.any_integer
        self.num_choices = 0

    def find_longest_cache_hit(self, request: Request) -> CacheHit:
        """Finds any number of full blocks that leaves a token to compute."""
        num_blocks, num_tokens = self.prover.any_integer("hit"), self.prover.any_integer("in hit")
        most: Any = request.num_tokens - 1
        self.prover.assume(may_be_hit(num_blocks, num_tokens, most, self.block_size))
        num_free_blocks = self._choose(symbolic_min(num_blocks, self.num_free_blocks))
        hit: Any = HitBlocks(num_blocks, num_tokens, self.block_size)
        return CacheHit([], hit, num_free_blocks)


class SymbolicOutput:
    """The output of the step being planned; a new one is empty. There is never more than one."""

    def __init__(self, memory: Memory) -> None:
        for name in STEP_FIELDS:
            memory.clear(name)
        memory["num_preempted"] = z3.IntVal(0)
        self.num_scheduled_tokens = TokenMap(memory, "scheduled")
        self.scheduled_new_reqs = Sink()
        self.scheduled_cached_reqs = KeySet(memory, "cached")
        self.preempted_req_ids = Counter(memory, "num_preempted")
        # No proof is about drafts, so there are none.
        self.scheduled_spec_decode_tokens = ()


class SymbolicScheduler(ReferenceScheduler):
    """Keeps the plain attributes of a scheduler in memory."""

    token_budget = Cell()  # type: ignore[assignment]
    input_budget = Cell()  # type: ignore[assignment]
    req_index = Cell()  # type: ignore[assignment]
    long_prefill_token_threshold = Cell()  # type: ignore[assignment]
    num_reserved_blocks = Cell()  # type: ignore[assignment]
    cursor = Cell()
    victim = RequestCell()
    skipped = Emptied()

    memory: Memory
    prover: Prover
    dialect: Dialect
    lists: dict[str, SymList]
    opaque: dict[str, Any]
    num_steps: int
    """Steps in flight; a step may be empty, so fewer are covered as well."""
    said: dict[tuple[Any, ...], dict[str, Any]]
    """What was said of a point, by the point and what the cells held: a path repeats its start."""

    def see(self, key: Any) -> View:
        """Shows a request."""
        return View(self.memory, key, self.opaque)

    def total(self, name: str) -> SymInt:
        """The sum of a field over all requests."""
        return SymInt(self.memory[sum_of(name)])

    def parts(self, request: Any) -> list[SymInt]:
        """The tokens of a request in each step in flight, oldest first."""
        names = FLIGHT_FIELDS[: self.num_steps]
        return [SymInt(self.memory.select(name, term(request.request_id))) for name in names]


Front = TypeVar("Front", bound=SymbolicScheduler)


def make_scheduler(
    prover: Prover,
    dialect: Dialect,
    front: type[Front],
    base: type[ReferenceScheduler],
    said: dict[tuple[Any, ...], dict[str, Any]],
) -> Front:
    """Builds any state at all of a scheduler: the spec or a mutant of it, with a class in front."""
    kind: Any = type("Scheduler", (front, base), {})
    scheduler: Front = kind.__new__(kind)
    memory = Memory(prover, sums=frozenset({"num_blocks", "scheduled"}))
    memory.add_integers(*NUMBERS, *map(sum_of, sorted(memory.sums)))
    memory.add_arrays(*FIXED_FIELDS, *CHANGING_FIELDS, *STEP_FIELDS, *FLIGHT_FIELDS)
    memory.add_arrays("where", "pos", "live")
    scheduler.memory, scheduler.prover, scheduler.dialect = memory, prover, dialect
    scheduler.said, scheduler.num_steps = said, dialect.num_steps
    scheduler.config = make_config(prover, dialect)
    if dialect.finds_hits:
        scheduler.block_pool = SymbolicAnyHitsPool(prover, memory, scheduler.config)
    else:
        scheduler.block_pool = SymbolicPool(memory, scheduler.config.num_blocks)
    scheduler.pause_state = "unpaused"
    scheduler.num_waiting_for_streaming_input = 0
    scheduler.opaque = _make_opaque(prover)
    _add_containers(scheduler)
    return scheduler


def _add_containers(scheduler: Any) -> None:
    memory, see = scheduler.memory, scheduler.see
    lists = {
        name: SymList(memory, name, code, see)
        for name, code in (("running", RUNNING), ("waiting", WAITING), ("skipped", SKIPPED))
    }
    scheduler.lists = lists
    scheduler.running = lists["running"]
    if scheduler.dialect.is_ranked:
        scheduler.waiting = RankedQueue(lists["waiting"])
    else:
        scheduler.waiting = RequestQueue()
        scheduler.waiting.items = lists["waiting"]
    # Nobody who waits holds KV, since the features that let them are off.
    scheduler.kv_holding_waiting = RequestQueue()
    scheduler.requests = RequestMap(memory, "live", see)
    scheduler.finished_req_ids = Sink()


def _make_opaque(prover: Prover) -> dict[str, Any]:
    return {
        "token_ids": (),
        "output_token_ids": (),
        "block_ids": [],
        "draft_token_ids": [],
        "num_draft_tokens": 0,
        "is_prefill_chunk": False,
        "drop_stale_output": False,
        "stop_token_ids": AnySet(prover),
        # Anything but None: whether it finds a repetition is up to whoever lends the finder.
        "repetition_detection": prover,
        "cache_key": None,
        "lora_id": 0,
        "resumable": False,
        "streaming_queue": (),
        "num_remote_tokens": 0,
        "is_kv_received": False,
        "client_index": 0,
    }


def make_config(prover: Prover, dialect: Dialect) -> SchedulerConfig:
    """Any configuration of a dialect."""
    fields: dict[str, Any] = {
        each.name: prover.any_integer(each.name)
        for each in attrs.fields(SchedulerConfig)
        if each.type in ("int", int)
    }
    fields |= dict.fromkeys(SWITCHED_OFF, 0)
    for name in FREE_SWITCHES:
        fields[name] = SymBool(prover.fresh(name, z3.BoolSort()))
    fields |= {
        "cursor_follows_victim": Choice(prover, "rule", ("always", "scheduled", "never")),
        # In the order of 0.16, min_tokens may let a request outgrow its limits.
        "stop_order": Choice(prover, "order", ("stop_length", "length_stop")),
    }
    fields |= dict(dialect.switches)
    with attrs.validators.disabled():
        return SchedulerConfig(**fields)


def blocks_for(num_tokens: Any, block_size: Any) -> SymInt:
    """Stands for `spec.scheduler.cdiv` with the block size of this run, whatever it is."""
    blocks = z3.Function("blocks for", z3.IntSort(), z3.IntSort())
    return SymInt(blocks(term(num_tokens)))


def facts_of_blocks() -> list[z3.BoolRef]:
    """What is used of `cdiv`; proofs.unbounded.lemmas shows it of the real one, for any size."""
    a, b = z3.Ints("a b")
    blocks_a, blocks_b = blocks_for(a, None).term, blocks_for(b, None).term
    return [
        blocks_for(0, None).term == 0,
        z3.ForAll([a], z3.Implies(a >= 1, blocks_a >= 1), patterns=[blocks_a]),
        z3.ForAll(
            [a, b],
            z3.Implies(a <= b, blocks_a <= blocks_b),
            patterns=[z3.MultiPattern(blocks_a, blocks_b)],
        ),
    ]


def may_be_hit(num_blocks: Any, num_tokens: Any, most: Any, block_size: Any) -> Any:
    """What is used of full blocks that hold at most so many tokens.

    `proofs.unbounded.lemmas` shows it of the product with any block size.
    """
    return all_of(
        num_blocks >= 0,
        num_tokens >= 0,
        num_tokens <= most,
        blocks_for(num_tokens, block_size) == num_blocks,
    )


def any_stop(prover: Prover, request: Any, config: Any) -> Any:
    """Stands for `spec.stop.check_stop`: whatever it may return by `may_be_stop`."""
    if not prover.any_truth("stops"):
        prover.assume(may_be_stop(request, request.status, config))
        return request.status
    status = prover.any_integer("final status")
    prover.assume(may_be_stop(request, status, config), status != request.status)
    return status


def may_be_stop(request: Any, status: Any, config: Any) -> Any:
    """What is used of `check_stop`: it ends a request for good, or leaves room for another token.

    `proofs.unbounded.lemmas` shows it of the real one.
    """
    has_room = all_of(
        request.num_tokens < config.max_model_len, request.num_output_tokens < request.max_tokens
    )
    is_final = all_of(status > RequestStatus.PREEMPTED, status <= RequestStatus.FINISHED_REPETITION)
    return any_of(all_of(status == request.status, has_room), is_final)


def injected(scheduler: SymbolicScheduler) -> contextlib.AbstractContextManager[None]:
    """Lends the modules of the spec what takes symbols in place of what does not."""
    memory, prover = scheduler.memory, scheduler.prover

    def arrive(new: Any) -> View:
        request = scheduler.see(term(new.request_id))
        Request.__init__(request, new)  # type: ignore[arg-type]
        return request

    lent: dict[Any, dict[str, Any]] = {
        spec.request: BUILTINS,
        spec.request_queue: BUILTINS,
        spec.scheduler: BUILTINS
        | {
            "SchedulerOutput": lambda: SymbolicOutput(memory),
            "cdiv": blocks_for,
        },
        spec.lifecycle: BUILTINS
        | {
            "Request": arrive,
            "FINISH_REASON": Sink(),
            "check_stop": lambda request, _, config: any_stop(prover, request, config),
        },
        proofs.invariant: {"cdiv": blocks_for},
    }
    return lend_all(lent)
