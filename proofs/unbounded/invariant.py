"""The invariant as questions: what each action must keep, and what a step must keep beside it.

Entry points: `prove_actions` and `prove_steps`; each part comes with a label for a report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.symbolic.heap import sum_of
from proofs.symbolic.prover import Prover
from proofs.symbolic.values import term
from proofs.unbounded.actions import (
    Question,
    abort,
    add_request,
    prove_action,
    prove_start,
    schedule,
    update,
)
from proofs.unbounded.lemmas import prove_lemmas
from proofs.unbounded.state import SYNCHRONOUS, Dialect

Part = tuple[str, Dialect, Prover]
ASSUMPTIONS = (
    "first come, first served; a pool that counts its blocks; no prefix cache",
    "a prompt has a token at least and is shorter than max_model_len; max_tokens is at least 1",
    "a name comes again only when no step in flight knows it",
    "synchronous: nothing is in flight when a step is planned; asynchronous: at most two are",
    "steps return in order, each once; what is not void samples if it completes what is known",
    "length is tested before min_tokens (stop_order of 0.16: min_tokens would need a bound)",
)


def prove_actions(*dialects: Dialect) -> Iterator[Part]:
    """Yields the lemmas, the start, and each action but the planning of a step."""
    for prover in prove_lemmas():
        yield "lemmas", SYNCHRONOUS, prover
    for dialect in dialects:
        yield f"start, {dialect.name}", dialect, prove_start(dialect)
        for action in (add_request, abort, update):
            label = f"{action.__name__}, {dialect.name}"
            yield label, dialect, prove_action(action, dialect, Question())


def prove_steps(*dialects: Dialect) -> Iterator[Part]:
    """Yields the planning of a step."""
    for dialect in dialects:
        prover = prove_action(schedule, dialect, Question(extras={"planned": _limits_are_kept}))
        yield f"schedule, {dialect.name}", dialect, prover


def _limits_are_kept(scheduler: Any) -> dict[str, Any]:
    """What is planned stays within every limit, and was taken off the budgets."""
    total, config = scheduler.memory[sum_of("scheduled")], scheduler.config
    running = scheduler.lists["running"]
    left = scheduler.memory["token_budget"]
    return {
        "the token budget is kept": total <= term(config.max_num_scheduled_tokens),
        "the input budget is kept": total <= term(config.max_num_batched_tokens),
        "what is scheduled was taken": total == term(config.max_num_scheduled_tokens) - left,
        "at most max_num_seqs run": running.hi - running.lo <= term(config.max_num_seqs),
    }
