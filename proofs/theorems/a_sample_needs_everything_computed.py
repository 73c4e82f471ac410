"""When a token is sampled."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.invariant import is_sampler
from proofs.scenarios import SCHEDULE
from proofs.symbolic.values import all_of, any_of, choose, negate


@bounded(*SCHEDULE, mutants=("every_step_samples", "the_last_token_is_not_counted"))
def a_sample_needs_everything_computed(run: Run) -> Iterator[Claim]:
    """A step samples for a request exactly if it completes all that is known or being sampled."""
    for name in run.result.num_scheduled_tokens:
        before, after = (state.scheduler.requests[name] for state in (run.before, run.after))
        parts = [step[name] for step in run.after.steps]
        samples = is_sampler(after, parts, -1)
        num_known_tokens = before.num_tokens + before.num_output_placeholders
        completes = after.num_computed_tokens == num_known_tokens
        yield f"{name} samples if it completes", _is_same(samples, completes)
        if run.after.scheduler.config.async_scheduling:
            num_placeholders = after.num_output_placeholders - before.num_output_placeholders
            yield f"{name} gets a placeholder", num_placeholders == choose(completes, 1, 0)


def _is_same(a: object, b: object) -> object:
    return any_of(all_of(a, b), all_of(negate(a), negate(b)))
