"""States as values: nothing is lost but names, and what was done can be undone."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from spec.interface import NewRequest, RepetitionDetection, RequestStatus, SchedulerConfig
from spec.model import Environment, Schedule, UpdateFromOutput
from spec.request import Request
from spec.snapshot import Snapshot, SpecModel, freeze, rewind, save, thaw
from tests.spec.support import (
    Successors,
    choices,
    configs,
    explore,
    explore_with_names,
    make_environment,
    make_root,
    walk,
)


def make_shape(prompt: tuple[int, ...], max_tokens: int, **fields: Any) -> NewRequest:
    """An item of a menu."""
    return NewRequest(request_id="", prompt_token_ids=prompt, max_tokens=max_tokens, **fields)


LONG, SHORT = make_shape((1, 1, 1), 3), make_shape((1,), 3)


@frozen
class Case:
    """A feature in a configuration so small that all its states can be visited, and yet blocks run out."""

    num_states: int
    """How many there are, with any number of arrivals."""
    num_states_of_3_arrivals: int
    config: dict[str, Any] = {}
    environment: dict[str, Any] = {}

    def make_root(self, max_arrivals: int = 0) -> SpecModel:
        """The state in which nothing has happened yet."""
        config = {
            "max_num_batched_tokens": 3,
            "max_num_seqs": 2,
            "max_model_len": 6,
            "block_size": 2,
            "num_blocks": 3,
            **self.config,
        }
        environment = {
            "shapes": (LONG, SHORT),
            "max_live_requests": 2,
            "max_in_flight": 2 if "async_scheduling" in config else 1,
            "max_arrivals": max_arrivals,
            **self.environment,
        }
        return make_root(SchedulerConfig(**config), Environment(**environment))


CACHING = {"enable_prefix_caching": True}
ASYNC = {"async_scheduling": True}
PRIORITY = {"policy": "priority"}
OUTRANKED = {"shapes": (evolve(LONG, priority=1), SHORT)}
CHUNKS = {"max_num_batched_tokens": 2, "max_num_seqs": 3}
THREE_LIVE = {"max_live_requests": 3}
REPEATING = make_shape((1,), 4, repetition_detection=RepetitionDetection(2))
ONE_SHAPE = {"shapes": (LONG,), "sampled_token_ids": (1, 2)}

CASES = {
    "fcfs": Case(0, 0),
    "priority": Case(0, 0, PRIORITY, OUTRANKED),
    "caching": Case(0, 0, CACHING, ONE_SHAPE),
    "async": Case(0, 0, ASYNC),
    "async_depth_3": Case(0, 0, ASYNC, {"max_in_flight": 3}),
    "async_priority": Case(0, 0, {**ASYNC, **PRIORITY}, OUTRANKED),
    "async_caching": Case(0, 0, {**ASYNC, **CACHING}, ONE_SHAPE),
    "stale_not_waited_for": Case(
        0, 0, {**ASYNC, "wait_for_stale_output": False}, {"max_in_flight": 3}
    ),
    "stale_dropped": Case(0, 0, {**ASYNC, "deliver_stale_output": False}),
    "everything": Case(
        0,
        0,
        {**ASYNC, **CACHING, **PRIORITY, "publish_at_grant": True, "uncached_blocks_first": False},
        {"shapes": (LONG, make_shape((1, 1, 2), 2, priority=1)), "sampled_token_ids": (1,)},
    ),
    "salts": Case(
        0, 0, CACHING, {"shapes": (LONG, evolve(LONG, cache_salt="a")), "sampled_token_ids": (1,)}
    ),
    "repetition": Case(0, 0, {}, {"shapes": (REPEATING,), "sampled_token_ids": (1, 2)}),
    "threshold": Case(0, 0, {"long_prefill_token_threshold": 1}),
    "watermark": Case(0, 0, {"num_watermark_blocks": 1}),
    "first_chunk_gate": Case(0, 0, {**CHUNKS, "scheduler_reserve_full_isl": False}, THREE_LIVE),
    "reserve_gate": Case(0, 0, {**CHUNKS, "reserve_admitted_prefills": True}, THREE_LIVE),
    "whole_prompts": Case(0, 0, {"enable_chunked_prefill": False, "max_num_batched_tokens": 5}),
}

OF_3_ARRIVALS = {"fcfs": 0, "priority": 0, "caching": 0, "async": 0}
