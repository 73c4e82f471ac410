from __future__ import annotations

import gzip
import json
import re

import pytest

from checkers.errors import HarnessError
from checkers.recording import MAX_LINE_BYTES, open_recording, read_recording
from spec.actions import AddRequest, FinishRequests, Schedule, UpdateFromOutput
from spec.interface import (
    CachedRequestData,
    EngineCoreOutput,
    NewRequest,
    NewRequestData,
    RequestObservation,
    RequestStatus,
)
from tests.checkers.recorded import container_of, dump, load, path_of, reread


@pytest.fixture
def lesson():
    """The header and the events of the lesson's run."""
    return load("lesson")


# ---- what is read --------------------------------------------------------------------------------


def test_a_header_becomes_a_configuration():
    """Usable blocks are the pool, the watermark counts the null block too, other names stay."""
    header, *events = load("thrash")
    header["config"]["watermark"] = 0.5
    config = reread([header, *events]).config
    assert (3, int(0.5 * 4)) == (config.num_blocks, config.num_watermark_blocks)
    assert (18, 4, 20, 16, 9) == (
        config.max_num_batched_tokens,
        config.max_num_seqs,
        config.max_model_len,
        config.block_size,
        config.long_prefill_token_threshold,
    )
    assert (True, True) == (config.scheduler_reserve_full_isl, config.enable_chunked_prefill)


@pytest.mark.parametrize(
    ("name", "stop_order"), [("lesson", "stop_length"), ("lesson-0.11.0", "length_stop")]
)
def test_engine_and_version_name_the_dialect(name, stop_order):
    """A release's own choices are those of the dialect named after it."""
    assert stop_order == open_recording(path_of(name)).config.stop_order


def test_a_dialect_can_be_chosen(lesson):
    """The dialect that the caller names wins, also where the release has none."""
    lesson[0]["engine_version"] = "9.9.9"
    recording = reread(lesson, "vllm-0.16.0")
    assert ("vllm-0.16.0", "min_stop_length") == (recording.dialect, recording.config.stop_order)


def test_an_arrival_becomes_an_action(lesson):
    """Line 2 of the lesson: A arrives with 40 tokens and waits."""
    event = next(reread(lesson).events)
    new = NewRequest(request_id="A", prompt_token_ids=(65,) * 40, max_tokens=4, stop_token_ids=(9,))
    assert (2, AddRequest(new), ["A"]) == (event.line, event.action, event.observation.waiting)


def test_a_step_becomes_an_output(lesson):
    """Line 6 of the lesson: A and the first chunk of B, with the prompts that arrived."""
    event = list(reread(lesson).events)[4]
    assert Schedule() == event.action
    assert {"A": 40, "B": 24} == event.output.num_scheduled_tokens
    assert event.output.scheduled_new_reqs == {
        "A": NewRequestData((65,) * 40, 0, [1, 2, 3]),
        "B": NewRequestData((66,) * 100, 0, [4, 5]),
    }
    assert event.output.new_block_ids_to_zero is None
    seen = event.observation
    assert {1: 1, 2: 1, 3: 1, 4: 1, 5: 1} == seen.ref_cnt
    assert (
        RequestObservation("RUNNING", 100, 100, 0, 24, 0, 0, 24, [4, 5], None) == seen.requests["B"]
    )


def test_cached_entries_keep_their_order(lesson):
    """Who runs comes first in the diff, and so it is read."""
    event = list(reread(lesson).events)[6]
    assert [
        ("A", CachedRequestData(False, [], 40)),
        ("B", CachedRequestData(False, [6, 7, 8, 9], 24)),
    ] == list(event.output.scheduled_cached_reqs.items())


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("0", "stop"),
        ("1", "length"),
        ("2", "abort"),
        ("stop", "stop"),
        ("repetition", "repetition"),
        (None, None),
    ],
)
def test_a_finish_reason_is_a_word(lesson, written, reason):
    """Releases write the reason as a number or as a word; it is read as the word."""
    lesson[6]["outputs"][0]["finish_reason"] = written
    event = list(reread(lesson[:7]).events)[-1]
    assert UpdateFromOutput({"A": [32], "B": []}) == event.action
    assert {0: [EngineCoreOutput("A", [32], reason)]} == event.results


