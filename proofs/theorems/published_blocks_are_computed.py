"""The corrected rule: earlier promises at grant, this step's once nothing can take it back."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.actions import schedule, update
from proofs.bounded import Claim, Run, Scenario, bounded
from proofs.publication import claims_of_publication, published_is_promised
from proofs.symbolic.state import Shape


@bounded(
    Scenario(
        schedule,
        Shape(num_running=2, num_waiting=0, policy="priority", pool="publication"),
        published_is_promised,
    ),
    Scenario(
        schedule,
        Shape(num_running=1, num_waiting=1, is_async=True, pool="publication"),
        published_is_promised,
    ),
    Scenario(
        update,
        Shape(num_running=2, num_waiting=0, is_async=True, num_steps=2, pool="publication"),
        published_is_promised,
    ),
    Scenario(
        schedule,
        Shape(num_running=2, num_waiting=2, policy="priority", pool="publication"),
        published_is_promised,
        is_slow=True,
    ),
    mutants=("a_chunk_is_published_when_granted",),
    assumptions=("the pool is abstracted to counts of published tokens; any hits are found",),
)
def published_blocks_are_computed(run: Run) -> Iterator[Claim]:
    """A published block was computed by a step that was sent to the worker, or is by this one."""
    yield from claims_of_publication(run)
