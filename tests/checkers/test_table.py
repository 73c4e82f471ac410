from __future__ import annotations

import attrs
import pytest

from checkers.configs import load_settings
from checkers.counterexample import StepDocument, make_steps
from checkers.engines import load_engine
from checkers.lockstep import NAMELESS
from checkers.run import Breach
from checkers.search import make_rules
from checkers.table import MAX_EVIDENCE, describe_breach, describe_request, table_of
from checkers.trial import run_trial
from spec.actions import (
    AddRequest,
    FinishRequests,
    GrammarReady,
    KVReceived,
    ResetPrefixCache,
    Schedule,
    SetPauseState,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.interface import NewRequest, RequestStatus, StreamingUpdate
from tests.checkers.planted import TINY, RaisesInSchedule, attempt

A, B = (
    NewRequest(request_id=name, prompt_token_ids=(0,) * length, max_tokens=1)
    for name, length in (("a", 1), ("b", 3))
)


def lines_of(actions, setting=TINY, make=None):
    """The table of a run, without the spaces between its columns."""
    spec = load_engine("spec")
    rules = make_rules(spec, setting)
    trial = run_trial(rules, spec, actions) if make is None else attempt(make, actions)
    lines = table_of(make_steps(trial), setting.scheduler.num_blocks)
    return [[cell.strip() for cell in line.split("  ") if cell] for line in lines]


def test_a_row_tells_what_happened_and_what_is_so_after_it():
    """Each row has the action in words, the queues, the block tables and the reference counts."""
    actions = [
        AddRequest(A),
        AddRequest(B),
        Schedule(),
        FinishRequests(("b",), RequestStatus.FINISHED_STOPPED),
        UpdateFromOutput({"a": [0]}),
    ]
    header, *rows = lines_of(actions)
    assert ["#", "action", "running", "waiting", "block_ids", "ref_cnt"] == header[:6]
    assert [
        ["1", "add_request(a, num_prompt_tokens=1, max_tokens=1)", "-", "a", "-", "0 0 0"],
        ["2", "add_request(b, num_prompt_tokens=3, max_tokens=1)", "-", "a b", "-", "0 0 0"],
        ["3", "schedule: a 1 token, b 2 tokens", "a b", "-", "a: 1, b: 2", "1 1 0"],
        ["4", "stopped b", "a", "-", "a: 1", "1 0 0"],
        ["5", "step returns: a [0], a finishes (length)", "-", "-", "-", "0 0 0"],
    ] == [row[:6] for row in rows]


def test_what_an_engine_is_told_beside_requests_is_a_row():
    """Pauses, grammars, resets and chunks are told as calls, and a refusal with its reason."""
    setting = attrs.evolve(TINY, scheduler=attrs.evolve(TINY.scheduler, reject_too_large=True))
    large = attrs.evolve(B, prompt_token_ids=(0,) * 7, max_tokens=9)
    actions = [
        AddRequest(large),
        AddRequest(attrs.evolve(A, structured_output=True)),
        SetPauseState("paused_new"),
        GrammarReady("a"),
        ResetPrefixCache(True),
        AddRequest(attrs.evolve(B, resumable=True)),
        StreamingChunk("b", StreamingUpdate(prompt_token_ids=(0, 1), max_tokens=2)),
        StreamingChunk("b", None),
    ]
    assert [
        "add_request(b, num_prompt_tokens=7, max_tokens=9), b finishes (error)",
        "add_request(a, num_prompt_tokens=1, max_tokens=1, structured_output=True)",
        "set_pause_state(pause_state=paused_new)",
        "grammar_ready(request_id=a)",
        "reset_prefix_cache(reset_running_requests=True)",
        "add_request(b, num_prompt_tokens=3, max_tokens=1, resumable=True)",
        "streaming_update(b, prompt_token_ids=[0, 1], max_tokens=2)",
        "streaming_update(b, closed)",
    ] == [row[1] for row in lines_of(actions, setting)[1:]]


def test_a_turn_is_not_the_end():
    """A resumable request that has answered a chunk ends a turn; it finishes when it is closed."""
    resumable = attrs.evolve(A, resumable=True)
    actions = [AddRequest(resumable), Schedule(), UpdateFromOutput({})]
    assert "engine step: a 1 token, a ends a turn (length)" == lines_of(actions)[2][1]
    actions.insert(1, StreamingChunk("a", None))
    assert "engine step: a 1 token, a finishes (length)" == lines_of(actions)[3][1]


def test_a_step_that_returns_at_once_is_one_row():
    """Schedule and its return are shown together if nothing comes between them."""
    actions = [AddRequest(A), Schedule(), UpdateFromOutput({}), Schedule()]
    assert [
        ["2-3", "engine step: a 1 token, a finishes (length)"],
        ["4", "schedule: nothing"],
    ] == [row[:2] for row in lines_of(actions)[2:]]


def test_steps_in_flight_together_are_rows_of_their_own():
    """A return belongs to the oldest step in flight, which is not the row above."""
    setting = load_settings()["async"]
    actions = [AddRequest(B), Schedule(), Schedule(), UpdateFromOutput({}), UpdateFromOutput({})]
    rows = lines_of(actions, setting)[2:]
    assert ["2", "3", "4", "5"] == [row[0] for row in rows]


def test_an_engine_that_fails_has_no_state():
    """In the step in which an engine fails nothing is known."""
    long = attrs.evolve(B, max_tokens=2)
    actions = [AddRequest(long), Schedule(), UpdateFromOutput({}), Schedule()]
    last = lines_of(actions, make=RaisesInSchedule)[-1]
    assert ["4", "schedule: no answer", "?", "?", "?", "?"] == last[:6]


def test_a_large_pool_is_counted():
    """With more blocks than a row can hold, only their number is shown."""
    large = attrs.evolve(TINY, scheduler=attrs.evolve(TINY.scheduler, num_blocks=17))
    assert "2 of 17 held" == lines_of([AddRequest(B), Schedule()], large)[-1][5]


def test_an_empty_run_has_a_header():
    """An engine that could not be built has a table, too."""
    assert 1 == len(list(table_of([], 3)))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "r, num_prompt_tokens=2, max_tokens=3"),
        ({"prompt_token_ids": (0, 7)}, "r, prompt_token_ids=[0, 7], max_tokens=3"),
        (
            {"stop_token_ids": (9,), "priority": -1, "cache_salt": "s", "arrival_time": 5.0},
            "r, num_prompt_tokens=2, max_tokens=3, stop_token_ids=(9,), priority=-1, cache_salt=s",
        ),
    ],
)
def test_a_request_is_told_by_what_is_not_as_usual(fields, text):
    """Lengths are always shown, tokens if they matter, the rest where it differs."""
    new = NewRequest(**{"request_id": "r", "prompt_token_ids": (0, 0), "max_tokens": 3} | fields)
    assert text == describe_request(new)