def test_an_end_from_outside_becomes_an_action():
    """The first abort of the recording of aborts."""
    events = open_recording(path_of("aborts")).events
    aborts = [event.action for event in events if isinstance(event.action, FinishRequests)]
    assert FinishRequests(("r0",), RequestStatus.FINISHED_ABORTED) == aborts[0]


def test_victims_are_read_in_the_order_of_their_preemption():
    """The recorder sorts the victims by name; the last one stands first in the queue."""
    events = [e for e in open_recording(path_of("depth2-two-skipped")).events if e.output]
    several = [e for e in events if len(e.output.preempted_req_ids) > 1]
    assert several, "the recording has a step with two victims"
    for event in several:
        victims = event.output.preempted_req_ids
        assert victims[::-1] == event.observation.waiting[: len(victims)]


def test_a_release_that_does_not_name_victims():
    """In 0.11.0 the victims are who ran and now waits."""
    events = open_recording(path_of("rejected/priority-victim-still-scheduled-0.11.0")).events
    event = next(e for e in events if e.line == 72)
    assert ["r9"] == event.output.preempted_req_ids


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("lesson", set()),
        ("lesson-0.16.0", {"observation.requests.num_in_flight_tokens"}),
        (
            "lesson-0.11.0",
            {
                "observation.requests.num_in_flight_tokens",
                "observation.requests.num_preemptions",
                "output.preempted_req_ids",
            },
        ),
    ],
)
def test_what_a_release_lacks_is_named(name, absent):
    """The fields that a release lacks are named, beside those that the script left out."""
    recording = open_recording(path_of(name))
    list(recording.events)
    left_out = {
        "observation.block_contents",
        "observation.requests.num_draft_tokens",
        "observation.requests.num_stale_output_tokens",
        "output.new_block_ids_to_zero",
    }
    assert sorted(absent | left_out) == list(recording.reader.absent_fields)


def test_one_event_is_read_at_a_time(lesson):
    """Reading is lazy, so that a long recording needs no more memory than a short one."""
    num_read = 0

    def lines():
        nonlocal num_read
        for line in dump(lesson):
            num_read += 1
            yield line

    recording = read_recording(lines(), "run.jsonl")
    assert 1 == num_read
    for event in recording.events:
        assert event.line == num_read


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_packed_and_plain_files_are_read_alike(tmp_path, pack):
    """A recording may be gzip, whatever its name is."""
    path = tmp_path / "run"
    path.write_bytes(pack(gzip.decompress(path_of("lesson").read_bytes())))
    expected = list(open_recording(path_of("lesson")).events)
    assert expected == list(open_recording(path).events)


def test_the_last_line_may_lack_its_end(tmp_path, lesson):
    """A complete last line needs no line break."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(dump(lesson)).rstrip(b"\n"))
    assert len(lesson) - 1 == len(list(open_recording(path).events))


# ---- what is refused -----------------------------------------------------------------------------


def refusal(path_or_documents, dialect=None):
    """What the reader says to something that is no recording."""
    read = reread if isinstance(path_or_documents, list) else open_recording
    with pytest.raises(HarnessError) as caught:
        list(read(path_or_documents, dialect).events)
    return str(caught.value)


FILES = {
    "empty": (b"", "run.jsonl:1: the file is empty"),
    "binary": (b"\x00\xff\xfe\x01junk\n", "run.jsonl:1: is not UTF-8 text"),
    "text": (b"hello\n", "run.jsonl:1: is not JSON (Expecting value"),
    "text without an end": (b"hello", "run.jsonl:1: is not JSON (Expecting value"),
    "blank": (b"\n", "run.jsonl:1: is not JSON"),
    "a list": (b"[1, 2]\n", "run.jsonl:1: the schema is None, not 'schedcheck.recording/1'"),
    "deep": (b"[" * 100_000 + b"\n", "run.jsonl:1: is not JSON"),
    "a huge number": (b"1" * 5000 + b"\n", "run.jsonl:1: is not JSON"),
    "broken gzip": (b"\x1f\x8b" + b"x" * 50, "run.jsonl:1: the packed data ends or breaks"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_recording_is_refused(tmp_path, name):
    """Whatever a file holds, the answer is one sentence with its place."""
    content, expected = FILES[name]
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    assert expected in refusal(path)


def test_a_packed_file_that_was_cut_is_refused(tmp_path):
    """What is whole is read, and then the line is named where the data ends."""
    packed = path_of("lesson").read_bytes()
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    assert re.search(r"run\.jsonl\.gz:\d+: the packed data ends or breaks here", refusal(path))


def test_a_file_without_line_ends_is_refused(tmp_path):
    """A line longer than any event is not read into memory."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(gzip.compress(b" " * (MAX_LINE_BYTES + 1), 1))
    assert f"run.jsonl:1: the line is longer than {MAX_LINE_BYTES} bytes" in refusal(path)


