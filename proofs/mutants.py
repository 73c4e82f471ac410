"""Wrong specifications: each patches one method of the spec, and some theorem must notice.

Entry points: `MUTANTS` and `planted`. A theorem names the mutants that break it; one that no mutant
breaks says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from attrs import frozen

from checkers.planting import Method, planted_at
from proofs.theorem import first_line


@frozen
class Mutant:
    """One method of the spec, done wrong."""

    name: str
    sentence: str
    """What goes wrong."""
    target: str
    """The method: `module:Class.method`."""
    plant: Callable[[Method], Method]
    """Makes the wrong method out of the right one."""


MUTANTS: dict[str, Mutant] = {}
"""By name, in the order of their definition."""


def mutant(target: str) -> Callable[[Callable[[Method], Method]], Callable[[Method], Method]]:
    """Registers a mutant under its function's name; its docstring says what goes wrong."""

    def register(plant: Callable[[Method], Method]) -> Callable[[Method], Method]:
        name = plant.__name__
        assert name not in MUTANTS, f"mutant {name} exists; choose another name"
        assert plant.__doc__, f"mutant {name} has no docstring; say what goes wrong"
        MUTANTS[name] = Mutant(name, first_line(plant.__doc__), target, plant)
        return plant

    return register


def planted(wrong: Mutant) -> AbstractContextManager[None]:
    """Makes the code under proof wrong for as long as the block lasts."""
    return planted_at(wrong.target, wrong.plant)


SCHEDULER = "spec.scheduler:ReferenceScheduler"
POOL = "spec.block_pool:CountedBlockPool"


@mutant(f"{POOL}.allocate")
def a_grant_takes_no_blocks(original: Method) -> Method:
    """Blocks are handed out and stay free."""

    def allocate(self: Any, *args: Any) -> Any:
        num_free_blocks = self.num_free_blocks
        new_block_ids = original(self, *args)
        self.num_free_blocks = num_free_blocks
        return new_block_ids

    return allocate


@mutant(f"{POOL}.__init__")
def a_pool_starts_a_block_short(original: Method) -> Method:
    """A new pool has one free block less than it has blocks."""

    def __init__(self: Any, num_blocks: Any) -> None:  # noqa: N807  (it takes its place)
        original(self, num_blocks)
        self.num_free_blocks = num_blocks - 1

    return __init__


@mutant(f"{POOL}.free")
def freed_blocks_are_lost(original: Method) -> Method:
    """A request gives up its blocks, and the pool does not get them."""

    def free(self: Any, request: Any) -> None:
        num_free_blocks = self.num_free_blocks
        original(self, request)
        self.num_free_blocks = num_free_blocks

    return free


@mutant(f"{SCHEDULER}._grant")
def a_grant_costs_nothing(original: Method) -> Method:
    """The tokens that a request is granted are not taken off the token budget."""

    def _grant(self: Any, *args: Any) -> Any:
        token_budget = self.token_budget
        new_block_ids = original(self, *args)
        self.token_budget = token_budget
        return new_block_ids

    return _grant


@mutant(f"{SCHEDULER}._take_back")
def a_victim_keeps_its_part_of_the_step(original: Method) -> Method:
    """A victim that the step has scheduled already stays scheduled."""

    def _take_back(self: Any, victim: Any) -> None:
        return

    return _take_back


@mutant(f"{SCHEDULER}._take_back")
def a_victim_returns_too_many_tokens(original: Method) -> Method:
    """A victim that the step has scheduled already gives back one token more than it got."""

    def _take_back(self: Any, victim: Any) -> None:
        if victim.request_id in self.output.num_scheduled_tokens:
            self.token_budget += 1
        original(self, victim)

    return _take_back


@mutant(f"{SCHEDULER}._preempt")
def a_victim_keeps_its_computed_tokens(original: Method) -> Method:
    """A preempted request still counts as computed what its lost blocks held."""

    def _preempt(self: Any, victim: Any) -> None:
        num_computed_tokens = victim.num_computed_tokens
        original(self, victim)
        victim.num_computed_tokens = num_computed_tokens

    return _preempt


@mutant(f"{SCHEDULER}._preempt")
def preemptions_are_not_counted(original: Method) -> Method:
    """A preempted request does not count its preemption."""

    def _preempt(self: Any, victim: Any) -> None:
        num_preemptions = victim.num_preemptions
        original(self, victim)
        victim.num_preemptions = num_preemptions

    return _preempt


@mutant(f"{SCHEDULER}._choose_victim")
def the_first_running_is_preempted(original: Method) -> Method:
    """The victim is the request that is served first."""

    def _choose_victim(self: Any) -> Any:
        return self.running[0]

    return _choose_victim


@mutant("spec.request_queue:RequestQueue.pop_request")
def the_tail_is_admitted(original: Method) -> Method:
    """Who is admitted is taken from the tail of the waiting queue."""

    def pop_request(self: Any) -> Any:
        return self.items.pop()

    return pop_request


@mutant("spec.request_queue:PriorityRequestQueue.add_request")
def an_arrival_jumps_the_queue(original: Method) -> Method:
    """An arrival joins the head of the queue, whatever its priority."""

    def add_request(self: Any, request: Any) -> None:
        self.items.insert(0, request)

    return add_request


@mutant(f"{SCHEDULER}._queue_of")
def all_wait_with_those_who_hold_kv(original: Method) -> Method:
    """Whoever waits does so among those who hold KV, and so before the others."""

    def _queue_of(self: Any, request: Any) -> Any:
        return self.kv_holding_waiting

    return _queue_of


