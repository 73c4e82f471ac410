"""Recorded runs of our engine, with all that it may be told: accepted, and not if changed."""

from __future__ import annotations

import json
import random
from collections import defaultdict

import pytest

from checkers.configs import load_settings
from checkers.errors import HarnessError
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
    "observation.block_contents.*.cache_key",
    "observation.block_contents.*.token_ids[]",
    "observation.requests.*.num_draft_tokens",
    "observation.requests.*.num_stale_output_tokens",
    "output.new_block_ids_to_zero[]",
    "outputs[].client_index",
}
"""Places that only runs of newer calls have."""
LOADS = {
    "observation.retained[].block_ids[]",
    "observation.retained[].num_steps",
    "observation.retained[].request_id",
    "output.kv_loads.*.block_ids[]",
    "output.kv_loads.*.end",
    "output.kv_loads.*.start",
}
"""Those of loads, and of blocks that are kept back."""
WALKS = [
    ("deep-controls", 0, NEW),
    ("deep-everything", 0, NEW),
    ("deep-remote-kv", 0, LOADS),
    ("deep-remote-kv-drafts", 1, NEW | {"observation.deferred_loads.*"}),
]
"""Settings and seeds, and which of those places their walks have."""


def record(name, seed=0, length=150):
    """A walk of our engine in a setting."""
    setting = load_settings()[name]
    lines = record_walk(setting, FastScheduler(setting.scheduler), seed, length)
    return [json.loads(line) for line in lines], setting.dialect


def names_several(documents):
    """Whether one call ends several requests, so that nobody knows in which order."""
    return any(len(event.get("request_ids", ())) > 1 for event in documents)


def test_requests_that_end_together_are_accepted():
    """Where one call names several requests, some of them gone, ids are not compared."""
    documents, dialect = record("deep-prefix")
    assert names_several(documents)
    found = validate(reread(documents, dialect))
    assert (None, len(documents) - 1) == (found.rejection, found.num_accepted)


@pytest.mark.parametrize("name", DEEP)
def test_a_recorded_walk_is_accepted(name):
    """Whatever a walk has done is read back, and accepted with exact ids."""
    walks = (record(name, seed) for seed in range(20))
    documents, dialect = next(walk for walk in walks if not names_several(walk[0]))
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


@pytest.mark.parametrize(("name", "seed", "expected"), WALKS, ids=[walk[0] for walk in WALKS])
def test_any_changed_value_is_rejected_at_its_line(name, seed, expected):
    """Whatever value of an answer is changed, in any kind of event, that very event is rejected."""
    documents, dialect = record(name, seed)
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
    assert set() == expected - kinds


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


def test_a_load_that_brought_less_is_rejected_at_the_line_of_its_end():
    """What has arrived of a load counts as computed at once, a block less is another run."""
    documents, dialect = record("deep-remote-kv", length=300)
    fork, num_changes = Fork(documents, dialect), 0
    block_size = fork.validator.recording.config.block_size
    for line, event in enumerate(documents[1:], 2):
        load = fork.validator.recording.reader.loads.get(event.get("request_id", ""))
        num_tokens = event.get("num_valid_tokens", 0)
        if load is not None and num_tokens > load.start:
            fewer = num_tokens - block_size
            assert fork.rejects(line, {**event, "num_valid_tokens": fewer})
            num_changes += 1
        fork.take(line, event)
    assert num_changes > 0


def test_an_end_of_no_load_is_refused():
    """A load ends once, with whole blocks of it; nothing else can be reported of one."""
    documents, dialect = record("deep-remote-kv")
    line = next(n for n, event in enumerate(documents, 1) if event.get("num_valid_tokens"))
    end, refusals = documents[line - 1], []
    loads = [event["output"].get("kv_loads", {}) for event in documents if "output" in event]
    load = next(each[end["request_id"]] for each in loads if end["request_id"] in each)
    wrong = [{**end, "num_valid_tokens": load["end"] + n} for n in (-1, 1, 2)]
    for events in ([end, end], *[[other] for other in wrong]):
        recording = reread([*documents[: line - 1], *events], dialect)
        with pytest.raises(HarnessError) as refused:
            list(recording.events)
        refusals.append(str(refused.value))
    assert f"run.jsonl:{line + 1}: nothing is loaded for" in refusals[0]
    for other, message in zip(wrong, refusals[1:], strict=True):
        assert f"run.jsonl:{line}: num_valid_tokens={other['num_valid_tokens']} of" in message


def test_a_store_holds_no_more_than_the_prompt():
    """A prompt of three tokens has no KV of four anywhere."""
    documents, dialect = record("deep-remote-kv")
    line = next(n for n, event in enumerate(documents, 1) if event.get("num_remote_tokens"))
    arrival = documents[line - 1]
    num_tokens = len(arrival["prompt_token_ids"])
    arrival["num_remote_tokens"] = num_tokens + 1
    with pytest.raises(HarnessError, match=f"num_remote_tokens={num_tokens + 1} of"):
        validate(reread(documents, dialect))


def test_a_load_that_never_began_is_told_in_words():
    """A step that says nothing of a load is rejected, beside the load that was due."""
    documents, dialect = record("deep-remote-kv")
    event = next(event for event in documents if event.get("output", {}).get("kv_loads"))
    ((name, load),) = event["output"].pop("kv_loads").items()
    rejection = validate(reread(documents, dialect)).rejection
    assert f"; loads tokens {load['start']} to {load['end']} of {name}" in rejection.expected
    assert "loads" not in rejection.answer