def test_what_is_no_file_is_refused(tmp_path):
    """A path that leads nowhere, or to a folder, is named together with the way out."""
    assert refusal(tmp_path / "x").endswith("x does not exist; name a .jsonl or .jsonl.gz file")
    assert refusal(tmp_path).endswith(" is a folder; name the recordings in it")


def test_a_cut_last_line_is_refused(tmp_path, lesson):
    """A run that was cut off in the middle of a line says so, with the line."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(dump(lesson))[:-40])
    expected = "run.jsonl:19: the last line is cut off; record again, or remove that line"
    assert refusal(path).endswith(expected)


def test_a_header_alone_is_refused(lesson):
    """A recording of nothing would be accepted whatever the engine is."""
    assert "run.jsonl:1: no event follows the header" in refusal(lesson[:1])


def test_an_unknown_release_is_refused(lesson):
    """Without a dialect of its own the known ones are named, and the way to choose."""
    lesson[0] |= {"engine": "sglang", "engine_version": "1.0"}
    message = refusal(lesson)
    assert "run.jsonl:1: no dialect is known for sglang 1.0; known are vllm-0.33.0," in message
    assert message.endswith("choose the one it speaks with --dialect")


def test_an_unknown_dialect_is_refused(lesson):
    """A dialect that does not exist is refused, and the known ones are named."""
    assert "dialect 'vllm-1' is unknown; choose one of vllm-0.33.0," in refusal(lesson, "vllm-1")


SET, REMOVE, ADD = "set", "remove", "add"
MALFORMED = [
    # header
    (0, SET, ("schema",), "schedcheck.recording/2", "the schema is 'schedcheck.recording/2'"),
    (0, REMOVE, ("config",), None, "config is missing"),
    (0, SET, ("config",), [], "config is a list, expected an object"),
    (0, REMOVE, ("config", "block_size"), None, "config.block_size is missing"),
    (0, SET, ("config", "block_size"), "16", 'config.block_size is "16", expected a whole number'),
    (0, SET, ("config", "block_size"), 16.0, "config.block_size is 16.0, expected a whole number"),
    (0, SET, ("config", "block_size"), True, "config.block_size is true, expected a whole number"),
    (0, SET, ("config", "block_size"), 0, "block_size=0 is below 1"),
    (0, SET, ("config", "max_num_seqs"), -1, "config.max_num_seqs is -1, expected a number from 0"),
    (0, SET, ("config", "num_usable_blocks"), 0, "num_blocks=0 is below 1; the pool is empty"),
    (0, SET, ("config", "num_usable_blocks"), 10**12, "num_usable_blocks=1000000000000 is above"),
    (0, SET, ("config", "watermark"), 1.5, "config.watermark=1.5 is no fraction"),
    (0, SET, ("config", "policy"), "lifo", "policy='lifo' is unknown; choose fcfs or priority"),
    (0, SET, ("config", "watermark"), None, "config.watermark is null, expected a number"),
    (0, SET, ("config", "async_scheduling"), 1, "config.async_scheduling is 1, expected true or"),
    (0, ADD, ("config", "blocksize"), 16, "config.blocksize is unknown"),
    (0, ADD, ("config", "max_loras"), "1", "max_loras='1' is not a whole number"),
    (0, ADD, ("config", "num_blocks"), 16, "config.num_blocks is unknown"),
    (0, ADD, ("extra",), 1, "extra is unknown"),
    (0, SET, ("null_block_id",), -1, "null_block_id is -1, expected a number from 0 up"),
    (0, SET, ("engine",), None, "engine is null, expected a text"),
    # events
    (1, SET, ("event",), "pause", "event 'pause' is unknown; known are add_request, schedule,"),
    (1, REMOVE, ("event",), None, "event is missing"),
    (1, REMOVE, ("observation",), None, "observation is missing"),
    (1, ADD, ("note",), "x", "note is unknown"),
    (1, SET, ("request_id",), 7, "request_id is 7, expected a text"),
    (1, SET, ("prompt_token_ids",), "AA", 'prompt_token_ids is "AA", expected a list'),
    (1, SET, ("prompt_token_ids",), [], "the prompt of 'A' has 0 tokens"),
    (1, SET, ("prompt_token_ids",), [0] * 8192, "the prompt of 'A' has 8192 tokens, 1 to 8191"),
    (1, SET, ("prompt_token_ids", 3), -1, "prompt_token_ids[3] is -1, expected a number from 0"),
    (1, SET, ("max_tokens",), 0, "max_tokens=0 of 'A' is below 1"),
    (1, SET, ("min_tokens",), -1, "min_tokens is -1, expected a number from 0 up"),
    (1, SET, ("arrival_time",), "now", 'arrival_time is "now", expected a number'),
    (1, SET, ("arrival_time",), 10**400, "arrival_time is 1000000"),
    (1, SET, ("ignore_eos",), False, "ignore_eos is false, however eos_token_id is"),
    (1, ADD, ("eos_token_id",), 2, "ignore_eos is true, however eos_token_id is 2"),
    (1, ADD, ("lora_id",), -1, "lora_id is -1, expected a number from 0 up"),
    (1, ADD, ("repetition_detection",), {"min_count": 2}, "max_pattern_size is missing"),
    (1, ADD, ("refusal",), {"request_id": "Z"}, "request 'Z' never arrived"),
    (2, SET, ("request_id",), "A", "request 'A' arrives twice"),
    (2, SET, ("observation", "waiting"), ["A", "Z"], "request 'Z' never arrived"),
    (2, SET, ("observation", "waiting"), {"A": 1}, "waiting is an object, expected a list"),
    (2, SET, ("observation", "free_block_ids", 0), None, "observation.free_block_ids[0] is null"),
    (2, REMOVE, ("observation", "requests", "A", "status"), None, "requests.A.status is missing"),
    (2, SET, ("observation", "requests", "A", "status"), "ASLEEP", "A.status 'ASLEEP' is unknown"),
    (2, SET, ("observation", "requests", "A", "num_preemptions"), None, "null in some places only"),
    (5, SET, ("output", "num_scheduled_tokens", "A"), "x", 'num_scheduled_tokens.A is "x"'),
    (5, ADD, ("output", "num_scheduled_tokens", "Z"), 1, "request 'Z' never arrived"),
    (5, SET, ("output", "new", 1, "request_id"), "A", "output names 'A' twice in one list"),
    (5, SET, ("output", "new", 1), 5, "output.new[1] is 5, expected an object"),
    (5, SET, ("output", "preempted_req_ids"), ["Z"], "request 'Z' never arrived"),
    (5, ADD, ("output", "total"), 64, "output.total is unknown"),
    (5, ADD, ("output", "scheduled_spec_decode_tokens"), {"Z": [1]}, "request 'Z' never arrived"),
    (5, ADD, ("observation", "block_contents"), {"x": {}}, "block_contents.x.cache_key is missing"),
    (5, ADD, ("observation", "ref_cnt", "one"), 1, "observation.ref_cnt names block 'one'"),
    (5, ADD, ("observation", "ref_cnt", "01"), 1, "observation.ref_cnt names block '01'"),
    (6, ADD, ("sampled_token_ids", "C"), [1], "names 'C', the oldest step in flight computes A, B"),
    (6, SET, ("sampled_token_ids", "A", 0), -1, "sampled_token_ids.A[0] is -1, expected a number"),
    (6, ADD, ("draft_token_ids",), {"C": [1]}, "draft_token_ids names 'C', the oldest step in"),
    (6, ADD, ("outputs", 0, "client_index"), None, "client_index is null, expected a whole"),
    (6, SET, ("outputs", 0, "request_id"), "Z", "request 'Z' never arrived"),
    (6, SET, ("outputs", 0, "finish_reason"), "bored", "finish_reason 'bored' is unknown"),
    (6, SET, ("outputs", 0, "finish_reason"), 0, "finish_reason is 0, expected a text"),
]


CONTROLS = [
    ({"event": "set_pause_state", "pause_state": "asleep"}, "pause_state 'asleep' is unknown"),
    ({"event": "grammar_ready", "request_id": "Z"}, "request 'Z' never arrived"),
    ({"event": "reset_prefix_cache", "reset_running_requests": 1}, "is 1, expected true or false"),
    ({"event": "reset_prefix_cache", "reset_running_requests": True}, "is_reset is missing"),
]


@pytest.mark.parametrize(("event", "expected"), CONTROLS)
def test_a_control_that_makes_no_sense_is_refused(lesson, event, expected):
    """What an engine was told beside requests is read as strictly as the rest."""
    message = refusal([*lesson[:2], {**event, "observation": lesson[1]["observation"]}])
    assert message.startswith("run.jsonl:3: ")
    assert expected in message


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case[-1])
def test_what_makes_no_sense_is_refused_at_its_line(lesson, case):
    """A missing, unknown, mistyped or senseless value is named with file and line."""
    index, kind, place, value, expected = case
    container = container_of(lesson[index], place)
    if kind == REMOVE:
        del container[place[-1]]
    else:
        container[place[-1]] = value
    message = refusal(lesson)
    assert message.startswith(f"run.jsonl:{index + 1}: ")
    assert expected in message


def test_an_update_without_a_step_is_refused(lesson):
    """Nothing can return that was not scheduled."""
    del lesson[5]
    assert "run.jsonl:6: no step is in flight that could return" in refusal(lesson)


def test_more_steps_in_flight_than_the_header_says_are_refused(lesson):
    """in_flight_depth 0 means that each step returns before the next is scheduled."""
    lesson.insert(6, lesson[5])
    assert "run.jsonl:7: a step is scheduled while 1 are in flight" in refusal(lesson)


def test_an_end_of_nobody_is_refused(lesson):
    """A client can only end a request that arrived; one that has ended already is no fault."""
    end = {"event": "finish_requests", "status": "FINISHED_ABORTED"}
    end |= {"observation": lesson[4]["observation"]}
    for request_ids, expected in (
        (["Z"], "request 'Z' never arrived"),
        (["A", "A"], "request_ids ['A', 'A'] names one twice"),
    ):
        documents = [*lesson[:5], {**end, "request_ids": request_ids}]
        assert f"run.jsonl:6: {expected}" in refusal(documents)
    alive = [*lesson[:5], {**end, "request_ids": ["A"], "status": "PREEMPTED"}]
    assert "status PREEMPTED does not end a request; these do: FINISHED" in refusal(alive)


def test_an_id_in_a_step_in_flight_is_not_given_again(lesson):
    """Output in flight for the old request would be taken for the new one's."""
    abort = {"event": "finish_requests", "request_ids": ["A"], "status": "FINISHED_ABORTED"}
    abort["observation"] = lesson[5]["observation"]
    assert "run.jsonl:8: request 'A' arrives twice" in refusal([*lesson[:6], abort, lesson[1]])


