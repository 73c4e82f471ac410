"""A claim that people make of the whole-prompt gate, and that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.actions import two_steps
from proofs.bounded import Claim, Run, Scenario, bounded
from proofs.symbolic.state import Shape, State
from proofs.symbolic.values import all_of, implies
from spec.interface import RequestStatus


def just_arrived(state: State) -> Iterator[Any]:
    """nobody has run yet"""  # noqa: D400, D403, D415  (stands in the middle of a label)
    for request in state.scheduler.requests.values():
        yield request.status == RequestStatus.WAITING
        yield request.num_output_tokens == 0
        yield request.num_preemptions == 0


@bounded(
    Scenario(
        two_steps, Shape(num_running=0, num_waiting=2, num_steps=0, block_size=2), just_arrived
    ),
    mutants=(),
    expected="refuted",
)
def the_whole_prompt_gate_reserves_nothing(run: Run) -> Iterator[Claim]:
    """The whole-prompt gate keeps admitted prompts from preempting one another."""
    requests = run.after.scheduler.requests.values()
    only_prompts_run = all_of(*[request.num_output_tokens == 0 for request in requests])
    for each in run.after.scheduler.heard.preemptions:
        is_computed = each.num_computed_tokens >= each.victim.num_prompt_tokens
        claim = f"{each.victim.request_id} is preempted after its prompt"
        yield claim, implies(only_prompts_run, is_computed)
