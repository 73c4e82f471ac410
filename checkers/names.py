"""The names of requests in a run.

Entry points: `rename`, for one action, and `renumber`, for a whole run.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from spec.actions import (
    Action,
    AddRequest,
    FinishRequests,
    GrammarReady,
    KVReceived,
    StreamingChunk,
    UpdateFromOutput,
)


def rename(action: Action, names: Mapping[str, str]) -> Action:
    """The same action, with its requests under other names."""
    if isinstance(action, AddRequest):
        name = names[action.request.request_id]
        return AddRequest(attrs.evolve(action.request, request_id=name), action.shape)
    if isinstance(action, FinishRequests):
        return FinishRequests(tuple(names[name] for name in action.request_ids), action.status)
    if isinstance(action, UpdateFromOutput):
        return UpdateFromOutput(
            {names[name]: token_ids for name, token_ids in action.sampled_token_ids.items()},
            {names[name]: token_ids for name, token_ids in action.draft_token_ids.items()},
        )
    if isinstance(action, GrammarReady | KVReceived | StreamingChunk):
        return attrs.evolve(action, request_id=names[action.request_id])
    return action


def renumber(actions: list[Action]) -> list[Action]:
    """The same run, as if its requests and chunks were the only ones that ever arrived."""
    names: dict[str, str] = {}
    renumbered: list[Action] = []
    num_arrivals = 0
    for action in actions:
        if isinstance(action, AddRequest):
            names[action.request.request_id] = f"r{num_arrivals}"
        renamed = rename(action, names)
        if isinstance(renamed, AddRequest):
            request = attrs.evolve(renamed.request, arrival_time=float(num_arrivals))
            renamed = AddRequest(request, renamed.shape)
            num_arrivals += 1
        elif isinstance(renamed, StreamingChunk) and renamed.update is not None:
            update = attrs.evolve(renamed.update, arrival_time=float(num_arrivals))
            renamed = StreamingChunk(renamed.request_id, update)
            num_arrivals += 1
        renumbered.append(renamed)
    return renumbered
