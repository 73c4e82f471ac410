"""The same run on plain integers: what the symbols say must be what the unchanged spec does.

Entry points: `check_replay`, and `describe`, everything that an action leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3
from attrs import frozen

from proofs.symbolic.executor import Path, UndecidedError, UnsteadyError
from proofs.symbolic.pools import PublicationPool
from proofs.symbolic.state import PromptOfLength, Shape, State, make_state, values_of
from proofs.symbolic.values import SymBool, SymInt, UnsupportedError, value_in
from spec.interface import SchedulerOutput
from spec.request import CHANGING


class ReplayError(Exception):
    """The symbolic run and the plain run differ, so no proof can be trusted."""


@frozen
class Raised:
    """What a call raised instead of returning."""

    kind: str
    text: str
    """With its message, in which symbols may stand."""


FAULTS_OF_OURS = (UnsupportedError, UndecidedError, UnsteadyError, z3.Z3Exception)


def call(action: Callable[[State], Any], state: State) -> Any:
    """What an action returns; `Raised` if the code under proof raises, which is a finding."""
    try:
        return action(state)
    except FAULTS_OF_OURS:
        raise
    except Exception as error:  # noqa: BLE001  (wrong code may fail in any way)
        kind = type(error).__name__
        return Raised(kind, f"{kind}: {error}")


def check_replay(shape: Shape, action: Callable[[State], Any], path: Path) -> None:
    """Runs a start of a path through the spec; raises `ReplayError` on a difference."""
    symbolic = {
        name: evaluate(path.model, value)
        for name, value in describe(path.state, path.result).items()
    }
    state = make_state(shape, values_of(path.model))
    plain = describe(state, call(action, state))
    if symbolic != plain:
        names = [n for n in symbolic.keys() | plain.keys() if symbolic.get(n) != plain.get(n)]
        name = min(names)
        raise ReplayError(
            f"{name} is {plain.get(name)} on plain integers, the symbols say {symbolic.get(name)} "
            f"({shape.label}, {len(names)} differences); the executor is wrong, or the spec does "
            "something that symbols pass through wrongly"
        )


def describe(state: State, result: Any) -> dict[str, Any]:
    """All that an action leaves behind, by name: queues, counters, budgets, and its answer."""
    scheduler = state.scheduler
    seen: dict[str, Any] = {
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in scheduler.waiting.items],
        "kv_holding_waiting": [each.request_id for each in scheduler.kv_holding_waiting.items],
        "finished_req_ids": list(scheduler.finished_req_ids),
        "num_free_blocks": scheduler.block_pool.num_free_blocks,
        "token_budget": scheduler.token_budget,
        "input_budget": scheduler.input_budget,
        "preempted": [each.victim.request_id for each in scheduler.heard.preemptions],
        "admitted": [each.request.request_id for each in scheduler.heard.admissions],
        "granted": list(scheduler.heard.granted),
    }
    for request in scheduler.requests.values():
        for name, value in zip(CHANGING, request.save(), strict=True):
            is_prompt = isinstance(value, PromptOfLength)
            seen[f"{request.request_id}.{name}"] = value.num_tokens if is_prompt else value
    if isinstance(scheduler.block_pool, PublicationPool):
        seen["published"] = dict(scheduler.block_pool.num_published_tokens)
        seen["left"] = dict(scheduler.block_pool.num_left_tokens)
    for number, step in enumerate(state.steps):
        seen[f"step{number}"] = dict(step)
    seen["result"] = _describe_result(result)
    return seen


def _describe_result(result: Any) -> Any:
    if isinstance(result, Raised):
        return result.kind
    return describe_output(result) if isinstance(result, SchedulerOutput) else result


def describe_output(output: SchedulerOutput) -> dict[str, Any]:
    """What a step tells the worker, by name; blocks have no names in a counted pool."""
    return {
        "num_scheduled_tokens": list(output.num_scheduled_tokens.items()),
        "new": [(n, data.num_computed_tokens) for n, data in output.scheduled_new_reqs.items()],
        "cached": [
            (n, data.resumed, data.num_computed_tokens)
            for n, data in output.scheduled_cached_reqs.items()
        ],
        "preempted": output.preempted_req_ids,
        "finished": output.finished_req_ids,
    }


def evaluate(model: z3.ModelRef, value: Any) -> Any:
    """What a value, or every value in a container, is in a model."""
    if isinstance(value, SymInt | SymBool):
        return value_in(model, value)
    if isinstance(value, dict):
        return {name: evaluate(model, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(evaluate(model, each) for each in value)
    if isinstance(value, int):
        return int(value)
    return value
