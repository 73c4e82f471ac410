"""Settings drawn at random, in which every feature may meet every other.

Entry point: `draw_setting`. A named setting exercises what somebody has thought of; these are for
the rest. Two numbers, of which its name is made, draw the same one at any time. All is small and
tight, so that requests get in each other's way. In half of them any feature may be on, and is used
now and then; what is rare needs the other half, in which a few are on in full, and no others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from attrs import frozen

from checkers.configs import Setting, load_setting
from spec.dialects import CHOICES
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
FEATURES = (
    "adapters",
    "dialect",
    "drafts",
    "grammars",
    "kept blocks",
    "loads",
    "partial prefills",
    "pauses",
    "refusals",
    "repetitions",
    "reserve",
    "resets",
    "salts",
    "sessions",
    "stops",
    "watermark",
    "whole prompts",
)
"""What a setting may be about; beside it, order, caching, chunks and depth are as they come."""
MAIN_FEATURES = ("loads", "sessions", "drafts")
"""Those that change most of how a request is served, so that the others meet them often."""


@frozen
class Mix:
    """Which features a setting has: each by chance, or no others than it is about."""

    rng: Random
    about: frozenset[str] = frozenset()
    """Without any, all are left to chance."""

    def has(self, feature: str, share: float) -> bool:
        """Whether a feature is on; by chance, it is in a share of the settings."""
        return feature in self.about if self.about else self.rng.random() < share

    def pick(self, feature: str, values: tuple[int, ...]) -> int:
        """How much of a feature there is, as drawn from values; 0 is off."""
        if self.about and feature not in self.about:
            return 0
        return self.rng.choice([value for value in values if value or not self.about])


def _draw_mix(rng: Random) -> Mix:
    if rng.random() < 0.5:
        return Mix(rng)
    main, others = rng.choice(MAIN_FEATURES), rng.sample(FEATURES, rng.randint(1, 2))
    return Mix(rng, frozenset((main, *others)))


def is_mixed(setting: Setting) -> bool:
    """Whether a setting was drawn."""
    return setting.name.startswith(PREFIX)


def draw_setting(seed: int, number: int) -> Setting:
    """One of the settings of a seed; what is drawn and makes no sense is drawn again."""
    name = f"{PREFIX}{seed}-{number}"
    rng = Random(name)
    while True:
        with suppress(ConfigError):
            return _draw(name, _draw_mix(rng))


def _draw(name: str, mix: Mix) -> Setting:
    scheduler = draw_config(mix)
    environment = _draw_environment(mix, scheduler)
    environment.check_fits(scheduler)
    return Setting(
        name=name,
        about="Drawn at random.",
        dialect=DIALECT,
        scheduler=scheduler,
        environment=environment,
    )


def find_setting(name: str) -> Setting:
    """A setting by its name, drawn or not, or its file. Raises `HarnessError` if there is none."""
    found = re.fullmatch(rf"{PREFIX}(\d+)-(\d+)", name)
    return load_setting(name) if found is None else draw_setting(int(found[1]), int(found[2]))


# ---- the scheduler -------------------------------------------------------------------------------


def draw_config(mix: Mix, **fixed: Any) -> SchedulerConfig:
    """Draws a configuration; `fixed` fields are given. Raises `ConfigError` if it makes no sense.

    No fault of a release is drawn.
    """
    rng = mix.rng
    lengths = (3, 5, 6, 7, 8, 12, 24) if mix.about else (3, 6, 8, 12, 24, 32)
    max_model_len = fixed.get("max_model_len", rng.choice(lengths))
    block_size = fixed.get("block_size", rng.choice((1, 1, 2, 3) if mix.about else (1, 2, 3, 4)))
    fields = {
        "max_num_seqs": rng.choice((2, 2, 3, 4) if mix.about else (1, 2, 3, 4, 4, 6)),
        "max_model_len": max_model_len,
        "block_size": block_size,
        "num_blocks": _draw_num_blocks(mix, max_model_len, block_size),
        "policy": rng.choice(("fcfs", "priority")),
        "enable_prefix_caching": rng.random() < 0.6,
        "async_scheduling": rng.random() < 0.5,
        **_draw_gates(mix, fixed),
        **_draw_dialect(mix),
        **_draw_drafts(mix, fixed),
        **_draw_limits(mix, fixed),
    }
    fields |= _draw_loads(mix, {**fields, **fixed})
    fields |= _draw_budgets(mix, {**fields, **fixed})
    fields |= fixed
    if fields["max_num_scheduled_tokens"] <= fields["num_speculative_tokens"]:
        fields["pad_admitted_decodes"] = False
    return SchedulerConfig(**fields)


def _draw_num_blocks(mix: Mix, max_model_len: int, block_size: int) -> int:
    """Most pools are tight; some are smaller than one request, which may then wait for ever."""
    rng = mix.rng
    # The last token of the longest request is never computed.
    num_blocks_of_one = (max_model_len - 1 + block_size - 1) // block_size
    if mix.about and rng.random() < 0.5:
        return rng.randint(2, 7)
    if rng.random() < 0.1:
        return rng.randint(1, num_blocks_of_one)
    return num_blocks_of_one + rng.randint(0, rng.choice((1, 3, 3, 2 * num_blocks_of_one)))


def _draw_budgets(mix: Mix, fields: dict[str, Any]) -> dict[str, int]:
    """Draws both budgets; without chunked prefill a step must hold the longest prompt."""
    rng, longest = mix.rng, fields["max_model_len"] - 1
    budget = rng.choice((1, 2, 3, 4, 6) if mix.about else (1, 3, 4, 6, 8, 12, 20))
    if not fields["enable_chunked_prefill"]:
        budget = longest + rng.choice((0, 1, 8))
    beside = rng.choice((0, 0, 2)) + fields["num_draft_slots"]
    return {"max_num_batched_tokens": budget + beside, "max_num_scheduled_tokens": budget}


def _draw_gates(mix: Mix, fixed: dict[str, Any]) -> dict[str, bool]:
    reserves = fixed.get("reserve_admitted_prefills", mix.has("reserve", 0.2))
    whole = fixed.get("scheduler_reserve_full_isl", reserves or mix.rng.random() < 0.7)
    return {
        "enable_chunked_prefill": not mix.has("whole prompts", 0.15),
        "scheduler_reserve_full_isl": whole,
        "reserve_admitted_prefills": whole and reserves,
    }


def _draw_dialect(mix: Mix) -> dict[str, Any]:
    """Draws on what engines differ: mostly as the latest release, or a few things otherwise."""
    share = 0.3 if mix.has("dialect", 0.33) else 0.0
    return {
        name: mix.rng.choice(others) if mix.rng.random() < share else usual
        for name, (usual, *others) in CHOICES.items()
    }


def _draw_drafts(mix: Mix, fixed: dict[str, Any]) -> dict[str, int]:
    """Draws speculative decoding, mostly none; without it there is nothing to reserve."""
    num_speculative_tokens = fixed.get(
        "num_speculative_tokens", mix.pick("drafts", (0, 0, 1, 2, 3))
    )
    most = {"num_lookahead_tokens": 3, "num_draft_slots": 2} if num_speculative_tokens else {}
    drawn = {name: fixed.get(name, mix.rng.randint(0, number)) for name, number in most.items()}
    none = {"num_lookahead_tokens": 0, "num_draft_slots": 0}
    return {"num_speculative_tokens": num_speculative_tokens, **none, **drawn}


def _draw_limits(mix: Mix, fixed: dict[str, Any]) -> dict[str, Any]:
    """Draws what is off by default, and mostly off here; without a threshold no prompt is long."""
    thresholds = (0, 0, 1, 1, 2, 3) if mix.about else (0, 0, 0, 1, 2, 3, 5)
    threshold = fixed.get("long_prefill_token_threshold", mix.rng.choice(thresholds))
    return {
        "num_watermark_blocks": mix.pick("watermark", (0, 0, 0, 0, 1, 2)),
        "long_prefill_token_threshold": threshold,
        "max_num_partial_prefills": mix.pick("partial prefills", (0, 0, 0, 1, 2)),
        "max_long_partial_prefills": mix.rng.choice((0, 0, 1, 2)) if threshold else 0,
        "max_loras": mix.pick("adapters", (0, 0, 0, 1, 2)),
        "reject_too_large": mix.has("refusals", 0.3),
    }


def _draw_loads(mix: Mix, fields: dict[str, Any]) -> dict[str, bool]:
    """Draws loads from a remote store; with steps in flight they need blocks that are kept back."""
    loads = fields["wait_for_stale_output"] and mix.has("loads", 0.3)
    keeps = (loads and fields["async_scheduling"]) or mix.has("kept blocks", 0.15)
    return {
        "load_kv_async": loads,
        "defer_block_free": keeps,
        "defer_async_loads": loads and keeps and mix.rng.random() < 0.5,
    }


# ---- the environment -----------------------------------------------------------------------------


def _draw_environment(mix: Mix, config: SchedulerConfig) -> Environment:
    rng, requests = mix.rng, _Requests(mix, config)
    shapes = tuple(requests.draw() for _ in range(rng.randint(2, 5)))
    drafts = rng.randint(1, config.num_speculative_tokens) if config.num_speculative_tokens else 0
    ends = (EOS, STOP) if requests.stop else ()
    return Environment(
        shapes=shapes,
        max_live_requests=rng.randint(2, 5),
        max_in_flight=rng.randint(2, 4) if config.async_scheduling else 1,
        sampled_token_ids=(*TOKENS, *ends),
        draft_token_ids=() if config.async_scheduling else _draw_tokens(rng, drafts, ends),
        with_aborts=rng.random() < 0.6,
        with_pauses=mix.has("pauses", 0.2),
        with_resets=mix.has("resets", 0.3),
        **_draw_chunks(rng, config, shapes),
    )


class _Requests:
    """Draws requests of an environment, in which some features are used and others are not."""

    def __init__(self, mix: Mix, config: SchedulerConfig) -> None:
        self.rng, self.config = mix.rng, config
        self.stop = mix.has("stops", 0.5)
        self.repeat = mix.has("repetitions", 0.2)
        self.wait = mix.has("grammars", 0.2)
        self.salt = mix.has("salts", 0.15)
        self.adapt = mix.has("adapters", 0.3)
        self.resume = mix.has("sessions", 0.3)
        self.share = mix.rng.choice((0.6, 1.0)) if mix.about else 0.6
        # Long prompts in a small pool; short ones get along.
        self.num_draws = 2 if mix.about else 1
        num_slots = config.num_blocks * config.block_size if mix.about else 7
        self.longest = min(config.max_model_len - 1, num_slots, 7)

    def draw(self) -> NewRequest:
        """A template of a request; most of what is used has every second one, or every one."""
        rng = self.rng
        length = max(rng.randint(1, self.longest) for _ in range(self.num_draws))
        prompt = _draw_tokens(rng, length)
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
        return is_used and self.rng.random() < self.share

    def _draw_repetition(self) -> RepetitionDetection:
        rng = self.rng
        return RepetitionDetection(rng.randint(1, 3), rng.randint(1, 2), rng.randint(2, 3))

    def _draw_num_remote_tokens(self, num_prompt_tokens: int) -> int:
        is_stored = self._has(self.config.load_kv_async)
        drawn = self.rng.randint(1, num_prompt_tokens)
        return self.rng.choice((drawn, num_prompt_tokens)) if is_stored else 0


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


def _draw_tokens(rng: Random, number: int, ends: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Draws a text; every second one is like any other."""
    if rng.random() < 0.5:
        return (0,) * number
    return tuple(rng.choice((*TOKENS, *ends)) for _ in range(number))
