"""Situations of pauses, refusals, slots, grammars and resets."""

from __future__ import annotations

from typing import Any

from spec.actions import GrammarReady, ResetPrefixCache, SetPauseState
from spec.interface import PauseState, SchedulerConfig
from spec.transition import Transition
from tests.spec.situations import shows
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story

Sight = tuple[SchedulerConfig, Transition]


def a_step_in(pause_state: PauseState) -> Sight:
    """A runs and B waits while a step is planned."""
    config = make_config()
    story = Story(config, make_request("A", 5))
    story.run(1)
    story.add(make_request("B", 5))
    story.step(SetPauseState(pause_state))
    return config, story.schedule()


@shows("refused_by_pause")
def a_pause_of_admission() -> Sight:
    """A goes on, and B is not admitted."""
    return a_step_in("paused_new")


@shows("refused_by_pause", "paused_while_running")
def a_pause_of_all() -> Sight:
    """A rests, and B is not admitted."""
    return a_step_in("paused_all")


@shows()
def a_pause() -> Sight:
    """The pause itself does nothing."""
    config = make_config()
    return config, Story(config, make_request("A", 5)).step(SetPauseState("paused_all"))


def an_arrival(num_prompt_tokens: int) -> Sight:
    """A arrives at a pool of 8 tokens."""
    config = make_config(num_blocks=2, reject_too_large=True)
    return config, Story(config).add(make_request("A", num_prompt_tokens, max_tokens=1))


@shows("refused_at_arrival")
def an_arrival_that_never_fits() -> Sight:
    """A has 9 tokens to compute."""
    return an_arrival(9)


@shows()
def an_arrival_that_just_fits() -> Sight:
    """A has 8 tokens to compute; the one that they give ends it."""
    return an_arrival(8)


def a_step_with_loras(*lora_ids: int) -> Sight:
    """One request for each adapter waits; two adapters may be in a step."""
    config = make_config(max_loras=2)
    requests = [make_request(name, 3, lora_id=n) for name, n in zip("ABCD", lora_ids, strict=False)]
    return config, Story(config, *requests).schedule()


@shows("refused_by_max_loras")
def one_adapter_too_many() -> Sight:
    """A and B take both slots, and C needs another."""
    return a_step_with_loras(1, 2, 3)


@shows("refused_by_max_loras", "overtaking")
def an_adapter_is_passed_over() -> Sight:
    """D has an adapter that is in the step, so it passes C."""
    return a_step_with_loras(1, 2, 3, 1)


def an_adapter_that_rests(*, idle_loras_count: bool) -> Sight:
    """A waits for its last token, with the one adapter; B has another."""
    config = make_config(max_loras=1, async_scheduling=True, idle_loras_count=idle_loras_count)
    requests = [make_request(name, 3, max_tokens=1, lora_id=n) for name, n in (("A", 1), ("B", 2))]
    story = Story(config, *requests)
    story.schedule()
    return config, story.schedule()


@shows("refused_by_max_loras", "refused_by_an_idle_lora")
def an_adapter_that_keeps_its_slot() -> Sight:
    """B waits."""
    return an_adapter_that_rests(idle_loras_count=True)


@shows()
def an_adapter_that_gives_its_slot_up() -> Sight:
    """B is admitted."""
    return an_adapter_that_rests(idle_loras_count=False)


@shows()
def the_base_model_needs_no_slot() -> Sight:
    """C has no adapter."""
    return a_step_with_loras(1, 2, 0)


def prompts(*lengths: int, **limits: Any) -> Sight:
    """Prompts wait; a step computes 6 tokens, 4 of each at most."""
    config = make_config(max_num_batched_tokens=6, long_prefill_token_threshold=4, **limits)
    requests = [make_request(name, n) for name, n in zip("ABC", lengths, strict=False)]
    return config, Story(config, *requests).schedule()


@shows("chunked_prefill", "refused_by_partial_prefills")
def one_prompt_in_part_too_many() -> Sight:
    """Of A's prompt a part is left, and of B's only 2 tokens would be computed."""
    return prompts(8, 3, 1, max_num_partial_prefills=1)


@shows("chunked_prefill")
def a_whole_prompt_beside_one_in_part() -> Sight:
    """Of A's prompt a part is left, and B's is computed whole."""
    return prompts(8, 2, max_num_partial_prefills=1)


@shows("chunked_prefill", "refused_by_long_prefills")
def one_long_prompt_too_many() -> Sight:
    """A and B have long prompts, and one may be computed in part."""
    return prompts(8, 8, max_long_partial_prefills=1)


@shows("chunked_prefill", "refused_by_long_prefills", "overtaking")
def a_long_prompt_is_passed_over() -> Sight:
    """C has a short prompt, and passes B."""
    return prompts(8, 8, 1, max_long_partial_prefills=1)


def a_grammar(*, is_ready: bool) -> Sight:
    """A waits for its grammar, or has it."""
    config = make_config()
    story = Story(config, make_request("A", 3, structured_output=True))
    if is_ready:
        story.step(GrammarReady("A"))
    return config, story.schedule()


@shows("refused_as_not_ready")
def a_grammar_is_compiled() -> Sight:
    """A is not admitted."""
    return a_grammar(is_ready=False)


@shows()
def a_grammar_was_compiled() -> Sight:
    """A is admitted."""
    return a_grammar(is_ready=True)


def a_reset(*, is_over: bool, reset_running_requests: bool) -> Sight:
    """The cache is reset after A has published a block, and has ended or not."""
    config = make_config(enable_prefix_caching=True, async_scheduling=True)
    story = Story(config, make_request("A", 4, max_tokens=1))
    story.schedule()
    if is_over:
        story.update()
    return config, story.step(ResetPrefixCache(reset_running_requests))


@shows("reset_of_content")
def a_reset_at_rest() -> Sight:
    """Nobody holds the block, so it is forgotten."""
    return a_reset(is_over=True, reset_running_requests=False)


@shows()
def a_reset_that_is_refused() -> Sight:
    """A holds the block."""
    return a_reset(is_over=False, reset_running_requests=False)


@shows("dropped_output", "stale_output")
def a_step_returns_after_a_reset() -> Sight:
    """A's token was being sampled at the reset."""
    config = make_config(enable_prefix_caching=True, async_scheduling=True)
    story = Story(config, make_request("A", 4, max_tokens=2))
    story.schedule()
    story.step(ResetPrefixCache(reset_running_requests=True))
    return config, story.update()


@shows("reset_of_content", "reset_in_flight")
def a_reset_of_who_runs() -> Sight:
    """A loses the block while a step computes its tokens."""
    return a_reset(is_over=False, reset_running_requests=True)
