"""Our engine beside the spec: the same call on both, from the same state.

Entry points: the actions, whose result tells what came of the call on both sides, and
`claims_of_agreement`. Both sides must answer alike, and the engine must end in the state that the
spec's state describes; since a new engine starts there too, they agree in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import frozen

from impl.request import Request
from impl.scheduler import FastScheduler
from proofs import actions
from proofs.bounded import Claim, Run
from proofs.replay import describe_output
from proofs.symbolic.engine import lent, make_engine, show
from proofs.symbolic.state import State, make_new_request
from proofs.symbolic.values import all_of, symbolic_min
from spec.interface import EngineCoreOutput, RequestStatus

Both = dict[str, dict[str, Any]]
"""By side, "spec" and "engine": what it answers, and what the engine remembers, or ought to."""


def schedule(state: State) -> Both:
    """Both schedule a step."""

    def call(engine: FastScheduler) -> _Answers:
        output, scheduler = actions.schedule(state), state.scheduler
        token_budget = symbolic_min(scheduler.token_budget, scheduler.input_budget)
        return _Answers(
            describe_output(output) | _left(token_budget, scheduler.req_index),
            describe_output(engine.schedule()) | _left(engine.token_budget, engine.req_index),
        )

    return _compare(state, call)


def update(state: State) -> Both:
    """The oldest step returns to both."""

    def call(engine: FastScheduler) -> _Answers:
        output, result = actions.take_oldest_step(state)
        return _Answers(
            _describe(state.scheduler.update_from_output(output, result)),
            _describe(engine.update_from_output(output, result)),
        )

    return _compare(state, call)


def add_request(state: State) -> Both:
    """A request arrives at both."""

    def call(engine: FastScheduler) -> _Answers:
        new = make_new_request(actions.NEW_REQUEST_ID, state.numbers)
        state.scheduler.add_request(new)
        engine.add_request(new)
        return _Answers({}, {})

    return _compare(state, call)


def abort(state: State) -> Both:
    """Both end the same request from outside."""

    def call(engine: FastScheduler) -> _Answers:
        name = actions.abort(state)
        engine.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        return _Answers({}, {})

    return _compare(state, call)


def publish(state: State) -> Both:
    """Our pool publishes some tokens of a running request; so does the pool that stands for it."""
    with lent():
        ours, abstract = make_engine(state), make_engine(state)
        num_tokens = state.numbers("num_tokens")
        name = state.shape.request_ids[0]
        pool: Any = ours.block_pool
        pool.publish_as_parent(ours.requests[name], num_tokens)
        abstract.block_pool.cache_full_blocks(abstract.requests[name], num_tokens)
        return {
            "spec": _show_publication(abstract.requests[name]),
            "engine": _show_publication(ours.requests[name]),
        }


def claims_of_agreement(run: Run) -> Iterator[Claim]:
    """Yields, of everything that was answered and is remembered, that it is the same."""
    spec, engine = run.result["spec"], run.result["engine"]
    for name in sorted(spec.keys() | engine.keys()):
        yield name, name in spec and name in engine and _is_same(spec[name], engine[name])


def _show_publication(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in ("num_cached_blocks", "decode_until")}


@frozen
class _Answers:
    spec: dict[str, Any]
    engine: dict[str, Any]


def _compare(state: State, call: Callable[[FastScheduler], _Answers]) -> Both:
    with lent():
        engine = make_engine(state)
        answers = call(engine)
        both = {
            "spec": _label(answers.spec) | show(make_engine(state)),
            "engine": _label(answers.engine) | show(engine),
        }
    state.notes += _differences(both)
    return both


def _differences(both: Both) -> Iterator[str]:
    """Says of plain numbers where the sides differ; of symbols only where they do so for sure."""
    spec, engine = both["spec"], both["engine"]
    for name in sorted(spec.keys() & engine.keys()):
        if _is_same(spec[name], engine[name]) is False:
            yield f"{name}: the spec has {spec[name]!r}, our engine has {engine[name]!r}"


def _left(token_budget: Any, req_index: int) -> dict[str, Any]:
    """Where a step stopped: a wrong victim may show there only, when few requests run."""
    return {"token_budget": token_budget, "req_index": req_index}


def _label(answer: dict[str, Any]) -> dict[str, Any]:
    return {f"answer: {name}": value for name, value in answer.items()}


def _describe(results: dict[int, list[EngineCoreOutput]]) -> dict[str, Any]:
    return {
        f"client {client}": [(r.request_id, r.new_token_ids, r.finish_reason) for r in sent]
        for client, sent in results.items()
    }


def _is_same(a: Any, b: Any) -> Any:
    """Whether two values are the same: numbers may be symbols, what contains them is plain."""
    if isinstance(a, dict):
        return list(a) == list(b) and _is_same(list(a.values()), list(b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all_of(*map(_is_same, a, b))
    return a == b
