"""Correct transitions around loads to which a rule might object that looks at too little."""

from __future__ import annotations

from spec.actions import KVReceived, SetPauseState, UpdateFromOutput
from spec.interface import SchedulerConfig
from spec.transition import Transition
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story

Made = tuple[SchedulerConfig, Transition]


def a_failed_load_in_a_pause() -> Made:
    """A has given its blocks up and lacks one; it is next all the same, so B waits with its KV."""
    config = make_config(load_kv_async=True, scheduler_reserve_full_isl=False, num_blocks=4)
    story = Story(
        config,
        make_request("A", 8, num_remote_tokens=8),
        make_request("B", 12, num_remote_tokens=4),
    )
    story.run(1)
    story.step(SetPauseState("paused_new"))
    story.step(KVReceived("A", 0))
    story.step(KVReceived("B", 4))
    story.run(1)
    return config, story.schedule()


def a_hit_after_a_failed_load() -> Made:
    """A adopts B's block instead of its own, and nothing is written ahead at its admission."""
    config = make_config(
        load_kv_async=True,
        enable_prefix_caching=True,
        num_speculative_tokens=2,
        num_lookahead_tokens=2,
        lookahead_at_admission=False,
    )
    story = Story(
        config,
        make_request("A", (5,) * 7, num_remote_tokens=4),
        make_request("B", (5,) * 5),
    )
    story.run(1)
    story.step(KVReceived("A", 0))
    return config, story.schedule()


def a_failed_load_is_passed_over() -> Made:
    """A and C have lost their KV. B has the only slot, so A is passed over; C does not fit."""
    config = make_config(load_kv_async=True, num_blocks=5, num_watermark_blocks=3, max_loras=1)
    story = Story(
        config,
        make_request("A", 4, num_remote_tokens=4, lora_id=1),
        make_request("C", 4, num_remote_tokens=4),
        make_request("B", 4, lora_id=2),
    )
    story.run(1)
    story.step(KVReceived("A", 0))
    story.step(KVReceived("C", 0))
    return config, story.schedule()


def all_seats_are_kept() -> Made:
    """A's KV is there and nobody runs, but S, between its turns, keeps the only seat."""
    config = make_config(load_kv_async=True, max_num_seqs=1)
    story = Story(
        config,
        make_request("A", 8, num_remote_tokens=8),
        make_request("S", 5, 1, resumable=True),
    )
    story.run(1)
    story.step(KVReceived("A", 8))
    return config, story.schedule()


def a_padded_admission_outgrows_the_pool() -> Made:
    """A was preempted, and hits its prompt; with its draft slots it needs a block too many."""
    config = make_config(
        enable_prefix_caching=True, num_blocks=2, num_speculative_tokens=4, max_num_batched_tokens=8
    )
    story = Story(config, make_request("A", (5,) * 4))
    story.schedule()
    story.step(UpdateFromOutput({"A": [1]}, {"A": [2, 3, 4, 5]}))
    story.run(1)
    return config, story.schedule()


def a_single_token_is_loaded() -> Made:
    """All of A's prompt is there, a block of one token, and B has the only seat."""
    config = make_config(load_kv_async=True, block_size=1, max_loras=1)
    story = Story(
        config,
        make_request("A", 1, num_remote_tokens=1, lora_id=1),
        make_request("B", 1, lora_id=2),
    )
    story.run(1)
    story.step(KVReceived("A", 1))
    return config, story.schedule()


BASES = (
    a_failed_load_in_a_pause,
    a_hit_after_a_failed_load,
    a_failed_load_is_passed_over,
    all_seats_are_kept,
    a_padded_admission_outgrows_the_pool,
    a_single_token_is_loaded,
)
