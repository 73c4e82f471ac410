"""Weighted random walks through an environment: what happens next, drawn so that runs get deep.

Entry point: `draw_action`. Aborts are rare, since they would drown the rest, and a step that is in
flight mostly returns before the next event, as in a real engine.
"""

from __future__ import annotations

import random

from attrs import frozen

from spec.model import Action, FinishRequests, Model, Schedule, UpdateFromOutput


@frozen
class Weights:
    """How likely each kind of action is, among those that may happen."""

    arrival: float = 2.0
    schedule: float = 4.0
    update: float = 4.0
    abort: float = 0.25


DEFAULT_WEIGHTS = Weights()


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
    total = total_arrival + total_schedule + total_update + total_abort
    if not total:
        return None
    point = rng.random() * total
    if point < total_arrival:
        return model.arrival(rng.randrange(len(bounds.shapes)))
    if point < total_arrival + total_schedule:
        return Schedule()
    if point < total_arrival + total_schedule + total_update:
        return _draw_update(model, rng)
    return FinishRequests((rng.choice(list(model.live)),))


def _draw_update(model: Model, rng: random.Random) -> UpdateFromOutput:
    tokens = model.bounds.sampled_token_ids
    return UpdateFromOutput({name: [rng.choice(tokens)] for name in model.live_samplers()})
