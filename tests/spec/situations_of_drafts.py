"""Situations of speculative decoding."""

from __future__ import annotations

from spec.actions import UpdateFromOutput
from spec.interface import SchedulerConfig
from spec.transition import Transition
from tests.spec.forged_drafts import make_story
from tests.spec.situations import shows
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story


def verified(*row: int) -> tuple[SchedulerConfig, Transition]:
    """The return of a step that has verified A's drafts 8 and 9."""
    config, story = make_story(6)
    story.schedule()
    return config, story.step(UpdateFromOutput({"A": list(row)}))


@shows("draft_rejected")
def no_draft_is_right() -> tuple[SchedulerConfig, Transition]:
    """The token after A's last one is not the first draft."""
    return verified(7)


@shows("draft_accepted")
def a_draft_is_right() -> tuple[SchedulerConfig, Transition]:
    """The first draft is right, the second one is not."""
    return verified(8, 7)


@shows("all_drafts_accepted")
def all_drafts_are_right() -> tuple[SchedulerConfig, Transition]:
    """Both drafts are right, and one token more is sampled."""
    return verified(8, 9, 7)


@shows("drafts_are_cut")
def a_budget_cuts_drafts() -> tuple[SchedulerConfig, Transition]:
    """The budget leaves room for one of two drafts."""
    config, story = make_story(2, max_num_batched_tokens=2, pad_admitted_decodes=False)
    return config, story.schedule()


@shows("preemption", "victim_before_the_cursor", "drafts_are_taken_back")
def a_victim_with_drafts() -> tuple[SchedulerConfig, Transition]:
    """A's drafts are scheduled already when B, who outranks it, needs a block."""
    config = make_config(num_blocks=3, policy="priority", num_speculative_tokens=1)
    story = Story(config, make_request("A", 4, priority=1))
    story.run(1)
    story.add(make_request("B", 4, priority=0))
    story.schedule()
    story.step(UpdateFromOutput({"A": [0], "B": [0]}, {"A": [1]}))
    return config, story.schedule()


@shows("drafts_of_a_voided_step", "stale_output", "draft_rejected")
def a_voided_step_of_drafts() -> tuple[SchedulerConfig, Transition]:
    """B is preempted while a step that verifies its draft is in flight, which then returns.

    A's draft is in it, too, and wrong.
    """
    config = make_config(num_blocks=4, async_scheduling=True, num_speculative_tokens=1)
    story = Story(config, make_request("A", 6), make_request("B", 6))
    story.schedule()
    story.schedule()
    story.schedule()
    story.update()
    return config, story.update()


def one_token_beside(
    num_prompt_tokens: int, max_num_batched_tokens: int
) -> tuple[SchedulerConfig, Transition]:
    """B, of one token, arrives while A decodes, or computes its prompt 4 tokens at a time."""
    config = make_config(
        max_num_batched_tokens=max_num_batched_tokens,
        long_prefill_token_threshold=4,
        threshold_spares_lone_request=False,
        num_speculative_tokens=2,
    )
    story = Story(config, make_request("A", num_prompt_tokens))
    story.run(1)
    story.add(make_request("B", 1))
    return config, story.schedule()


@shows("padded_admission")
def an_admission_is_padded() -> tuple[SchedulerConfig, Transition]:
    """B is given two draft slots."""
    return one_token_beside(3, 4)


@shows("refused_by_padding")
def padding_that_does_not_fit() -> tuple[SchedulerConfig, Transition]:
    """Beside A's token there are two, and B wants three."""
    return one_token_beside(3, 3)


@shows("chunked_prefill")
def no_padding_beside_a_prompt() -> tuple[SchedulerConfig, Transition]:
    """A is in the middle of its prompt, so the requests of the step are not alike anyway."""
    return one_token_beside(9, 6)


@shows("refused_by_input_budget")
def draft_slots_fill_the_batch() -> tuple[SchedulerConfig, Transition]:
    """A's tokens and its draft slots leave room for B's slots only."""
    config = make_config(max_num_batched_tokens=10, num_speculative_tokens=2, num_draft_slots=2)
    return config, Story(config, make_request("A", 6), make_request("B", 3)).schedule()