@mutant(f"{SCHEDULER}._put_back_next_skipped")
def a_skipped_request_loses_its_place(original: Method) -> Method:
    """Requests that were not ready are put back behind the others."""

    def _put_back_next_skipped(self: Any) -> bool:
        self.waiting.items.extend(self.skipped)
        self.skipped = []
        return False

    return _put_back_next_skipped


@mutant(f"{SCHEDULER}._is_ready")
def nobody_waits_for_stale_output(original: Method) -> Method:
    """A request is admitted while its voided steps are in flight."""

    def _is_ready(self: Any, request: Any) -> bool:
        return True

    return _is_ready


@mutant(f"{SCHEDULER}._may_admit")
def admission_goes_on_after_a_preemption(original: Method) -> Method:
    """Pass 2 runs in a step that has preempted."""

    def _may_admit(self: Any) -> bool:
        return bool(self.token_budget > 0)

    return _may_admit


@mutant(f"{SCHEDULER}._has_seat")
def there_is_always_a_seat(original: Method) -> Method:
    """Admission does not look at max_num_seqs."""

    def _has_seat(self: Any) -> bool:
        return True

    return _has_seat


@mutant(f"{SCHEDULER}._compute_num_new_tokens")
def a_grant_is_a_token_short(original: Method) -> Method:
    """A running request gets one token less than it may."""

    def _compute_num_new_tokens(self: Any, request: Any) -> Any:
        return original(self, request) - 1

    return _compute_num_new_tokens


@mutant(f"{SCHEDULER}._advance")
def the_last_token_is_not_counted(original: Method) -> Method:
    """What a step promises is counted one token short."""

    def _advance(self: Any, request: Any) -> None:
        original(self, request)
        if request.request_id in self.output.num_scheduled_tokens:
            request.num_computed_tokens -= 1

    return _advance


@mutant(f"{SCHEDULER}._advance")
def every_step_samples(original: Method) -> Method:
    """Every step in the middle of a prompt gets a placeholder too."""

    def _advance(self: Any, request: Any) -> None:
        num_placeholders = request.num_output_placeholders
        original(self, request)
        if request.request_id in self.output.num_scheduled_tokens:
            request.num_output_placeholders = num_placeholders + 1

    return _advance


@mutant(f"{SCHEDULER}._has_room_for")
def only_the_chunk_must_fit(original: Method) -> Method:
    """Admission looks at the first chunk, whatever the whole-sequence gate says."""

    def _has_room_for(self: Any, request: Any, num_tokens: Any, hit: Any) -> bool:
        num_blocks = self._num_blocks_to_take(request, num_tokens, hit)
        return bool(num_blocks + self._num_reserved_blocks() <= self.block_pool.num_free_blocks)

    return _has_room_for


@mutant(f"{SCHEDULER}._num_reserved_blocks")
def nothing_is_reserved(original: Method) -> Method:
    """The reserve-aware gate takes no account of the prompts that already run."""

    def _num_reserved_blocks(self: Any) -> int:
        self.num_reserved_blocks = 0
        return 0

    return _num_reserved_blocks


@mutant(f"{SCHEDULER}._grant_running")
def a_chunk_is_published_when_granted(original: Method) -> Method:
    """A chunk can be found as soon as it is granted, taken back or not."""

    def _grant_running(self: Any, request: Any, num_new_tokens: Any) -> None:
        original(self, request, num_new_tokens)
        self._publish(request, request.num_computed_tokens + num_new_tokens)

    return _grant_running


@mutant(f"{SCHEDULER}._settle")
def a_returned_step_stays_in_flight(original: Method) -> Method:
    """What a returned step computed still counts as in flight."""

    def _settle(self: Any, request: Any, *args: Any) -> None:
        num_in_flight_tokens = request.num_in_flight_tokens
        original(self, request, *args)
        request.num_in_flight_tokens = num_in_flight_tokens

    return _settle


@mutant(f"{SCHEDULER}._deliver")
def a_token_is_delivered_twice(original: Method) -> Method:
    """A sampled token is appended twice."""

    def _deliver(self: Any, request: Any, sampled_token_ids: Any, is_stale: bool) -> Any:
        request.append_output_token(sampled_token_ids[0])
        return original(self, request, sampled_token_ids, is_stale)

    return _deliver


@mutant(f"{SCHEDULER}._roll_back")
def an_empty_row_rejects_every_draft(original: Method) -> Method:
    """A step that samples nothing counts as one that has accepted -1 drafts (vLLM #28473)."""

    def _roll_back(self: Any, request: Any, num_drafts: Any, num_sampled: Any) -> None:
        if num_sampled == 0:
            request.num_computed_tokens -= num_drafts + 1
        original(self, request, num_drafts, num_sampled)

    return _roll_back


@mutant(f"{SCHEDULER}._roll_back")
def drafts_of_a_voided_step_are_rolled_back(original: Method) -> Method:
    """Rejected drafts are taken back though a preemption has taken back everything."""

    def _roll_back(self: Any, request: Any, num_drafts: Any, num_sampled: Any) -> None:
        num_stale = request.num_stale_output_tokens
        request.num_stale_output_tokens = 0
        original(self, request, num_drafts, num_sampled)
        request.num_stale_output_tokens = num_stale

    return _roll_back
