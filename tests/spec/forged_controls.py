"""Forgeries of what an engine is told beside requests, and of limits that are off by default."""

from __future__ import annotations

from functools import partial

from spec.actions import ResetPrefixCache, SetPauseState
from spec.interface import EngineCoreOutput, NewRequest, PauseState, SchedulerConfig
from spec.transition import Transition
from tests.spec.forgeries import breaks, output_of
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story

Made = tuple[SchedulerConfig, Transition]

# ---- transitions of correct runs -----------------------------------------------------------------


def a_step_in(pause_state: PauseState) -> Made:
    """A runs and B waits while a step is planned."""
    config = make_config()
    story = Story(config, make_request("A", 6))
    story.run(1)
    story.add(make_request("B", 3))
    story.step(SetPauseState(pause_state))
    return config, story.schedule()


a_pause_of_admission = partial(a_step_in, "paused_new")
a_pause_of_all = partial(a_step_in, "paused_all")


def two_adapters() -> Made:
    """A and B have the two adapters that may be in a step, and C waits for another."""
    config = make_config(max_loras=2)
    requests = [make_request(name, 3, lora_id=n) for n, name in enumerate("ABC", 1)]
    return config, Story(config, *requests).schedule()


def prompts_in_part() -> Made:
    """A and B have long prompts, of which one may be computed in part, and C's is short."""
    config = make_config(
        max_num_batched_tokens=6,
        long_prefill_token_threshold=4,
        max_num_partial_prefills=1,
        max_long_partial_prefills=1,
    )
    requests = [make_request(name, n) for name, n in (("A", 8), ("B", 8), ("C", 1))]
    return config, Story(config, *requests).schedule()


def a_grammar() -> Made:
    """A waits for its grammar, and B is admitted."""
    config = make_config()
    requests = [make_request("A", 3, structured_output=True), make_request("B", 3)]
    return config, Story(config, *requests).schedule()


def a_refusal() -> Made:
    """A may grow to 3 blocks of 2, and B waits."""
    config = make_config(num_blocks=2, reject_too_large=True)
    story = Story(config, make_request("B", 3, max_tokens=1))
    return config, story.add(make_request("A", 5, client_index=1))


def an_arrival_that_fits() -> Made:
    """A may grow to 2 blocks of 2."""
    config = make_config(num_blocks=2, reject_too_large=True)
    return config, Story(config).add(make_request("A", 5, max_tokens=4))


def a_reset(*, reset_running_requests: bool) -> Made:
    """The cache is reset while A runs, who has published block 1."""
    config = make_config(enable_prefix_caching=True)
    story = Story(config, NewRequest(request_id="A", prompt_token_ids=(5,) * 6, max_tokens=8))
    story.run(1)
    return config, story.step(ResetPrefixCache(reset_running_requests))


a_reset_that_is_refused = partial(a_reset, reset_running_requests=False)
a_reset_of_who_runs = partial(a_reset, reset_running_requests=True)

BASES = (
    a_pause_of_admission,
    a_pause_of_all,
    two_adapters,
    prompts_in_part,
    a_grammar,
    a_refusal,
    an_arrival_that_fits,
    a_reset_that_is_refused,
    a_reset_of_who_runs,
)

# ---- forgeries -----------------------------------------------------------------------------------


@breaks(
    "pauses_are_kept",
    a_pause_of_admission,
    "['B'] are admitted, however the scheduler is paused_new",
)
def _admitted_in_a_pause(seen: Transition) -> None:
    seen.after.waiting.remove("B")
    seen.after.running.append("B")


@breaks(
    "pauses_are_kept",
    a_pause_of_all,
    "scheduled are {'A': 1}, preempted [], however the scheduler is paused_all",
)
def _scheduled_in_a_pause(seen: Transition) -> None:
    output_of(seen).num_scheduled_tokens["A"] = 1


@breaks("max_loras_is_kept", two_adapters, "the adapters [1, 2, 3] have slots, max_loras=2")
def _an_adapter_too_many(seen: Transition) -> None:
    seen.after.running.append("C")
    output_of(seen).num_scheduled_tokens["C"] = 3


@breaks(
    "partial_prefills_are_limited",
    prompts_in_part,
    "the prompts of ['A', 'B'] are computed in part, max_num_partial_prefills=1",
    "the long prompts of ['A', 'B'] are computed in part, max_long_partial_prefills=1",
)
def _a_prompt_too_many(seen: Transition) -> None:
    seen.after.running.insert(1, "B")


@breaks(
    "nobody_overtakes",
    a_grammar,
    "A is admitted while its grammar is being compiled",
)
def _admitted_without_a_grammar(seen: Transition) -> None:
    seen.after.running.insert(0, "A")


@breaks("requests_are_conserved", a_grammar, "A waits with status WAITING")
def _a_grammar_that_was_forgotten(seen: Transition) -> None:
    seen.after.requests["A"].status = "WAITING"


@breaks(
    "what_never_fits_is_refused",
    a_refusal,
    "A may outgrow the pool, however it is taken",
)
def _nobody_is_refused(seen: Transition) -> None:
    seen.outcome.results = None


@breaks(
    "what_never_fits_is_refused",
    an_arrival_that_fits,
    "A cannot outgrow the pool, however client 0 is sent [] for A with finish_reason=error",
)
def _who_fits_is_refused(seen: Transition) -> None:
    seen.outcome.results = {0: [EngineCoreOutput("A", [], "error")]}


@breaks(
    "a_reset_forgets_all_or_nothing",
    a_reset_that_is_refused,
    "[] can be found, [1] before; held are [1, 2]",
    "the answer is True; held are [1, 2]",
)
def _forgotten_while_held(seen: Transition) -> None:
    seen.after.cached_block_ids.clear()
    seen.outcome.is_reset = True


@breaks(
    "a_reset_forgets_all_or_nothing",
    a_reset_of_who_runs,
    "['A'] still run, however running requests were to be reset",
    "[1] can be found, [1] before; held are []",
)
def _nothing_is_reset(seen: Transition) -> None:
    seen.after.running.append("A")
    seen.after.cached_block_ids.append(1)


@breaks(
    "victims_keep_only_their_tokens",
    a_reset_of_who_runs,
    "A is PREEMPTED with num_computed_tokens=6, num_output_placeholders=0, block_ids=[]",
)
def _computed_survives_a_reset(seen: Transition) -> None:
    seen.after.requests["A"].num_computed_tokens = 6
