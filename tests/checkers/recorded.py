"""What the tests of recordings share: committed ones, changed ones, and runs written as one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from checkers.recording import SCHEMA, Recording, read_recording
from spec.interface import (
    Observation,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.model import ACTION_NAMES, Action, AddRequest, FinishRequests, Outcome, UpdateFromOutput

RECORDINGS = Path(__file__).parents[1] / "recordings"
ACCEPTED = sorted(path.name.removesuffix(".jsonl.gz") for path in RECORDINGS.glob("*.jsonl.gz"))


def path_of(name: str) -> Path:
    """A committed recording; those of faults lie in rejected/."""
    return RECORDINGS / f"{name}.jsonl.gz"


def load(name: str) -> list[Any]:
    """The header and the events of a committed recording."""
    return [json.loads(line) for line in gzip.decompress(path_of(name).read_bytes()).splitlines()]


def dump(documents: list[Any]) -> list[bytes]:
    """The lines of a recording."""
    return [json.dumps(document).encode() + b"\n" for document in documents]


def reread(documents: list[Any], dialect: str | None = None) -> Recording:
    """A changed recording."""
    return read_recording(dump(documents), "run.jsonl", dialect)


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value inside a document that holds no others, with its place."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, (*place, key))
    else:
        yield place, value


def container_of(document: Any, place: tuple[Any, ...]) -> Any:
    """What holds the value at a place."""
    for key in place[:-1]:
        document = document[key]
    return document


# ---- a run written as a recording ----------------------------------------------------------------


def write_header(config: SchedulerConfig, release: str, in_flight_depth: int) -> dict[str, Any]:
    """The header of a run of a vLLM release."""
    names = [
        "max_num_batched_tokens",
        "max_num_seqs",
        "block_size",
        "max_model_len",
        "long_prefill_token_threshold",
        "policy",
        "enable_prefix_caching",
        "async_scheduling",
        "scheduler_reserve_full_isl",
    ]
    return {
        "schema": SCHEMA,
        "engine": "vllm",
        "engine_version": release,
        "config": {name: getattr(config, name) for name in names}
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
        new = action.request
        fields = ("request_id", "max_tokens", "min_tokens", "priority", "arrival_time")
        event |= {name: getattr(new, name) for name in fields}
        event |= {"prompt_token_ids": list(new.prompt_token_ids), "ignore_eos": True}
        # The format has no place for the end-of-sequence token; as a stop token it does the same.
        eos = [] if new.eos_token_id is None else [new.eos_token_id]
        event["stop_token_ids"] = [*new.stop_token_ids, *eos]
    elif isinstance(action, FinishRequests):
        event |= {"request_ids": list(action.request_ids), "status": action.status.name}
    elif isinstance(action, UpdateFromOutput):
        event["sampled_token_ids"] = action.sampled_token_ids
        event["outputs"] = [
            attrs.asdict(output)
            for outputs in (outcome.results or {}).values()
            for output in outputs
        ]
    elif outcome.output is not None:
        event["output"] = _write_output(outcome.output)
    event["observation"] = _write_observation(seen)
    return event


def _write_output(output: SchedulerOutput) -> dict[str, Any]:
    return {
        "num_scheduled_tokens": output.num_scheduled_tokens,
        "new": [
            {
                "request_id": name,
                "num_prompt_tokens": len(new.prompt_token_ids),
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


def _write_observation(seen: Observation) -> dict[str, Any]:
    written = attrs.asdict(seen)
    del written["block_contents"]
    for request in written["requests"].values():
        del request["num_stale_output_tokens"], request["num_draft_tokens"]
    written["finished_req_ids"].sort()
    return written
