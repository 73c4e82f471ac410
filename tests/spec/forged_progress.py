"""Forgeries in which the oldest request is passed over."""

from __future__ import annotations

from spec.interface import SchedulerConfig
from spec.transition import Transition
from tests.spec.forgeries import a_preemption, breaks, output_of
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story


def an_admission_of_the_first() -> tuple[SchedulerConfig, Transition]:
    """A is admitted while nobody runs."""
    config = make_config()
    return config, Story(config, make_request("A", 6)).schedule()


@breaks(
    "the_oldest_gains_a_token",
    a_preemption,
    "A is the oldest, 1 tokens are due, however the step computes none",
)
@breaks(
    "the_oldest_gains_a_token",
    an_admission_of_the_first,
    "A is the oldest, 6 tokens are due, however the step computes none",
)
def _the_first_is_passed_over(seen: Transition) -> None:
    del output_of(seen).num_scheduled_tokens["A"]
