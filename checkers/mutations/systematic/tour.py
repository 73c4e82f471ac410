"""Runs that take every action of every state of a setting, as few as come easily.

Entry point: `take_tour`. A scheduler that cannot be rewound is shown all of a setting by a walk
that always goes on to the nearest action not yet taken. Where none can be reached any more, as
once the prefix cache holds what nobody evicts, another run begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

import attrs
from attrs import define, field

from checkers.configs import Setting
from checkers.explore import make_root
from spec.actions import (
    Action,
    AddRequest,
    FinishRequests,
    GrammarReady,
    KVReceived,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.snapshot import Snapshot, SpecModel, canonical_names, freeze

Run = list[Action]
Key = Hashable
"""An action of a state, whatever its requests are called."""


def take_tour(setting: Setting) -> tuple[list[Run], int]:
    """Returns the runs, and how many states they come through."""
    tour = _Tour()
    runs: list[Run] = []
    while not runs or tour.is_open():
        runs.append(tour.run(make_root(setting)))
    return runs, len(tour.places)


@define
class _Tour:
    """The states seen so far, by their places in the order of discovery, and what is left."""

    places: dict[Snapshot, int] = field(factory=dict)
    left: list[list[Key]] = field(factory=list)
    """By state: the actions not yet taken."""
    after: list[dict[Key, int]] = field(factory=list)
    """By state: where the others lead."""

    def is_open(self) -> bool:
        """Whether something is left."""
        return any(self.left)

    def run(self, model: SpecModel) -> Run:
        """Takes what is left and can be reached, by one run from the empty scheduler."""
        actions: Run = []
        menu = make_menu(model)
        place = self._arrive(model, menu)
        while (way := self._find_way(place)) is not None:
            for key in way:
                action = menu[key]
                model.do(action)
                actions.append(action)
                menu = make_menu(model)
                before, place = place, self._arrive(model, menu)
                self.after[before][key] = place
        return actions

    def _arrive(self, model: SpecModel, menu: dict[Key, Action]) -> int:
        state = freeze(model)
        place = self.places.get(state)
        if place is None:
            place = self.places[state] = len(self.places)
            self.left.append(list(reversed(menu)))
            self.after.append({})
        return place

    def _find_way(self, start: int) -> list[Key] | None:
        """The way through the nearest action that is left, which is then taken; None without."""
        came_from: dict[int, tuple[int, Key]] = {}
        level = deque([start])
        while level:
            place = level.popleft()
            if self.left[place]:
                way = [self.left[place].pop()]
                while place != start:
                    place, key = came_from[place]
                    way.append(key)
                return way[::-1]
            for key, after in self.after[place].items():
                if after != start and after not in came_from:
                    came_from[after] = (place, key)
                    level.append(after)
        return None


def make_menu(model: SpecModel) -> dict[Key, Action]:
    """All that may happen next, by keys that are the same in all that look alike."""
    names = {name: place for place, name in enumerate(canonical_names(model))}
    return {_make_key(action, names): action for action in model.enabled_actions()}


def _make_key(action: Action, names: dict[str, int]) -> Key:
    if isinstance(action, AddRequest):
        return ("add_request", action.shape)
    if isinstance(action, FinishRequests):
        return ("finish_requests", names[action.request_ids[0]])
    if isinstance(action, GrammarReady):
        return ("grammar_ready", names[action.request_id])
    if isinstance(action, KVReceived):
        return ("finish_recving", names[action.request_id], action.num_valid_tokens)
    if isinstance(action, StreamingChunk):
        # Two chunks that differ in their time only are the same choice, as two arrivals are.
        update = action.update and attrs.evolve(action.update, arrival_time=0.0)
        return ("streaming_update", names[action.request_id], update)
    if isinstance(action, UpdateFromOutput):
        sampled = [(names[n], tuple(row)) for n, row in action.sampled_token_ids.items()]
        drafts = [(names[n], tuple(row)) for n, row in action.draft_token_ids.items()]
        return ("update_from_output", tuple(sorted(sampled)), tuple(sorted(drafts)))
    return action  # The others name nobody.