def test_evidence_is_told_in_sentences():
    """The first rule's evidence comes first; what contradicts is called so; long lists are cut."""
    many = tuple(f"sentence {number}" for number in range(MAX_EVIDENCE + 2))
    breaches = [
        Breach("first", "It holds.", ("a is 1, however b is 2",)),
        Breach("second", "So does it.", many),
    ]
    assert [
        "Then a is 1, however b is 2: a contradiction.",
        "Also second: So does it.",
        *[f"Then sentence {number}." for number in range(MAX_EVIDENCE)],
        "  and 2 more; the file has them all",
    ] == list(describe_breach(breaches))


def test_a_nameless_block_is_explained():
    """Lockstep calls a block nameless that plays no part on the other side, and the row says so."""
    evidence = f"requests.a.block_ids: the spec has [], the engine has ['{NAMELESS}']"
    *_, last = describe_breach([Breach("same_as_spec", "As the spec.", (evidence,), "lockstep")])
    assert "  A nameless block is one that has no counterpart on the other side." == last


def test_a_traceback_is_told_in_full():
    """What an engine raised stands below its evidence, line by line."""
    breach = Breach("engine_raises", "No call raises.", ("it did",), "engine", "one\n  two\n")
    lines = list(describe_breach([breach]))
    assert ["one", "two"] == [line.strip() for line in lines[-2:]]


def test_any_step_has_a_row():
    """Documents without answers, as a damaged engine leaves them, are shown as well."""
    steps = [StepDocument(action=Schedule()), StepDocument(action=UpdateFromOutput({}))]
    assert 2 == len(list(table_of(steps, 3)))


def test_a_load_is_told_where_it_begins_and_where_it_ends():
    """A step that computes nothing may begin a load, whose end is a row of its own."""
    new = attrs.evolve(B, prompt_token_ids=(0,) * 4, num_remote_tokens=4)
    actions = [AddRequest(new), Schedule(), UpdateFromOutput({}), KVReceived("b", 2), Schedule()]
    _, *rows = lines_of(actions, load_settings()["remote-kv-pauses"])
    assert [
        "engine step: b loads 4 tokens",
        "finish_recving(request_id=b, num_valid_tokens=2)",
        "schedule: b 2 tokens",
    ] == [row[1] for row in rows[1:]]
