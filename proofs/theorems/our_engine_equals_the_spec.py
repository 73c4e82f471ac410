"""Our engine's real code beside the spec's."""

from __future__ import annotations

from collections.abc import Iterator

import proofs.engine_mutants  # noqa: F401  (registers them)
from proofs.agreement import (
    abort,
    add_request,
    claims_of_agreement,
    publish,
    schedule,
    update,
)
from proofs.bounded import Claim, Run, Scenario, bounded
from proofs.publication import published_is_promised
from proofs.scenarios import arrival_makes_sense
from proofs.symbolic.state import Shape
from spec.dialects import DIALECTS

WHOLE_PROMPTS = frozenset({("enable_chunked_prefill", False)})
RESERVES = frozenset({("reserve_admitted_prefills", True)})
OLDER = [frozenset(DIALECTS[name].items()) for name in ("vllm-0.16.0", "vllm-0.11.0")]
OLDER_DIALECTS = tuple(
    Scenario(
        action,
        Shape(num_running=1, num_waiting=1, is_async=True, num_steps=2, switches=switches),
        is_slow=True,
    )
    for switches in OLDER
    for action in (schedule, update)
)


@bounded(
    Scenario(add_request, Shape(num_running=1, num_waiting=2), arrival_makes_sense),
    Scenario(
        add_request, Shape(num_running=1, num_waiting=3, policy="priority"), arrival_makes_sense
    ),
    Scenario(abort, Shape(num_running=2, num_waiting=2)),
    Scenario(
        abort,
        Shape(num_running=2, num_waiting=2, policy="priority", pool="publication"),
        published_is_promised,
    ),
    Scenario(update, Shape(num_running=1, num_waiting=1, num_steps=2)),
    Scenario(schedule, Shape(num_running=1, num_waiting=1)),
    Scenario(schedule, Shape(num_running=2, num_waiting=0, policy="priority")),
    Scenario(schedule, Shape(num_running=1, num_waiting=1, is_async=True)),
    Scenario(schedule, Shape(num_running=1, num_waiting=1, switches=WHOLE_PROMPTS)),
    Scenario(schedule, Shape(num_running=1, num_waiting=1, switches=RESERVES)),
    Scenario(update, Shape(num_running=2, num_waiting=2, num_steps=2), is_slow=True),
    Scenario(update, Shape(num_running=2, num_waiting=2, is_async=True, num_steps=2), is_slow=True),
    Scenario(schedule, Shape(num_running=2, num_waiting=2), is_slow=True),
    Scenario(schedule, Shape(num_running=2, num_waiting=1, policy="priority"), is_slow=True),
    Scenario(
        schedule,
        Shape(num_running=1, num_waiting=1, is_async=True, pool="publication"),
        published_is_promised,
        is_slow=True,
    ),
    *OLDER_DIALECTS,
    mutants=(
        "our_victim_keeps_its_tokens",
        "our_decode_is_not_awaited",
        "our_watermark_is_forgotten",
        "our_cursor_skips_a_request",
        "our_stale_token_fills_a_placeholder",
        "our_end_leaves_its_blocks",
        "our_arrival_may_be_longer",
    ),
    assumptions=(
        "the blocks of both are counted (our_pool_equals_the_spec is about those with names)",
        "our_publishing_is_counted, where blocks are published",
    ),
)
def our_engine_equals_the_spec(run: Run) -> Iterator[Claim]:
    """Whatever happens to both, our engine answers as the spec does, and ends in the same state."""
    yield from claims_of_agreement(run)


@bounded(
    Scenario(
        publish,
        Shape(num_running=1, num_waiting=0, pool="publication", num_steps=0),
        published_is_promised,
    ),
    mutants=("our_decode_publishes_too_late",),
)
def our_publishing_is_counted(run: Run) -> Iterator[Claim]:
    """What our pool publishes, and when it has to be asked next, is what its counted form says."""
    yield from claims_of_agreement(run)
