"""A run of any scheduler, written down in the format of recorded runs.

Entry points: `write_header`, then `write_event` for each action: plain data, a line of JSON each.
tests/recordings/README.md describes the format; `checkers.recording` reads it.
"""

from __future__ import annotations

from typing import Any

import attrs

from checkers.configs import make_scheduler_config
from checkers.recording import SCHEMA
from spec.actions import ACTION_NAMES, Action, AddRequest, FinishRequests, UpdateFromOutput
from spec.interface import NewRequest, Observation, SchedulerConfig, SchedulerOutput
from spec.transition import Outcome

NAMED_BY_ALL = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "max_model_len",
    "long_prefill_token_threshold",
    "policy",
    "enable_prefix_caching",
    "async_scheduling",
    "scheduler_reserve_full_isl",
)
"""The fields of a configuration that every header names."""
OTHERWISE_NAMED = ("num_blocks", "num_watermark_blocks")
NAMED_OF_A_REQUEST = ("request_id", "max_tokens", "min_tokens", "priority", "arrival_time")
"""The fields of a request that every arrival names."""


def write_header(config: SchedulerConfig, release: str, in_flight_depth: int) -> dict[str, Any]:
    """The header of a run of a vLLM release; it names what is not as the dialect says."""
    fields = {name: getattr(config, name) for name in NAMED_BY_ALL}
    usual = make_scheduler_config(
        f"vllm-{release}", {**fields, **{name: getattr(config, name) for name in OTHERWISE_NAMED}}
    )
    for option in attrs.fields(SchedulerConfig):
        if getattr(config, option.name) != getattr(usual, option.name):
            fields[option.name] = getattr(config, option.name)
    return {
        "schema": SCHEMA,
        "engine": "vllm",
        "engine_version": release,
        "config": fields
        | {
            "num_usable_blocks": config.num_blocks,
            # The middle of the fractions that mean this many blocks.
            "watermark": (config.num_watermark_blocks + 0.5) / (config.num_blocks + 1),
        },
        "null_block_id": 0,
        "in_flight_depth": in_flight_depth,
        "seed": None,
    }


def write_event(action: Action, outcome: Outcome, seen: Observation) -> dict[str, Any]:
    """One event of a run."""
    event: dict[str, Any] = {"event": ACTION_NAMES[type(action)]}
    if isinstance(action, AddRequest):
        event |= _write_request(action.request)
    elif isinstance(action, FinishRequests):
        event |= {"request_ids": list(action.request_ids), "status": action.status.name}
    else:
        event |= attrs.asdict(action)
    if isinstance(action, UpdateFromOutput) and not action.draft_token_ids:
        del event["draft_token_ids"]
    if isinstance(action, AddRequest) and outcome.results:
        ((refusal,),) = outcome.results.values()
        event["refusal"] = attrs.asdict(refusal)
    elif outcome.results is not None:
        event["outputs"] = [
            {**attrs.asdict(output), "client_index": client_index}
            for client_index, outputs in outcome.results.items()
            for output in outputs
        ]
    if outcome.output is not None:
        event["output"] = _write_output(outcome.output)
    if outcome.is_reset is not None:
        event["is_reset"] = outcome.is_reset
    event["observation"] = _write_observation(seen)
    return event


def _write_request(new: NewRequest) -> dict[str, Any]:
    """A request, and what is not as usual about it."""
    written = {
        option.name: getattr(new, option.name)
        for option in attrs.fields(NewRequest)
        if option.name in NAMED_OF_A_REQUEST or getattr(new, option.name) != option.default
    }
    if new.repetition_detection is not None:
        written["repetition_detection"] = attrs.asdict(new.repetition_detection)
    return written | {
        "prompt_token_ids": list(new.prompt_token_ids),
        "stop_token_ids": list(new.stop_token_ids),
        "ignore_eos": new.eos_token_id is None,
    }


def _write_output(output: SchedulerOutput) -> dict[str, Any]:
    written: dict[str, Any] = {
        "num_scheduled_tokens": output.num_scheduled_tokens,
        "new": [
            {
                "request_id": name,
                "num_prompt_tokens": len(new.prompt_token_ids),
                "prompt_token_ids": list(new.prompt_token_ids),
                "num_computed_tokens": new.num_computed_tokens,
                "block_ids": new.block_ids,
            }
            for name, new in output.scheduled_new_reqs.items()
        ],
        "cached": [
            {"request_id": name, **attrs.asdict(cached)}
            for name, cached in output.scheduled_cached_reqs.items()
        ],
        "preempted_req_ids": sorted(output.preempted_req_ids),
        "finished_req_ids": sorted(output.finished_req_ids),
    }
    if output.scheduled_spec_decode_tokens:
        written["scheduled_spec_decode_tokens"] = output.scheduled_spec_decode_tokens
    if output.kv_loads:
        written["kv_loads"] = {name: attrs.asdict(load) for name, load in output.kv_loads.items()}
    if output.new_block_ids_to_zero is not None:
        written["new_block_ids_to_zero"] = output.new_block_ids_to_zero
    return written


def _write_observation(seen: Observation) -> dict[str, Any]:
    written = attrs.asdict(seen)
    written["finished_req_ids"].sort()
    for request in written["requests"].values():
        for name in ("num_stale_output_tokens", "num_draft_tokens"):
            if request[name] is None:
                del request[name]
    for name in ("retained", "deferred_loads"):
        if not written[name]:
            del written[name]
    del written["block_contents"]
    if seen.block_contents is not None:
        written["block_contents"] = {
            block_id: {"cache_key": cache_key, "token_ids": list(token_ids)}
            for block_id, (cache_key, token_ids) in seen.block_contents.items()
        }
    return written
