from __future__ import annotations

import copy
import json
import random
from collections import Counter

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.configs import make_scheduler_config
from checkers.errors import HarnessError
from checkers.recorder import write_event, write_header
from checkers.recording import read_recording
from checkers.validate import validate
from spec.model import Model
from spec.registry import INVARIANTS
from spec.scheduler import ReferenceScheduler
from tests.checkers.recorded import (
    ACCEPTED,
    dump,
    load,
    path_of,
    reread,
)
from tests.spec.support import OPTIONS, choices, make_environment

# ---- what a release really did is accepted -------------------------------------------------------


def test_all_recordings_are_there():
    """Twenty-three runs of three releases are held against the specification."""
    assert 23 == len(ACCEPTED)


@pytest.mark.parametrize("exact_ids", [False, True], ids=["renamed", "exact"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_recorded_run_is_accepted(name, exact_ids):
    """Every event is as the specification says, by block numbers and free-queue order, too."""
    found = validate(path_of(name), exact_ids=exact_ids)
    assert found.rejection is None
    assert len(load(name)) - 1 == found.num_accepted == found.num_events > 0


def test_the_recordings_show_what_matters():
    """Together the accepted runs have seen what a recording can show of the rules."""
    seen = Counter()
    for name in ACCEPTED:
        seen.update(validate(path_of(name)).witnesses)
    assert {
        "preemption",
        "self_preemption",
        "resumption",
        "victim_before_the_cursor",
        "chunked_prefill",
        "prefix_hit",
        "shared_block",
        "eviction",
        "overtaking",
        "abort_in_flight",
        "abort_while_preempted",
        "stale_output",
        "stop_by_stop_token",
        "stop_by_max_tokens",
        "refused_by_token_budget",
        "refused_by_max_num_seqs",
        "refused_by_free_blocks",
        "refused_by_whole_sequence",
        "idle_pool",
        "padded_admission",
        "refused_by_padding",
        "draft_accepted",
        "draft_rejected",
        "drafts_of_a_voided_step",
        "refused_by_max_loras",
        "refused_by_an_idle_lora",
        "refused_by_pause",
        "paused_while_running",
        "reset_in_flight",
        "dropped_output",
        "refused_as_not_ready",
    } <= set(seen)


@pytest.mark.parametrize("exact_ids", [False, True], ids=["renamed", "exact"])
def test_kept_drafts_are_rejected(exact_ids):
    """The release lets r1, which sits a step out, keep drafts that its worker has no more."""
    found = validate(path_of("rejected/kept-drafts"), exact_ids=exact_ids)
    assert found.rejection is not None
    rules = [breach.name for breach in found.rejection.breaches]
    assert ["drafts_are_for_the_next_step", "same_as_spec"] == rules
    assert 20 == found.rejection.line


@pytest.mark.parametrize(
    ("name", "unobserved"),
    [
        ("lesson", {"new_blocks_are_zeroed"}),
        (
            "lesson-0.11.0",
            {
                "new_blocks_are_zeroed",
                "in_flight_tokens_are_counted",
                "preemptions_are_counted",
            },
        ),
    ],
)
def test_what_could_not_be_checked_is_said(name, unobserved):
    """An invariant that needs a field that the recording lacks is named, and so is the field."""
    found = validate(path_of(name))
    assert unobserved == set(found.unobserved) <= set(INVARIANTS)
    assert {"output.new_block_ids_to_zero"} <= set(found.absent_fields)


FIELDS_OF_A_HEADER = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "block_size",
    "num_blocks",
    "long_prefill_token_threshold",
    "policy",
    "num_watermark_blocks",
    "enable_prefix_caching",
    "async_scheduling",
    "scheduler_reserve_full_isl",
)


@given(st.data(), choices)
def test_any_run_of_the_specification_is_accepted(data, walk_choices):
    """Whatever the specification does in the dialect of a release, written down, is accepted."""
    release = data.draw(st.sampled_from(("0.33.0", "0.16.0", "0.11.0")))
    fields = {name: data.draw(st.sampled_from(OPTIONS[name])) for name in FIELDS_OF_A_HEADER}
    config = make_scheduler_config(f"vllm-{release}", fields)
    documents = [write_header(config, release, 2 if config.async_scheduling else 0)]
    model = Model(make_environment(config), ReferenceScheduler(config))
    for choice in [0, *walk_choices]:
        actions = model.enabled_actions()
        action = actions[choice % len(actions)]
        outcome = model.do(action)
        documents.append(write_event(action, outcome, model.scheduler.observe()))
        if release == "0.11.0" and "output" in documents[-1]:
            documents[-1]["output"]["preempted_req_ids"] = []  # It names no victims.
    for exact_ids in (False, True):
        # As JSON, so that nothing is shared with the run.
        assert validate(reread(documents), exact_ids=exact_ids).rejection is None


def test_block_ids_are_names():
    """A run with its blocks renamed is the same run, but not by exact ids."""
    for name in ("prefix-preempt", "async-priority-prefix", "aborts"):
        documents = load(name)
        block_ids = list(range(1, documents[0]["config"]["num_usable_blocks"] + 1))
        shuffled = random.Random(name).sample(block_ids, len(block_ids))
        renamed = rename_blocks(documents, dict(zip(block_ids, shuffled, strict=True)))
        assert validate(reread(renamed)).rejection is None
        assert 2 == validate(reread(renamed), exact_ids=True).rejection.line


def rename_blocks(documents, names):
    """The recording of an engine that calls its blocks otherwise."""
    renamed = copy.deepcopy(documents)
    for event in renamed[1:]:
        seen = event["observation"]
        seen["ref_cnt"] = {str(names[int(b)]): n for b, n in seen["ref_cnt"].items()}
        output = event.get("output", {"new": [], "cached": []})
        for holder in (seen, *seen["requests"].values(), *output["new"], *output["cached"]):
            for field in ("free_block_ids", "block_ids", "cached_block_ids", "new_block_ids"):
                if field in holder:
                    holder[field] = [names[block_id] for block_id in holder[field]]
        seen["cached_block_ids"].sort()
    return renamed


# ---- what a release did wrong is rejected --------------------------------------------------------


def evidence(breach):
    """A breach's name and its first sentence."""
    return breach.name, breach.evidence[0]


@pytest.mark.parametrize("exact_ids", [False, True], ids=["renamed", "exact"])
def test_blocks_that_never_ran_are_rejected_where_they_are_published(exact_ids):
    """0.33.0 publishes a chunk that it takes back; later 128 tokens count as computed, 97 ran."""
    found = validate(path_of("rejected/publish-of-taken-back-chunk"), exact_ids=exact_ids)
    rejection = found.rejection
    assert (8, 6, 14) == (rejection.line, found.num_accepted, found.num_events)
    assert ["published_blocks_were_written", "same_as_spec"] == [b.name for b in rejection.breaches]
    assert (
        "block 7 is published, however it holds only what was written for positions 96 to 96",
        "block 9 is published, however it holds nothing that a step wrote",
    ) == rejection.breaches[0].evidence
    assert "cached_block_ids.7: the spec has none, the engine has 1" in (
        rejection.breaches[1].evidence
    )
    assert "computes 1 of B from token 16 on; preempts A" == rejection.answer == rejection.expected
    assert "take back the 33 tokens that this step granted A" in rejection.explanation
    (resumption,) = rejection.consequences
    assert (12, "schedule") == (resumption.line, resumption.action)
    assert "computes 7 of A from token 128 on (resumed)" == resumption.answer
    name, sentence = evidence(resumption.breach)
    assert "steps_read_what_was_written" == name
    assert sentence.startswith("A reads tokens 96 to 111 from block 7, which holds only what was")
    assert sentence.endswith("written for positions 96 to 96")


@pytest.mark.parametrize("exact_ids", [False, True], ids=["renamed", "exact"])
def test_a_victim_that_is_still_scheduled_is_rejected(exact_ids):
    """0.11.0 preempts r9 and computes a token of it in the same step."""
    found = validate(
        path_of("rejected/priority-victim-still-scheduled-0.11.0"), exact_ids=exact_ids
    )
    rejection = found.rejection
    assert (72, 70, 301) == (rejection.line, found.num_accepted, found.num_events)
    assert [
        "victims_keep_only_their_tokens",
        "scheduled_requests_run",
        "diff_is_sufficient",
        "same_as_spec",
    ] == [breach.name for breach in rejection.breaches]
    assert "r9 is preempted, however the step computes 1 of its tokens" in (
        rejection.breaches[0].evidence
    )
    assert "; 1 of r9 from nowhere; " in rejection.answer
    assert "r9 from" not in rejection.expected
    assert rejection.expected.endswith("; preempts r9")
    assert "take back the 1 tokens that this step granted r9" in rejection.explanation


@pytest.mark.parametrize("exact_ids", [False, True], ids=["renamed", "exact"])
def test_placeholders_that_survive_a_preemption_are_rejected(exact_ids):
    """0.16.0 preempts r3 and goes on waiting for a token that it has voided."""
    found = validate(
        path_of("rejected/placeholders-survive-preemption-0.16.0"), exact_ids=exact_ids
    )
    rejection = found.rejection
    assert (70, 68, 268) == (rejection.line, found.num_accepted, found.num_events)
    assert ["victims_keep_only_their_tokens", "same_as_spec"] == [
        breach.name for breach in rejection.breaches
    ]
    assert (
        "same_as_spec",
        "requests.r3.num_output_placeholders: the spec has 0, the engine has 1",
    ) == evidence(rejection.breaches[1])
    assert "preempt r3: it is served last, and 0 free blocks are too few" in rejection.explanation


def test_a_dialect_that_shares_the_fault_is_rejected_by_the_invariant_alone():
    """The specification as 0.33.0 was released does what the recording shows, and is as wrong."""
    found = validate(
        path_of("rejected/publish-of-taken-back-chunk"), dialect="vllm-0.33.0-as-released"
    )
    assert 8 == found.rejection.line
    assert ["published_blocks_were_written"] == [b.name for b in found.rejection.breaches]


def test_another_dialect_is_told_apart():
    """A run of 0.33.0 is no run of 0.11.0: freed blocks stand elsewhere in the free queue."""
    found = validate(path_of("fcfs-preempt"), dialect="vllm-0.11.0", exact_ids=True)
    assert "free_block_ids" in found.rejection.breaches[0].evidence[0]


# ---- what is told --------------------------------------------------------------------------------


def test_a_changed_number_is_explained():
    """A rejection says what the specification does at that event, and by which rules."""
    documents = load("lesson")
    documents[5]["output"]["num_scheduled_tokens"]["B"] = 25
    documents[5]["observation"]["requests"]["B"]["num_computed_tokens"] = 25
    rejection = validate(reread(documents)).rejection
    assert (6, "schedule") == (rejection.line, rejection.action)
    assert (
        "computes 40 of A from token 0 on (new); 25 of B from token 0 on (new)" == rejection.answer
    )
    assert "computes 40 of A from token 0 on (new); 24 of B from token 0 on (new)" == (
        rejection.expected
    )
    assert ("token_budget_is_kept", "65 tokens are scheduled, max_num_scheduled_tokens=64") == (
        evidence(rejection.breaches[0])
    )
    assert (
        "pass 2: admit A at token 0 with 40 new tokens",
        "pass 2: admit B at token 0 with 24 new tokens",
        (
            "pass 2: gate “no pause, budget left, nobody preempted” refuses "
            "(unpaused, token budget 0, preempted [])"
        ),
    ) == rejection.explanation


def test_a_rejected_update_says_what_is_sent():
    """For a step that returns, the answers are what clients are sent."""
    documents = load("lesson")
    documents[6]["outputs"][0]["finish_reason"] = "stop"
    rejection = validate(reread(documents)).rejection
    assert ("sends A [32] and its end (stop)", "sends A [32]") == (
        rejection.answer,
        rejection.expected,
    )


def test_an_arrival_has_no_answer():
    """For an arrival there is only the state to compare."""
    documents = load("lesson")
    documents[1]["observation"]["num_free_blocks"] = 13
    rejection = validate(reread(documents)).rejection
    assert ("answers nothing", "answers nothing") == (rejection.answer, rejection.expected)


def test_consequences_are_few_and_each_is_new():
    """At most three further invariants are named, at the first line where each breaks."""
    documents = load("lesson")
    # B's second chunk is not scheduled, but its counter goes on; then things go from bad to worse.
    for document in documents[7:]:
        for request in document["observation"]["requests"].values():
            request["num_computed_tokens"] += 1
            request["num_output_tokens"] += 1
        document["observation"]["finished_req_ids"] = []
    rejection = validate(reread(documents)).rejection
    names = [later.breach.name for later in rejection.consequences]
    assert len(set(names)) == len(names) <= 3
    assert not set(names) & {breach.name for breach in rejection.breaches}


def test_progress_is_told_for_each_event():
    """Whoever waits can be told how far the reading is."""
    told = []
    validate(path_of("lesson"), on_progress=told.append)
    assert list(range(1, 19)) == told


def test_a_validation_is_plain_data():
    """Everything that was found can be written as JSON."""
    found = validate(path_of("rejected/publish-of-taken-back-chunk"))
    written = json.loads(json.dumps(attrs.asdict(found)))
    assert (6, 8) == (written["num_accepted"], written["rejection"]["line"])


# ---- what cannot be judged -----------------------------------------------------------------------


def test_a_fault_of_the_file_says_how_much_was_accepted():
    """A recording that is cut off is no finding, and what was seen of it is not lost."""
    lines = dump(load("lesson"))
    with pytest.raises(HarnessError, match=r"run\.jsonl:12: .* cut off.*\(the 10 events before it"):
        validate(read_recording([*lines[:11], lines[11][:50]], "run.jsonl"))


def test_a_fault_of_the_file_behind_a_rejection_does_not_hide_it():
    """A finding stands, and what could not be read is said."""
    lines = dump(load("rejected/publish-of-taken-back-chunk"))
    found = validate(read_recording([*lines[:10], b"{}\n"], "run.jsonl"))
    assert (8, 9) == (found.rejection.line, found.num_events)
    assert found.unread.startswith("run.jsonl:11: event is missing")


def test_several_ends_in_one_call_have_no_exact_order():
    """Engines free such requests in any order: up to renaming that is right, exactly unknown."""
    documents = load("lesson")[:7]
    documents.append(
        {
            "event": "finish_requests",
            "request_ids": ["A", "B"],
            "status": "FINISHED_ABORTED",
            "observation": copy.deepcopy(documents[4]["observation"]),
        }
    )
    seen = documents[-1]["observation"]
    del seen["requests"]["A"], seen["requests"]["B"]
    # The specification frees A first; this engine did not.
    seen |= {"waiting": ["C", "D"], "finished_req_ids": ["A", "B"]}
    seen["free_block_ids"] = [3, 2, 1, 5, 4, 6, 7, 8, 9, 10, 11, 12]
    assert validate(reread(documents)).rejection is None
    with pytest.raises(HarnessError, match=r"run\.jsonl:8: one call ends 2 requests"):
        validate(reread(documents), exact_ids=True)


def test_no_recording_ends_several_requests_in_one_call():
    """So the exact order is known throughout the committed recordings."""
    for name in ACCEPTED:
        ends = [e for e in load(name)[1:] if e["event"] == "finish_requests"]
        assert all(len(event["request_ids"]) == 1 for event in ends)


def test_exact_ids_need_the_null_block_of_vllm():
    """The specification's blocks begin at 1, as where block 0 is never handed out."""
    documents = load("lesson")
    documents[0]["null_block_id"] = 12
    with pytest.raises(HarnessError, match=r"run\.jsonl:1: null_block_id=12"):
        validate(reread(documents), exact_ids=True)
