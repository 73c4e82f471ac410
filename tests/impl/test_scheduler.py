"""Our own engine does exactly what the reference scheduler does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from attrs import fields
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.block_pool import BlockPool
from impl.free_block_queue import FreeBlockQueue
from impl.prefix_cache import PrefixCache
from impl.request_queue import FCFSRequestQueue, PriorityRequestQueue
from impl.scheduler import FastScheduler
from spec.dialects import DIALECTS
from spec.interface import SchedulerConfig
from tests.impl.walk import Walk

NUM_ACTIONS = 80

seeds = st.integers(min_value=0, max_value=2**32 - 1)

FLIPS: list[dict[str, Any]] = [
    {"max_num_seqs": 1},
    {"long_prefill_token_threshold": 2},
    {"enable_chunked_prefill": False},
    {"scheduler_reserve_full_isl": False},
    {"reserve_admitted_prefills": True},
    {"num_watermark_blocks": 1},
    {"max_num_partial_prefills": 1},
    {"max_long_partial_prefills": 1, "long_prefill_token_threshold": 2},
    {"max_loras": 1},
    {"num_speculative_tokens": 2},
    {"num_speculative_tokens": 2, "num_lookahead_tokens": 3},
    {"num_speculative_tokens": 2, "num_draft_slots": 2},
    {"reject_too_large": True},
    {"publish_at_grant": True},
    {"same_step_prefix_hits": False},
    {"threshold_spares_lone_request": False, "long_prefill_token_threshold": 2},
    {"uncached_blocks_first": False},
    {"continue_after_self_preemption": False},
    {"cursor_follows_victim": "scheduled"},
    {"cursor_follows_victim": "never"},
    {"wait_for_stale_output": False},
    {"deliver_stale_output": False},
    {"stop_at_max_tokens_in_flight": False},
    {"stop_order": "min_stop_length"},
    {"stop_order": "length_stop"},
    *DIALECTS.values(),
]
"""What departs from the defaults, which are vLLM 0.33.0."""

SIZES = ("max_num_batched_tokens", "max_num_scheduled_tokens", "max_num_seqs", "max_model_len")
DRAWN = (*SIZES, "block_size", "num_blocks", "policy", "enable_prefix_caching", "async_scheduling")


def name_of(flip: dict[str, Any]) -> str:
    """Names a case after what it flips."""
    return " ".join(f"{name}={value}" for name, value in flip.items()) or "defaults"


def defaults() -> dict[str, Any]:
    """The default of every field of a config that has one and is not drawn."""
    return {a.name: a.default for a in fields(SchedulerConfig) if a.name not in DRAWN}


# ---- lockstep ------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@given(seed=seeds)
@settings(max_examples=25)
def test_walks_with_the_reference_scheduler(
    policy: str, enable_prefix_caching: bool, max_in_flight: int, seed: int
) -> None:
    """Outputs, results and state are those of the spec, exact block ids included."""
    walk = Walk.from_seed(
        seed,
        policy=policy,
        enable_prefix_caching=enable_prefix_caching,
        async_scheduling=max_in_flight > 1,
    )
    walk.max_in_flight = max_in_flight
    walk.take(NUM_ACTIONS)


@pytest.mark.parametrize("flip", FLIPS, ids=name_of)
@given(seed=seeds)
@settings(max_examples=15)
def test_walks_with_the_reference_scheduler_in_every_dialect(
    flip: dict[str, Any], seed: int
) -> None:
    """A field that departs from its default changes our engine as it changes the spec."""
    Walk.from_seed(seed, **{**defaults(), **flip}).take(NUM_ACTIONS)


@given(seed=seeds)
def test_pool_smaller_than_a_request_is_survived(seed: int) -> None:
    """Where a request can never fit, both wait, and admit nobody else, in the same way."""
    Walk.from_seed(seed, max_model_len=20, block_size=2, num_blocks=3).take(NUM_ACTIONS)


@given(seed=seeds)
def test_skipped_requests_keep_their_order(seed: int) -> None:
    """Where several requests wait for stale output at once, they are put back as they stood.

    That takes a tight pool of small blocks, no gate, and three steps in flight.
    """
    fixed = {
        **defaults(),
        "policy": "fcfs",
        "async_scheduling": True,
        "scheduler_reserve_full_isl": False,
        "max_num_seqs": 6,
        "max_model_len": 16,
        "block_size": 1,
        "num_blocks": 18,
        "max_num_scheduled_tokens": 12,
        "max_num_batched_tokens": 12,
    }
    walk = Walk.from_seed(seed, **fixed)
    walk.max_in_flight = 3
    walk.take(NUM_ACTIONS)


def test_walks_reach_what_they_compare() -> None:
    """The walks are not vacuous: in a few hundred of them all that matters happens."""
    reached: Counter[str] = Counter()
    for seed in range(400):
        walk = Walk.from_seed(seed)
        walk.take(NUM_ACTIONS)
        reached += walk.reached
    expected = {
        "preemption",
        "resumption",
        "prefix hit",
        "draft",
        "decode",
        "abort in flight",
        "stale output",
        "stop",
        "length",
        "repetition",
        "error",
        "pause",
        "grammar",
        "reset",
        "turn",
    }
    assert expected == {name for name, count in reached.items() if count >= 20}


# ---- planted bugs --------------------------------------------------------------------------------

BUGS: list[tuple[type, str, Callable[..., Any]]] = [
    (FastScheduler, "_take_back", lambda *_: None),
    (FastScheduler, "_publish_granted", lambda self: self.granted.clear()),
    (FastScheduler, "_samples_its_last_token", lambda *_: False),
    (FastScheduler, "_roll_back", lambda *_: None),
    (FastScheduler, "_forget_unscheduled_drafts", lambda *_: None),
    (FastScheduler, "_num_tokens_to_hold", lambda _, num_tokens: num_tokens),
    (FastScheduler, "_tokens_left", lambda self: self.token_budget),
    (FastScheduler, "_cap_long_prefill", lambda _, num_new_tokens: num_new_tokens),
    (FastScheduler, "_choose_victim", lambda self: self.running[0]),
    (FastScheduler, "_has_seat", lambda *_: True),
    (FastScheduler, "_is_ready", lambda *_: True),
    (FastScheduler, "_has_room_for", lambda *_: True),
    (FastScheduler, "_num_missing_blocks", lambda *_: 0),
    (FastScheduler, "_close_gaps", lambda *_: None),
    (BlockPool, "_set_decode_until", lambda _, request: setattr(request, "decode_until", 99)),
    (BlockPool, "cache_full_blocks", lambda *_: None),
    (BlockPool, "touch", lambda *_: None),
    (BlockPool, "free_blocks", lambda *_: None),
    (BlockPool, "_maybe_evict_cached_block", lambda *_: None),
    (BlockPool, "take_new_block_ids", lambda _: []),
    (FreeBlockQueue, "prepend_n", lambda self, block_ids: self.append_n(block_ids)),
    (PrefixCache, "find", lambda *_: None),
    (FCFSRequestQueue, "prepend_request", lambda self, request: self.add_request(request)),
    (PriorityRequestQueue, "add_request", lambda self, request: self._requests.append(request)),
]


@pytest.mark.parametrize(("owner", "name", "bug"), BUGS, ids=[name for _, name, _ in BUGS])
def test_walks_catch_a_planted_bug(
    owner: type, name: str, bug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Effects and gates are methods: one that is patched away makes a walk differ, or raise."""
    monkeypatch.setattr(owner, name, bug)
    assert any(differs(seed) for seed in range(300))


