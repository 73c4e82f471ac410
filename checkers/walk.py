"""Weighted random walks through an environment: what happens next, drawn so that runs get deep.

Entry point: `draw_action`. Aborts are rare, since they would drown the rest, and a step that is in
flight mostly returns before the next event, as in a real engine.
"""

from __future__ import annotations

import random

from attrs import frozen

from spec.actions import Action, FinishRequests, Schedule, UpdateFromOutput
from spec.model import Model


@frozen
class Weights:
    """How likely each kind of action is, among those that may happen."""

    arrival: float = 2.0
    schedule: float = 4.0
    update: float = 4.0
    abort: float = 0.25
    control: float = 1.0
    """Pauses, grammars and resets, where an environment has them."""


DEFAULT_WEIGHTS = Weights()
DRAFTED = 0.75
"""How likely a request of a step is given drafts, where there are any."""
TOGETHER = 0.25
"""How likely somebody else is named with whom a client aborts, be it alive or not."""


def draw_action(
    model: Model, rng: random.Random, weights: Weights = DEFAULT_WEIGHTS
) -> Action | None:
    """Draws what happens next; None if nothing may."""
    bounds = model.bounds
    may_arrive = len(model.live) < bounds.max_live_requests
    total_arrival = weights.arrival if may_arrive else 0.0
    total_schedule = weights.schedule if model.may_schedule() else 0.0
    total_update = weights.update if model.in_flight else 0.0
    total_abort = weights.abort if model.live and bounds.with_aborts else 0.0
    controls = model.controls()
    total_control = weights.control if controls else 0.0
    total = total_arrival + total_schedule + total_update + total_abort + total_control
    if not total:
        return None
    point = rng.random() * total
    if point < total_arrival:
        return model.arrival(rng.randrange(len(bounds.shapes)))
    if point < total_arrival + total_schedule:
        return Schedule()
    if point < total_arrival + total_schedule + total_update:
        return _draw_update(model, rng)
    if controls and point >= total - total_control:
        # Of late calls there are more and more, so only the last two of them.
        return rng.choice([*controls, *model.late_controls()[-2:]])
    return _draw_abort(model, rng)


def _draw_abort(model: Model, rng: random.Random) -> FinishRequests:
    """A client leaves with one request, or with two, of which one may have ended meanwhile."""
    names = [rng.choice(list(model.live))]
    if rng.random() < TOGETHER:
        others = [name for name in (*model.live, *model.ended) if name not in names]
        if others:
            names.insert(rng.randrange(2), rng.choice(others))
    return FinishRequests(tuple(names))


def _draw_update(model: Model, rng: random.Random) -> UpdateFromOutput:
    sampled = {name: _draw_row(model, rng, name) for name in model.live_samplers()}
    drafts = {name: ids for name, ids in model.new_drafts().items() if rng.random() < DRAFTED}
    return UpdateFromOutput(sampled, drafts)


def _draw_row(model: Model, rng: random.Random, request_id: str) -> list[int]:
    """A row of the menu; drafts that the worker keeps to itself may have been any tokens."""
    row = rng.choice(model.rows(request_id))
    drafts = model.in_flight[0].drafts_of(request_id)[: len(row) - 1]
    tokens = model.bounds.sampled_token_ids
    accepted = [
        rng.choice(tokens) if draft < 0 else token
        for draft, token in zip(drafts, row, strict=False)
    ]
    return [*accepted, *row[len(accepted) :]]
