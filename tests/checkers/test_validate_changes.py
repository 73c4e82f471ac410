"""Whatever is changed in a recording of a real engine, `validate` notices it, and where."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.errors import HarnessError
from checkers.validate import validate
from tests.checkers.changed import Fork, changed, kind_of, variants
from tests.checkers.recorded import (
    ACCEPTED,
    container_of,
    dump,
    leaves,
    load,
    path_of,
    reread,
)

ANSWERS = {"output", "outputs", "sampled_token_ids", "observation"}
KINDS = {
    "observation.block_contents.*.cache_key",
    "observation.block_contents.*.token_ids[]",
    "observation.cached_block_ids[]",
    "observation.finished_req_ids[]",
    "observation.free_block_ids[]",
    "observation.num_free_blocks",
    "observation.ref_cnt.*",
    "observation.requests.*.block_ids[]",
    "observation.requests.*.num_computed_tokens",
    "observation.requests.*.num_draft_tokens",
    "observation.requests.*.num_in_flight_tokens",
    "observation.requests.*.num_output_placeholders",
    "observation.requests.*.num_output_tokens",
    "observation.requests.*.num_preemptions",
    "observation.requests.*.num_prompt_tokens",
    "observation.requests.*.num_stale_output_tokens",
    "observation.requests.*.num_tokens",
    "observation.requests.*.status",
    "observation.running[]",
    "observation.waiting[]",
    "output.cached[].new_block_ids[]",
    "output.cached[].num_computed_tokens",
    "output.cached[].request_id",
    "output.cached[].resumed",
    "output.finished_req_ids[]",
    "output.new[].block_ids[]",
    "output.new[].num_computed_tokens",
    "output.new[].num_prompt_tokens",
    "output.new[].prompt_token_ids[]",
    "output.new[].request_id",
    "output.new_block_ids_to_zero[]",
    "output.num_scheduled_tokens.*",
    "output.preempted_req_ids[]",
    "output.scheduled_spec_decode_tokens.*[]",
    "outputs[].client_index",
    "outputs[].finish_reason",
    "outputs[].new_token_ids[]",
    "outputs[].request_id",
    "sampled_token_ids.*[]",
}
"""Every place where an answer holds a value: `*` is any request or block, `[]` any index."""
NUM_PLACES = 5
"""Places that are changed, for each kind of place and each kind of event."""


def sample_places():
    """By recording and line: places to change, a few of each kind, drawn from all recordings."""
    places = defaultdict(list)
    for name in ACCEPTED:
        for line, event in enumerate(load(name)[1:], 2):
            answers = {key: value for key, value in event.items() if key in ANSWERS}
            for place, value in leaves(answers):
                if value is not None or place[-1] == "finish_reason":
                    places[event["event"], kind_of(place)].append((name, line, place))
    drawn = defaultdict(list)
    for kind in sorted(places):
        few = random.Random(str(kind)).sample(places[kind], min(NUM_PLACES, len(places[kind])))
        for name, line, place in few:
            drawn[name, line].append(place)
    return {kind for _, kind in places}, drawn


def test_any_changed_value_is_rejected_at_its_line():
    """Whatever value of an answer is changed, in any kind of place, that very event is rejected."""
    kinds, drawn = sample_places()
    assert kinds == KINDS
    num_changes, unnoticed = 0, []
    for name in ACCEPTED:
        fork, rng = Fork(load(name)), random.Random(name)
        for line, event in enumerate(fork.documents[1:], 2):
            alive = fork.validator.played.model.live
            for place in drawn[name, line]:
                if place[0] == "sampled_token_ids" and place[1] not in alive:
                    continue  # The engine ignores it; see the test below.
                arrived = sorted(fork.validator.recording.reader.arrived)
                num_blocks = fork.validator.recording.config.num_blocks
                for other in variants(event, place, arrived, num_blocks, rng):
                    num_changes += 1
                    if not fork.rejects(line, other):
                        unnoticed.append((name, line, place, other))
            fork.take(line, event)
        assert fork.validator.rejection is None
    assert unnoticed == []
    assert num_changes > 1000


@pytest.mark.parametrize(
    "place",
    [
        ("observation", "running"),
        ("observation", "waiting"),
        ("output", "new"),
        ("output", "cached"),
        ("outputs",),
    ],
    ids=".".join,
)
def test_any_changed_order_is_rejected_at_its_line(place):
    """Two neighbours that change places in a list whose order means something are noticed."""
    num_changes = 0
    for name in ("priority-preempt", "async-prefix", "lesson"):
        fork = Fork(load(name))
        for line, event in enumerate(fork.documents[1:], 2):
            entries = container_of(event, place).get(place[-1], []) if place[0] in event else []
            if len(entries) > 1 and line % 5 == 0:
                num_changes += 1
                assert fork.rejects(
                    line, changed(event, place, [entries[1], entries[0], *entries[2:]])
                )
            fork.take(line, event)
    assert num_changes > 0


def test_a_token_that_nobody_waits_for_may_be_any():
    """What a step samples for a request that was aborted meanwhile is ignored."""
    fork = Fork(load("async-preempt-aborts"))
    num_ignored = 0
    for line, event in enumerate(fork.documents[1:], 2):
        for name, tokens in event.get("sampled_token_ids", {}).items():
            if tokens and name not in fork.validator.played.model.live:
                num_ignored += 1
                place = ("sampled_token_ids", name, 0)
                assert not fork.rejects(line, changed(event, place, tokens[0] + 1))
        fork.take(line, event)
    assert num_ignored > 0


HEADERS = [
    ("max_num_batched_tokens", "lesson", 65, 6),
    ("max_num_batched_tokens", "lesson", 63, 6),
    ("max_num_seqs", "aborts", 4, 120),
    ("max_num_seqs", "aborts", 2, 53),
    ("block_size", "lesson", 17, 10),
    ("block_size", "lesson", 15, 14),
    ("num_usable_blocks", "lesson", 13, 2),
    ("num_usable_blocks", "lesson", 11, 2),
    ("long_prefill_token_threshold", "thrash", 10, 4),
    ("long_prefill_token_threshold", "thrash", 8, 4),
    ("watermark", "fcfs-preempt", 0.2, 31),
    ("policy", "priority-preempt", "fcfs", 30),
    ("enable_prefix_caching", "prefix-preempt", False, 3),
    ("async_scheduling", "async-depth1", False, 9),
    ("scheduler_reserve_full_isl", "thrash", False, 8),
]


@pytest.mark.parametrize(("field", "name", "value", "line"), HEADERS)
def test_a_changed_configuration_is_rejected_where_it_matters(field, name, value, line):
    """The run of another configuration is rejected at the first event that depends on it."""
    documents = load(name)
    documents[0]["config"][field] = value
    assert line == validate(reread(documents)).rejection.line


def test_another_null_block_is_noticed():
    """A block that is never handed out is in no free queue."""
    documents = load("lesson")
    documents[0]["null_block_id"] = 1
    assert 2 == validate(reread(documents)).rejection.line


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(("r0", "r1", "r2", "RUNNING", "PREEMPTED", "1", ""))
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.data())
def test_whatever_stands_in_a_recording_there_is_a_verdict(data):
    """Any JSON value in any place is a finding, a harmless change, or a fault of the file."""
    documents = load(data.draw(st.sampled_from(("async-preempt-aborts", "priority-preempt"))))[:60]
    place, _ = data.draw(st.sampled_from(list(leaves(documents))))
    place = place[: data.draw(st.integers(2, len(place)))]
    container_of(documents, place)[place[-1]] = data.draw(json_values)
    with contextlib.suppress(HarnessError):
        assert validate(reread(documents)).num_events > 0


@given(st.integers(0, 4000), st.binary(max_size=4), st.integers(0, 4))
def test_whatever_bytes_a_recording_holds_there_is_a_verdict(tmp_path_factory, start, junk, length):
    """A damaged file is a finding, a harmless change, or a fault of the file, packed or not."""
    path = tmp_path_factory.getbasetemp() / "run.jsonl"
    for content in (path_of("thrash").read_bytes(), b"".join(dump(load("thrash")))):
        begin = start % len(content)
        path.write_bytes(content[:begin] + junk + content[begin + length :])
        with contextlib.suppress(HarnessError):
            assert validate(path).num_events > 0
