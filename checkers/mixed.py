"""Settings drawn at random, in which every feature may meet every other.

Entry point: `draw_setting`. A named setting exercises what somebody has thought of; these are for
the rest. Two numbers, of which its name is made, draw the same one at any time. All is small and
tight, so that requests get in each other's way.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from random import Random
from typing import Any

from checkers.configs import Setting, load_setting
from spec.environment import Environment
from spec.interface import (
    ConfigError,
    NewRequest,
    RepetitionDetection,
    SchedulerConfig,
    StreamingUpdate,
)

PER_ROUND = 30
"""How many are walked in beside one walk in each named setting."""
PREFIX = "mixed-"
EOS, STOP = 8, 9
DIALECT = "vllm-0.33.0"
TOKENS = (0, 0, 0, 1)
"""Of prompts and outputs; few, so that texts are alike."""


def is_mixed(setting: Setting) -> bool:
    """Whether a setting was drawn."""
    return setting.name.startswith(PREFIX)


def draw_setting(seed: int, number: int) -> Setting:
    """One of the settings of a seed; what is drawn and makes no sense is drawn again."""
    name = f"{PREFIX}{seed}-{number}"
    for attempt in itertools.count():
        rng = Random(f"{name} {attempt}")
        try:
            scheduler = draw_config(rng)
            environment = _draw_environment(rng, scheduler)
            environment.check_fits(scheduler)
        except ConfigError:
            continue
        return Setting(
            name=name,
            about="Drawn at random.",
            dialect=DIALECT,
            scheduler=scheduler,
            environment=environment,
        )
    raise AssertionError("counting has no end")


def find_setting(name: str) -> Setting:
    """A setting by its name, drawn or not, or its file. Raises `HarnessError` if there is none."""
    found = re.fullmatch(rf"{PREFIX}(\d+)-(\d+)", name)
    return load_setting(name) if found is None else draw_setting(int(found[1]), int(found[2]))


# ---- the scheduler -------------------------------------------------------------------------------


def draw_config(rng: Random, **fixed: Any) -> SchedulerConfig:
    """Draws a configuration; `fixed` fields are given. Raises `ConfigError` if it makes no sense.

    No fault of a release is drawn.
    """
    max_model_len = fixed.get("max_model_len", rng.choice((3, 6, 8, 12, 24, 32)))
    block_size = fixed.get("block_size", rng.randint(1, 4))
    fields = {
        "max_num_seqs": rng.choice((1, 2, 3, 4, 4, 6)),
        "max_model_len": max_model_len,
        "block_size": block_size,
        "num_blocks": _draw_num_blocks(rng, max_model_len, block_size),
        "policy": rng.choice(("fcfs", "priority")),
        "enable_prefix_caching": rng.random() < 0.6,
        "async_scheduling": rng.random() < 0.5,
        **_draw_gates(rng, fixed),
        **_draw_dialect(rng),
        **_draw_drafts(rng, fixed),
        **_draw_limits(rng, fixed),
    }
    fields |= _draw_loads(rng, {**fields, **fixed})
    fields |= _draw_budgets(rng, {**fields, **fixed})
    fields |= fixed
    if fields["max_num_scheduled_tokens"] <= fields["num_speculative_tokens"]:
        fields["pad_admitted_decodes"] = False
    return SchedulerConfig(**fields)


def _draw_num_blocks(rng: Random, max_model_len: int, block_size: int) -> int:
    """Most pools are tight; some are smaller than one request, which may then wait for ever."""
    num_blocks_of_one = (max_model_len + block_size - 1) // block_size
    if rng.random() < 0.1:
        return rng.randint(1, num_blocks_of_one)
    return num_blocks_of_one + rng.randint(0, rng.choice((1, 3, 3, 2 * num_blocks_of_one)))


def _draw_budgets(rng: Random, fields: dict[str, Any]) -> dict[str, int]:
    """Draws both budgets; without chunked prefill a step must hold the longest prompt."""
    longest = fields["max_model_len"] - 1
    budget = rng.choice((1, 3, 4, 6, 8, 12, 20))
    if not fields["enable_chunked_prefill"]:
        budget = longest + rng.choice((0, 1, 8))
    beside = rng.choice((0, 0, 2)) + fields["num_draft_slots"]
    return {"max_num_batched_tokens": budget + beside, "max_num_scheduled_tokens": budget}


def _draw_gates(rng: Random, fixed: dict[str, Any]) -> dict[str, bool]:
    reserves = fixed.get("reserve_admitted_prefills", rng.random() < 0.2)
    whole = fixed.get("scheduler_reserve_full_isl", reserves or rng.random() < 0.7)
    return {
        "enable_chunked_prefill": rng.random() < 0.85,
        "scheduler_reserve_full_isl": whole,
        "reserve_admitted_prefills": whole and reserves,
    }


def _draw_dialect(rng: Random) -> dict[str, Any]:
    """Draws on what engines differ: mostly as the latest release, or a few things otherwise."""
    share = rng.choice((0.0, 0.0, 0.3))
    names = (
        "same_step_prefix_hits",
        "threshold_spares_lone_request",
        "uncached_blocks_first",
        "continue_after_self_preemption",
        "wait_for_stale_output",
        "deliver_stale_output",
        "idle_loras_count",
        "lookahead_at_admission",
        "pad_admitted_decodes",
        "publish_verified_drafts",
        "stop_at_max_tokens_in_flight",
    )
    fields: dict[str, Any] = {name: rng.random() >= share for name in names}
    if rng.random() < share:
        fields["cursor_follows_victim"] = rng.choice(("scheduled", "never"))
    if rng.random() < share:
        fields["stop_order"] = rng.choice(("min_stop_length", "length_stop"))
    return fields


def _draw_drafts(rng: Random, fixed: dict[str, Any]) -> dict[str, int]:
    """Draws speculative decoding, mostly none; without it there is nothing to reserve."""
    num_speculative_tokens = fixed.get("num_speculative_tokens", rng.choice((0, 0, 1, 2, 3)))
    most = {"num_lookahead_tokens": 3, "num_draft_slots": 2} if num_speculative_tokens else {}
    drawn = {name: fixed.get(name, rng.randint(0, number)) for name, number in most.items()}
    none = {"num_lookahead_tokens": 0, "num_draft_slots": 0}
    return {"num_speculative_tokens": num_speculative_tokens, **none, **drawn}


def _draw_limits(rng: Random, fixed: dict[str, Any]) -> dict[str, Any]:
    """Draws what is off by default, and mostly off here; without a threshold no prompt is long."""
    threshold = fixed.get("long_prefill_token_threshold", rng.choice((0, 0, 0, 1, 2, 3, 5)))
    return {
        "num_watermark_blocks": rng.choice((0, 0, 0, 0, 1, 2)),
        "long_prefill_token_threshold": threshold,
        "max_num_partial_prefills": rng.choice((0, 0, 0, 1, 2)),
        "max_long_partial_prefills": rng.choice((0, 0, 1, 2)) if threshold else 0,
        "max_loras": rng.choice((0, 0, 0, 1, 2)),
        "reject_too_large": rng.random() < 0.3,
    }


def _draw_loads(rng: Random, fields: dict[str, Any]) -> dict[str, bool]:
    """Draws loads from a remote store; with steps in flight they need blocks that are kept back."""
    loads = fields["wait_for_stale_output"] and rng.random() < 0.3
    keeps = (loads and fields["async_scheduling"]) or rng.random() < 0.15
    return {
        "load_kv_async": loads,
        "defer_block_free": keeps,
        "defer_async_loads": loads and keeps and rng.random() < 0.5,
    }


# ---- the environment -----------------------------------------------------------------------------


def _draw_environment(rng: Random, config: SchedulerConfig) -> Environment:
    requests = _Requests(rng, config)
    shapes = tuple(requests.draw() for _ in range(rng.randint(2, 5)))
    drafts = rng.randint(1, config.num_speculative_tokens) if config.num_speculative_tokens else 0
    return Environment(
        shapes=shapes,
        max_live_requests=rng.randint(2, 5),
        max_in_flight=rng.randint(2, 4) if config.async_scheduling else 1,
        sampled_token_ids=(*TOKENS, EOS, STOP) if requests.stop else TOKENS,
        draft_token_ids=() if config.async_scheduling else _draw_tokens(rng, drafts),
        with_aborts=rng.random() < 0.6,
        with_pauses=rng.random() < 0.2,
        with_resets=config.enable_prefix_caching and rng.random() < 0.3,
        **_draw_chunks(rng, config, shapes),
    )


class _Requests:
    """Draws requests of an environment, in which some features are used and others are not."""

    def __init__(self, rng: Random, config: SchedulerConfig) -> None:
        self.rng, self.config = rng, config
        self.stop, self.repeat, self.wait, self.salt, self.adapt, self.resume = (
            rng.random() < share for share in (0.5, 0.2, 0.2, 0.15, 0.3, 0.3)
        )

    def draw(self) -> NewRequest:
        """A template of a request; most of what is used has every second one."""
        rng = self.rng
        prompt = _draw_tokens(rng, rng.randint(1, min(self.config.max_model_len - 1, 7)))
        return NewRequest(
            request_id="",
            prompt_token_ids=prompt,
            max_tokens=rng.randint(1, 6),
            min_tokens=rng.choice((0, 0, 0, 0, 1, 3)),
            eos_token_id=EOS if self._has(self.stop) else None,
            stop_token_ids=(STOP,) if self._has(self.stop) else (),
            repetition_detection=self._draw_repetition() if self._has(self.repeat) else None,
            priority=rng.randint(0, 2) if self.config.policy == "priority" else 0,
            client_index=int(rng.random() < 0.2),
            cache_salt="salt" if self._has(self.salt) else None,
            lora_id=rng.randint(1, 3) if self._has(self.adapt) else 0,
            structured_output=self._has(self.wait),
            resumable=self._has(self.resume),
            num_remote_tokens=self._draw_num_remote_tokens(len(prompt)),
        )

    def _has(self, is_used: bool) -> bool:
        return is_used and self.rng.random() < 0.6

    def _draw_repetition(self) -> RepetitionDetection:
        rng = self.rng
        return RepetitionDetection(rng.randint(1, 3), rng.randint(1, 2), rng.randint(2, 3))

    def _draw_num_remote_tokens(self, num_prompt_tokens: int) -> int:
        is_stored = self._has(self.config.load_kv_async)
        return self.rng.randint(1, num_prompt_tokens) if is_stored else 0


def _draw_chunks(
    rng: Random, config: SchedulerConfig, shapes: Sequence[NewRequest]
) -> dict[str, Any]:
    """Draws what may follow on resumable requests, as far as one is there."""
    if not any(shape.resumable for shape in shapes):
        return {}
    return {
        "max_session_tokens": config.max_model_len - rng.randint(1, 2),
        "max_queued_chunks": rng.randint(1, 2),
        "chunks": tuple(
            StreamingUpdate(
                prompt_token_ids=_draw_tokens(rng, rng.randint(1, 2)), max_tokens=rng.randint(1, 4)
            )
            for _ in range(2)
        ),
    }


def _draw_tokens(rng: Random, number: int) -> tuple[int, ...]:
    """Draws a text; every second one is like any other."""
    if rng.random() < 0.5:
        return (0,) * number
    return tuple(rng.choice(TOKENS) for _ in range(number))
