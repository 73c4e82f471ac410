"""The gate that keeps its promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.actions import abort, add_request, schedule
from proofs.bounded import Claim, Run, Scenario, bounded
from proofs.scenarios import arrival_makes_sense
from proofs.symbolic.state import Shape, State
from proofs.symbolic.values import symbolic_max
from spec.block_pool import cdiv

RESERVES = frozenset({("reserve_admitted_prefills", True)})


def only_prompts_run(state: State) -> Iterator[Any]:
    """only prompts run"""  # noqa: D400, D403, D415  (stands in the middle of a label)
    for request in state.scheduler.requests.values():
        yield request.num_output_tokens == 0
    yield _has_reserve(state)


def only_prompts_run_and_arrive(state: State) -> Iterator[Any]:
    """only prompts run, a sensible arrival"""  # noqa: D400, D403, D415  (the same)
    yield from only_prompts_run(state)
    yield from arrival_makes_sense(state)


def _has_reserve(state: State) -> Any:
    """Whether what the running requests still need for their known tokens is free."""
    num_blocks: Any = 0
    for request in state.scheduler.running:
        num_needed_blocks = cdiv(request.num_tokens, state.shape.block_size) - request.num_blocks
        num_blocks = num_blocks + symbolic_max(num_needed_blocks, 0)
    return num_blocks <= state.scheduler.block_pool.num_free_blocks


@bounded(
    Scenario(schedule, Shape(num_running=2, num_waiting=1, switches=RESERVES), only_prompts_run),
    Scenario(
        schedule,
        Shape(num_running=2, num_waiting=2, switches=RESERVES),
        only_prompts_run,
        is_slow=True,
    ),
    Scenario(abort, Shape(num_running=2, num_waiting=1, switches=RESERVES), only_prompts_run),
    Scenario(
        add_request,
        Shape(num_running=2, num_waiting=1, switches=RESERVES),
        only_prompts_run_and_arrive,
    ),
    mutants=("nothing_is_reserved",),
    assumptions=("no request has an output token yet: once they generate, they need new blocks",),
)
def the_reserve_aware_gate_protects_prompts(run: Run) -> Iterator[Claim]:
    """With the reserve-aware gate nobody is preempted while only prompts run."""
    yield "nobody is preempted", not run.after.scheduler.heard.preemptions
    yield "the reserve is free again", _has_reserve(run.after)
