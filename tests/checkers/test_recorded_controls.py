"""Recorded runs of our engine, with all that it may be told: accepted, and not if changed."""

from __future__ import annotations

import json
import random
from collections import defaultdict

import pytest

from checkers.configs import load_settings
from checkers.mutations.recorded import record_walk
from checkers.validate import validate
from impl.scheduler import FastScheduler
from spec.actions import ACTION_NAMES
from tests.checkers.changed import Fork, kind_of, variants
from tests.checkers.recorded import leaves, reread

DEEP = [name for name in load_settings() if name.startswith("deep-") and "0-11" not in name]
"""The dialect of 0.11.0 names no victims, so its walks are recorded with less."""
ANSWERS = ("output", "outputs", "refusal", "is_reset", "observation")
NUM_PLACES = 2
"""Places that are changed, for each kind of place and each kind of event."""
NEW = {
    "is_reset",
    "observation.block_contents.*.cache_key",
    "observation.block_contents.*.token_ids[]",
    "observation.requests.*.num_draft_tokens",
    "observation.requests.*.num_stale_output_tokens",
    "output.new_block_ids_to_zero[]",
    "output.scheduled_spec_decode_tokens.*[]",
    "outputs[].client_index",
}
"""Places that only runs of newer calls have."""


def record(name, length=150):
    """A walk of our engine in a setting."""
    setting = load_settings()[name]
    lines = record_walk(setting, FastScheduler(setting.scheduler), 0, length)
    return [json.loads(line) for line in lines], setting.dialect


@pytest.mark.parametrize("name", DEEP)
def test_a_recorded_walk_is_accepted(name):
    """Whatever a walk has done is read back, and accepted with exact ids."""
    documents, dialect = record(name)
    found = validate(reread(documents, dialect), exact_ids=True)
    assert (None, len(documents) - 1) == (found.rejection, found.num_accepted)
    assert () == found.absent_fields


def test_every_action_is_recorded():
    """The walks of the deep settings hold every kind of event that there is."""
    events = {event["event"] for name in DEEP for event in record(name)[0][1:]}
    assert set(ACTION_NAMES.values()) == events


def sample_places(documents):
    """By line: places to change in what was answered, a few of each kind."""
    places = defaultdict(list)
    for line, event in enumerate(documents[1:], 2):
        answers = {n: event[n] for n in ANSWERS if n in event}
        for place, value in leaves(answers):
            if value is not None:
                places[event["event"], kind_of(place)].append((line, place))
    drawn = defaultdict(list)
    for kind in sorted(places):
        few = random.Random(str(kind)).sample(places[kind], min(NUM_PLACES, len(places[kind])))
        for line, place in few:
            drawn[line].append(place)
    return drawn


@pytest.mark.parametrize("name", ["deep-controls", "deep-everything"])
def test_any_changed_value_is_rejected_at_its_line(name):
    """Whatever value of an answer is changed, in any kind of event, that very event is rejected."""
    documents, dialect = record(name)
    fork, rng, unnoticed = Fork(documents, dialect), random.Random(name), []
    drawn = sample_places(documents)
    for line, event in enumerate(documents[1:], 2):
        for place in drawn[line]:
            arrived = sorted(fork.validator.recording.reader.arrived)
            num_blocks = fork.validator.recording.config.num_blocks
            others = variants(event, place, arrived, num_blocks, rng)
            unnoticed += [(line, place) for other in others if not fork.rejects(line, other)]
        fork.take(line, event)
    assert [] == unnoticed
    kinds = {kind_of(place) for places in drawn.values() for place in places}
    assert kinds & NEW >= NEW - {"is_reset", "output.scheduled_spec_decode_tokens.*[]"}


def test_changed_drafts_are_rejected_at_their_line():
    """A request that was given one draft less shows it at once."""
    documents, dialect = record("deep-drafts")
    fork, num_changes = Fork(documents, dialect), 0
    for line, event in enumerate(documents[1:], 2):
        for name, drafts in event.get("draft_token_ids", {}).items():
            request = event["observation"]["requests"].get(name, {"num_draft_tokens": 0})
            if request["num_draft_tokens"] > 0:  # Else it has ended, or is in its prompt.
                fewer = {**event["draft_token_ids"], name: drafts[1:]}
                assert fork.rejects(line, {**event, "draft_token_ids": fewer})
                num_changes += 1
        fork.take(line, event)
    assert num_changes > 0