def differs(seed: int) -> bool:
    """Whether a walk finds a difference; an engine that raises differs as well."""
    try:
        Walk.from_seed(seed).take(NUM_ACTIONS)
    except Exception:  # noqa: BLE001
        return True
    return False


# ---- what speed must not cost --------------------------------------------------------------------


class PatientScheduler(FastScheduler):
    """Takes the long way with every request."""

    def _schedule_decodes(self) -> None:
        pass


@given(seed=seeds)
def test_fast_path_decides_nothing(seed: int) -> None:
    """Decodes are scheduled as the long way would schedule them."""
    walk = Walk.from_seed(seed)
    Walk(walk.config, walk.rng, walk.max_in_flight, PatientScheduler).take(NUM_ACTIONS)


@given(seed=seeds)
@settings(max_examples=25)
def test_what_is_handed_out_never_changes(seed: int) -> None:
    """An output, a result or an observation stays what it was, whatever happens afterwards."""
    walk = Walk.from_seed(seed)
    kept = []
    for _ in range(NUM_ACTIONS):
        outcome = walk.do(walk.choose())
        given_out = (outcome.output, outcome.results, walk.checked.scheduler.observe())
        kept.append((deepcopy(given_out), given_out))
    for expected, actual in kept:
        assert expected == actual


@given(seed=seeds)
@settings(max_examples=25)
def test_deep_copy_goes_its_own_way(seed: int) -> None:
    """A copied scheduler goes on as the original would have, and leaves the original alone."""
    walk = Walk.from_seed(seed)
    walk.take(NUM_ACTIONS // 2)
    expected = walk.checked.scheduler.observe()
    walk.fork().take(NUM_ACTIONS // 2)
    assert expected == walk.checked.scheduler.observe()
    walk.take(NUM_ACTIONS // 2)
