"""The planted bugs, by what they get wrong. Importing this package registers them all."""

from checkers.mutations.bugs import (
    blocks,
    controls,
    counters,
    deferred_frees,
    drafts,
    ends,
    grants,
    livelocks,
    padding,
    prefix_cache,
    queues,
    remote,
    streaming,
    worker,
)

__all__ = [
    "blocks",
    "controls",
    "counters",
    "deferred_frees",
    "drafts",
    "ends",
    "grants",
    "livelocks",
    "padding",
    "prefix_cache",
    "queues",
    "remote",
    "streaming",
    "worker",
]
