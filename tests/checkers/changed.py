"""Recordings with another value somewhere, and whether `validate` notices it at that very line."""

from __future__ import annotations

import copy
import itertools
import pickle

import attrs

from checkers.strict_json import Malformed
from checkers.validate import _Validator
from tests.checkers.recorded import container_of, reread

BY_NAME = {
    "num_scheduled_tokens",
    "scheduled_spec_decode_tokens",
    "requests",
    "ref_cnt",
    "block_contents",
    "kv_loads",
    "deferred_loads",
    "sampled_token_ids",
}
"""Objects whose keys are names of requests or blocks."""


def kind_of(place):
    """What a place has in common with its like in other events."""
    names = [
        "[]" if isinstance(key, int) else ".*" if above in BY_NAME else f".{key}"
        for above, key in itertools.pairwise(("", *place))
    ]
    return "".join(names).removeprefix(".")


def other_values(place, value, names, rng):
    """What might stand at a place instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        # A token id below 0 makes no sense, which the reader says.
        is_token = place[0] == "sampled_token_ids" or "new_token_ids" in place
        others = [value + 1, value - 1, 2 * value + 3, rng.randrange(12)]
        return [other for other in others if other != value and not (is_token and other < 0)]
    if place[-1] == "status":
        return [other for other in ("WAITING", "RUNNING", "PREEMPTED") if other != value]
    if place[-1] == "finish_reason":
        words = {"0": "stop", "1": "length", "2": "abort"}
        return [w for w in (None, *words.values()) if w != words.get(value, value)]
    return [rng.choice([name for name in names if name != value])]


def changed(event, place, value):
    """The event with another value at a place."""
    other = copy.deepcopy(event)
    container_of(other, place)[place[-1]] = value
    return other


def with_another_key(event, place, names, rng):
    """The event with a request or a block called otherwise; None where no other name is free."""
    other = copy.deepcopy(event)
    container = container_of(other, place)
    free = [name for name in names if name not in container]
    if not free:
        return None
    name = rng.choice(free)
    items = [(name if key == place[-1] else key, value) for key, value in container.items()]
    container.clear()
    container.update(items)
    return other


def variants(event, place, arrived, num_blocks, rng):
    """The event with another value at a place, or, where names are keys, with another key."""
    value = container_of(event, place)[place[-1]]
    for other in other_values(place, value, arrived, rng):
        yield changed(event, place, other)
    if len(place) > 1 and place[-2] in {"num_scheduled_tokens", "ref_cnt"}:
        blocks = [str(block_id) for block_id in range(1, num_blocks + 1)]
        names = blocks if place[-2] == "ref_cnt" else arrived
        other = with_another_key(event, place, names, rng)
        if other is not None:
            yield other


class Fork:
    """A validation that can try a line before it takes it."""

    def __init__(self, documents, dialect=None):
        self.documents = documents
        recording = attrs.evolve(reread(documents, dialect), events=iter(()))
        self.validator = _Validator(recording, exact_ids=False)
        self.saved = b""

    def take(self, line, event):
        """Goes on."""
        self.validator.take(self.validator.recording.reader.read(line, event))
        self.saved = b""

    def rejects(self, line, event):
        """Whether an event would be rejected; nothing is changed by the question."""
        self.saved = self.saved or pickle.dumps(self.validator)
        validator = pickle.loads(self.saved)
        try:
            validator.take(validator.recording.reader.read(line, event))
        except Malformed:
            return True
        return validator.rejection is not None and validator.rejection.line == line