def test_a_release_without_victims_must_not_name_any():
    """What 0.11.0 cannot tell was not recorded by it."""
    documents = load("lesson-0.11.0")
    documents[5]["output"]["preempted_req_ids"] = ["A"]
    assert "vllm 0.11.0 has no such field" in refusal(documents)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b'"A": 40', b'"A": 40, "A": 41', "has 'A' twice in one object"),
        (b'"num_free_blocks": 7', b'"num_free_blocks": NaN', "holds NaN, which JSON does not know"),
    ],
)
def test_json_is_read_strictly(lesson, old, new, expected):
    """Neither a key that stands twice nor a number that JSON lacks is passed over in silence."""
    lines = dump(lesson)
    assert old in lines[5]
    lines[5] = lines[5].replace(old, new, 1)
    with pytest.raises(HarnessError, match=r"run\.jsonl:6: ") as caught:
        list(read_recording(lines, "run.jsonl").events)
    assert expected in str(caught.value)


def test_a_long_value_is_shown_in_short(lesson):
    """A message stays one sentence, whatever it has to show."""
    lesson[1]["max_tokens"] = "x" * 1000
    assert len(refusal(lesson)) < 200


def test_the_committed_recordings_are_reproducible():
    """They are packed without a time stamp, so that packing them again gives the same bytes."""
    for path in path_of("lesson").parent.rglob("*.gz"):
        assert b"\0\0\0\0" == path.read_bytes()[4:8], path
        assert json.loads(gzip.decompress(path.read_bytes()).splitlines()[0])["schema"]
