"""The dialects of the releases that were recorded: which choices each of them makes."""

from __future__ import annotations

from typing import Any

CHOICES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
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
        ),
        (True, False),
    ),
    "cursor_follows_victim": ("always", "scheduled", "never"),
    "stop_order": ("stop_length", "min_stop_length", "length_stop"),
}
"""On what releases differ, faults apart: fields of `SchedulerConfig` and their values, that of the
latest release first."""
BEFORE_0_33 = {
    "idle_loras_count": False,
    "lookahead_at_admission": False,
    "pad_admitted_decodes": False,
    "publish_verified_drafts": False,
}
"""Of adapters and drafts; no recording of an older release holds any, so these are read."""
DIALECTS: dict[str, dict[str, Any]] = {
    "vllm-0.33.0": {},
    "vllm-0.33.0-as-released": {
        "publish_at_grant": True,
        "keep_unscheduled_drafts": True,
        "reserve_for_lost_loads": True,
    },
    "vllm-0.16.0": {
        "threshold_spares_lone_request": False,
        "uncached_blocks_first": False,
        "continue_after_self_preemption": False,
        "cursor_follows_victim": "scheduled",
        "wait_for_stale_output": False,
        **BEFORE_0_33,
        "stop_order": "min_stop_length",
    },
    "vllm-0.11.0": {
        "threshold_spares_lone_request": False,
        "uncached_blocks_first": False,
        "continue_after_self_preemption": False,
        "cursor_follows_victim": "never",
        "wait_for_stale_output": False,
        **BEFORE_0_33,
        "stop_at_max_tokens_in_flight": False,
        "stop_order": "length_stop",
    },
}
"""Fields of `SchedulerConfig` by dialect; what a dialect does not name has its default.

The defaults are vLLM 0.33.0 with three faults corrected: as released, it publishes blocks that may
never be computed (`publish_at_grant`), lets a step verify drafts that no worker has
(`keep_unscheduled_drafts`), and lets a request whose load was lost stand in its own way
(`reserve_for_lost_loads`).
"""
