"""Correct steps of speculative decoding, and forgeries of them."""

from __future__ import annotations

from typing import Any

from spec.actions import UpdateFromOutput
from spec.interface import SchedulerConfig
from spec.transition import Transition
from tests.spec.forgeries import breaks, output_of
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story


def make_story(num_prompt_tokens: int, **changes: Any) -> tuple[SchedulerConfig, Story]:
    """A has computed its prompt, and was given two drafts."""
    config = make_config(num_speculative_tokens=2, **changes)
    story = Story(config, make_request("A", num_prompt_tokens))
    story.schedule()
    story.step(UpdateFromOutput({"A": [7]}, {"A": [8, 9]}))
    return config, story


def a_verification() -> tuple[SchedulerConfig, Transition]:
    """A's last token and its two drafts are computed; a drafter may write one more ahead."""
    config, story = make_story(5, num_lookahead_tokens=1, num_draft_slots=2)
    return config, story.schedule()


def a_roll_back() -> tuple[SchedulerConfig, Transition]:
    """A's first draft was right, and its second one wrong; it is given one new draft."""
    config, story = make_story(6)
    story.schedule()
    return config, story.step(UpdateFromOutput({"A": [8, 7]}, {"A": [8]}))


def a_step_ahead_of_drafts() -> tuple[SchedulerConfig, Transition]:
    """The step that verifies A's drafts is planned while the one before it is in flight."""
    config = make_config(num_speculative_tokens=2, async_scheduling=True)
    story = Story(config, make_request("A", 3))
    story.schedule()
    return config, story.schedule()


BASES = (a_verification, a_roll_back, a_step_ahead_of_drafts)


@breaks("input_budget_is_kept", a_verification, "17 tokens are batched, max_num_batched_tokens=16")
def _draft_slots_that_nobody_counts(seen: Transition) -> None:
    output_of(seen).num_scheduled_tokens["A"] = 15


@breaks("blocks_are_given_as_needed", a_verification, "A is due 3 blocks, however it holds [1, 2]")
def _no_room_to_write_ahead(seen: Transition) -> None:
    seen.after.requests["A"].block_ids = [1, 2]


@breaks(
    "scheduled_drafts_are_the_requests_own",
    a_verification,
    "drafts [9, 8] of A are verified, due are [8, 9]",
)
def _drafts_in_another_order(seen: Transition) -> None:
    output_of(seen).scheduled_spec_decode_tokens["A"].reverse()


@breaks(
    "scheduled_drafts_are_the_requests_own",
    a_verification,
    "drafts [8, 9] of A are verified, due are [8]",
)
def _a_draft_that_was_cut(seen: Transition) -> None:
    output_of(seen).num_scheduled_tokens["A"] = 2


@breaks(
    "scheduled_drafts_are_the_requests_own",
    a_verification,
    "drafts of A are verified, however the step computes none of its tokens",
)
def _drafts_that_were_taken_back(seen: Transition) -> None:
    del output_of(seen).num_scheduled_tokens["A"]


@breaks(
    "scheduled_drafts_are_the_requests_own",
    a_step_ahead_of_drafts,
    "drafts [8, 9] of A are verified, due are [-1, -1]",
)
def _drafts_that_only_the_worker_knows(seen: Transition) -> None:
    output_of(seen).scheduled_spec_decode_tokens["A"] = [8, 9]


@breaks(
    "drafts_are_for_the_next_step",
    a_verification,
    "A has 2 drafts, however it was given 0",
)
def _drafts_that_stay(seen: Transition) -> None:
    seen.after.requests["A"].num_draft_tokens = 2


@breaks("drafts_are_for_the_next_step", a_roll_back, "A has 0 drafts, however it was given 1")
@breaks(
    "drafts_are_for_the_next_step",
    a_step_ahead_of_drafts,
    "A has 0 drafts, however it was given 2",
)
def _drafts_that_are_forgotten(seen: Transition) -> None:
    seen.after.requests["A"].num_draft_tokens = 0


@breaks(
    "rejected_drafts_are_rolled_back",
    a_roll_back,
    "A has num_computed_tokens=9, however it was 9 with 1 drafts that are rejected",
)
def _a_wrong_draft_counts(seen: Transition) -> None:
    seen.after.requests["A"].num_computed_tokens = 9


@breaks(
    "computed_is_within_tokens",
    a_verification,
    "A has num_computed_tokens=9, however at most 8 make sense",
)
def _more_than_the_drafts(seen: Transition) -> None:
    seen.after.requests["A"].num_computed_tokens = 9


@breaks(
    "placeholders_count_pending_samples",
    a_step_ahead_of_drafts,
    "A has num_output_placeholders=2, 4 of its tokens are being sampled",
)
def _drafts_without_placeholders(seen: Transition) -> None:
    seen.after.requests["A"].num_output_placeholders = 2
