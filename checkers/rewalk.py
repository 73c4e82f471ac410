"""Shorter runs than one that is known to fail: they begin as it does, and go on at random.

Entry point: `rewalks`. Where a run needs many steps, whatever is dropped changes all that follows,
and delta debugging gets stuck; a walk from some state on the way often fails much sooner.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs

from checkers.configs import Setting
from checkers.names import renumber
from checkers.trial import Rules, make_possible
from checkers.walk import draw_action
from spec.actions import (
    Action,
    AddRequest,
    FinishRequests,
    ResetPrefixCache,
    SetPauseState,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.environment import Environment
from spec.interface import NewRequest, StreamingUpdate
from spec.model import Model
from spec.scheduler import ReferenceScheduler


def rewalks(setting: Setting, actions: list[Action], rng: random.Random) -> Iterator[list[Action]]:
    """Yields, for ever, runs that are shorter by one action, and begin as a run does.

    They go on among what may happen in the setting, some with shorter prompts, or with what the run
    is made of. The specification says what may happen.
    """
    bounds = setting.environment
    rules = Rules(
        setting.scheduler, (), bounds.max_in_flight, default_token_id=bounds.sampled_token_ids[0]
    )
    known = renumber(actions)
    own = environment_of(known, rules)
    while True:
        environment = rng.choice((own, bounds, _cut_prompts(bounds, rng)))
        yield _walk_on(environment, rules, known, rng)


def _cut_prompts(bounds: Environment, rng: random.Random) -> Environment:
    shapes = [cut_prompt(s, rng.randint(1, len(s.prompt_token_ids))) for s in bounds.shapes]
    return attrs.evolve(bounds, shapes=tuple(shapes))


def cut_prompt(new: NewRequest, length: int) -> NewRequest:
    """A request with only the first tokens of its prompt; no more of them can be loaded."""
    num_remote_tokens = min(new.num_remote_tokens, length)
    prompt_token_ids = new.prompt_token_ids[:length]
    return attrs.evolve(new, prompt_token_ids=prompt_token_ids, num_remote_tokens=num_remote_tokens)


def _walk_on(
    environment: Environment, rules: Rules, known: list[Action], rng: random.Random
) -> list[Action]:
    model = Model(environment, ReferenceScheduler(rules.config))
    actions: list[Action] = []
    for wanted in known[: rng.randrange(len(known) - 1)]:
        action = make_possible(model, wanted, rules)
        if action is not None:
            model.do(action)
            actions.append(action)
    while len(actions) < len(known) - 1:
        drawn = draw_action(model, rng)
        if drawn is None:
            break
        model.do(drawn)
        actions.append(drawn)
    return actions


def environment_of(actions: list[Action], rules: Rules) -> Environment:
    """The smallest environment in which a run may happen."""
    shapes: dict[NewRequest, None] = {}
    chunks: dict[StreamingUpdate, None] = {}
    tokens = {rules.default_token_id: None}
    drafts: tuple[int, ...] = ()
    for action in actions:
        if isinstance(action, AddRequest):
            shapes[attrs.evolve(action.request, request_id="", arrival_time=0.0)] = None
        elif isinstance(action, StreamingChunk) and action.update is not None:
            chunks[attrs.evolve(action.update, arrival_time=0.0)] = None
        elif isinstance(action, UpdateFromOutput):
            for sampled in action.sampled_token_ids.values():
                tokens.update(dict.fromkeys(sampled))
            for token_ids in action.draft_token_ids.values():
                drafts = max(drafts, tuple(token_ids), key=len)
    num_arrivals = sum(isinstance(action, AddRequest) for action in actions)
    num_chunks = sum(isinstance(action, StreamingChunk) for action in actions)
    return Environment(
        shapes=tuple(shapes) or (NewRequest(request_id="", prompt_token_ids=(0,), max_tokens=1),),
        max_live_requests=max(num_arrivals, 1),
        max_in_flight=rules.max_in_flight,
        sampled_token_ids=tuple(tokens),
        draft_token_ids=drafts,
        with_aborts=any(isinstance(action, FinishRequests) for action in actions),
        with_pauses=any(isinstance(action, SetPauseState) for action in actions),
        with_resets=any(isinstance(action, ResetPrefixCache) for action in actions),
        chunks=tuple(chunks),
        max_session_tokens=rules.config.max_model_len - 1,
        max_queued_chunks=max(num_chunks, 1),
    )
