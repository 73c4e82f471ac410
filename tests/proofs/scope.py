"""Which settings stay in what the proofs are about."""

from __future__ import annotations


def is_in_scope(setting):
    """Whether no run of a setting does what the invariant leaves out.

    Beside resumable requests that is a load from a remote store, a free that is deferred, output
    that a reset drops, a draft, and a request that waits for its grammar.
    """
    config, environment = setting.scheduler, setting.environment
    return not (
        has_turns(setting)
        or config.load_kv_async
        or config.defer_block_free
        or config.num_speculative_tokens
        or environment.with_resets
        or any(shape.structured_output for shape in environment.shapes)
    )


def has_turns(setting):
    """Whether requests of a setting are resumable."""
    return any(shape.resumable for shape in setting.environment.shapes)
