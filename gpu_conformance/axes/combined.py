"""Values of the other axes together: what goes wrong only where two of them meet.

Entry point: `ROWS`, a covering array. Any two values of two of its columns stand together in some
row, so that a fault that takes two things, such as small blocks and a preemption, has a row.
"""

from __future__ import annotations

from gpu_conformance.registry import AXES, Value, axis
from gpu_conformance.way import Sights, Way

NONE = "none"
COLUMNS = (
    "block_size",
    "prefix_cache",
    "async_depth",
    "draft_tokens",
    "max_num_batched_tokens",
    "batch_size",
    "preemption",
    "prefill_chunk_size",
    "batch_order",
    "block_placement",
    "graph_bucket",
)
"""Axes, in the order in which they are applied: a budget takes in the drafts, a pool is as small as
blocks and drafts let it be, and chunks come after a preemption, which has chunks of its own."""
ROWS: tuple[tuple[Value, ...], ...] = (
    (1, "off", 1, 3, 20, 3, 1, 5, "as scheduled", "scattered", 24),
    (1, "off", 3, 1, "whole", "all", 2, 13, "as scheduled", "backwards", 24),
    (1, "same step", 2, 0, 48, 2, "room for all", 5, 1, "as given", 8),
    (1, "next step", 3, 1, "whole", 3, 0, 7, 1, "scattered", 0),
    (2, "off", 1, 3, 48, 2, 2, 13, 1, "as given", 0),
    (2, "off", 2, 0, "whole", 3, 1, 5, 1, "backwards", 8),
    (2, "same step", 2, 1, 20, "all", 0, 7, "as scheduled", "as given", 8),
    (2, "same step", 3, 0, 20, 2, 1, 5, "as scheduled", "backwards", 24),
    (2, "next step", 2, 1, "whole", 3, "room for all", 5, 1, "scattered", 24),
    (4, "off", 3, 0, 48, 3, 0, 13, 1, "scattered", 8),
    (4, "off", 3, 3, 20, 2, "room for all", 7, "as scheduled", "as given", 24),
    (4, "same step", 2, 1, "whole", "all", 2, 5, "as scheduled", "scattered", 0),
    (4, "same step", 3, 0, "whole", "all", 1, 7, 1, "scattered", 24),
    (4, "next step", 1, 3, 48, 2, 0, 7, "as scheduled", "backwards", 8),
    (8, "off", 2, 0, 20, 3, 2, 7, "as scheduled", "scattered", 0),
    (8, "same step", 1, 1, "whole", 2, 1, 7, 1, "as given", 24),
    (8, "same step", 2, 3, "whole", 3, "room for all", 13, 1, "backwards", 8),
    (8, "next step", 3, 0, 48, "all", 1, 13, "as scheduled", "as given", 24),
    (8, "next step", 3, 1, 20, "all", 0, 5, 1, "scattered", 24),
    (16, "off", 3, 1, 48, 2, 0, 5, 1, "scattered", 24),
    (16, "same step", 3, 3, 20, "all", 1, 13, 1, "as given", 0),
    (16, "next step", 1, 0, 20, "all", "room for all", 5, "as scheduled", "backwards", 0),
    (16, "next step", 2, 0, "whole", 3, 2, 7, 1, "as given", 8),
)
"""The values, by number from 1."""
SHOWN: dict[str, frozenset[int]] = {
    "num_shorter_tables": frozenset({1, 2, 5, 6, 10}),
    "num_resumed_hit_tokens": frozenset({4, 7, 8, 12, 13, 14, 16, 18, 19, 21, 23}),
    "num_wide_chunks": frozenset({5, 6, 7, 8, 9, 10, 11, 13, 14, 17}),
}
"""What a row must show besides its values, by the name of a sight; else it has tested little."""


def _is_reached(seen: Sights, value: Value) -> bool:
    return all(
        part == AXES[name].baseline or AXES[name].is_reached(seen, part)
        for name, part in get_row(value)
    ) and all(getattr(seen, sight) > 0 for sight, rows in SHOWN.items() if value in rows)


def _describe_row(value: Value) -> str:
    return ", ".join(f"{name}={part}" for name, part in get_row(value)) or NONE


@axis(
    baseline=NONE,
    values=range(1, len(ROWS) + 1),
    few=(12,),
    greatest=len(ROWS),
    stands_for=_describe_row,
    is_reached=_is_reached,
)
def combined(way: Way, value: Value) -> Way:
    """Blocks, chunks, budgets, preemption, drafts and all other axes at once, pair by pair."""
    for name, part in get_row(value):
        way = AXES[name].apply(way, part)
    return way


def get_row(value: Value) -> list[tuple[str, Value]]:
    """The axes of a row, and the value of each; of no row there is nothing."""
    return [] if value == NONE else list(zip(COLUMNS, ROWS[int(value) - 1], strict=True))
