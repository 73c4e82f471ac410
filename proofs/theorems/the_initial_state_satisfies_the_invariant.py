"""Where every run begins."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.actions import start
from proofs.bounded import Claim, Run, Scenario, bounded
from proofs.invariant import instances
from proofs.symbolic.state import Shape


@bounded(
    Scenario(start, Shape(num_running=0, num_waiting=0, num_steps=0)),
    mutants=("a_pool_starts_a_block_short",),
)
def the_initial_state_satisfies_the_invariant(run: Run) -> Iterator[Claim]:
    """A scheduler that has just been built satisfies the invariant."""
    yield from instances(run.after.scheduler)
