from __future__ import annotations

import functools
import json

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers.configs import load_settings
from checkers.counterexample import (
    CONVERTER,
    Counterexample,
    dumps,
    make_counterexample,
    read,
    rerun,
    write,
)
from checkers.engines import load_engine
from checkers.errors import HarnessError
from checkers.explore import Budget, Explorer
from checkers.run import Breach
from checkers.search import make_rules
from checkers.trial import Trial, run_trial
from tests.checkers.planted import (
    TINY,
    HangsInSchedule,
    LosesABlock,
    RaisesInSchedule,
    RaisesWhenBuilt,
    attempt,
    engine_of,
    walked,
)

SPEC = load_engine("spec")


def written_down(trial, engine, setting):
    """A run as a counterexample."""
    return make_counterexample(
        make_rules(engine, setting),
        engine,
        trial,
        setting=setting.name,
        dialect=setting.dialect,
        found_by="test",
    )


@functools.cache
def found_in(name):
    """The counterexample that an exploration finds in a setting."""
    setting = load_settings()[name]
    actions = Explorer(setting).run(Budget()).actions
    return written_down(run_trial(make_rules(SPEC, setting), SPEC, actions), SPEC, setting)


def failing(make, seed=1):
    """The counterexample that a random walk finds in an engine."""
    return written_down(attempt(make, walked(TINY, seed)), engine_of(make), TINY)


# ---- there and back ------------------------------------------------------------------------------


BREACHES = st.builds(
    Breach,
    st.text(),
    st.text(),
    st.lists(st.text(), max_size=2).map(tuple),
    st.sampled_from(["invariant", "lockstep", "engine", "recording"]),
    st.text(),
)


@settings(max_examples=25)
@given(
    st.sampled_from(
        [
            *["tiny", "stops", "async-prefix", "deep-async-priority-prefix", "deep-prefix"],
            *["pauses", "refusals", "grammars", "loras", "resets"],
        ]
    ),
    st.integers(0, 999),
    st.lists(BREACHES, min_size=1, max_size=2).map(tuple),
)
def test_a_file_is_the_counterexample(tmp_path_factory, name, seed, breaches):
    """What is written and read again is the same, for any run, and so are its bytes."""
    setting = load_settings()[name]
    trial = run_trial(make_rules(SPEC, setting), SPEC, walked(setting, seed, length=25))
    found = attrs.evolve(written_down(trial, SPEC, setting), breaches=breaches)
    path = tmp_path_factory.mktemp("out") / "found.json"
    path.write_text(dumps(found))
    assert found == read(path)
    assert [b.detail for b in breaches] == [b.detail for b in read(path).breaches]
    assert path.read_bytes() == dumps(read(path)).encode()


def test_a_file_is_named_after_its_content(tmp_path):
    """The same counterexample has the same file, another one another file."""
    found = found_in("thrash")
    path = write(found, tmp_path / "new" / "folder")
    assert path == write(found, tmp_path / "new" / "folder")
    assert path != write(attrs.evolve(found, seed=1), tmp_path / "new" / "folder")
    assert path.name.startswith("prompts_are_not_preempted-")


def test_a_file_has_a_step_a_line():
    """A person can read a file, and a diff of two shows which steps differ."""
    lines = dumps(found_in("thrash")).splitlines()
    assert 5 == sum(line.startswith('  {"action":{') for line in lines)


@pytest.mark.parametrize("name", ["thrash", "publish-at-grant"])
def test_the_findings_happen_again_byte_for_byte(name):
    """Running a file of the specification again makes the same file."""
    found = found_in(name)
    _, again = rerun(found, SPEC)
    assert dumps(found) == dumps(again)


@pytest.mark.parametrize("make", [LosesABlock, RaisesInSchedule, RaisesWhenBuilt])
def test_a_failing_engine_fails_again_byte_for_byte(make):
    """Running a file of an engine again makes the same file, traceback included."""
    found = failing(make)
    _, again = rerun(found, engine_of(make))
    assert dumps(found) == dumps(again)


def test_where_an_engine_hangs_is_chance():
    """Running the file of a hang again is the same finding, but for the place in the engine."""
    engine = engine_of(HangsInSchedule, time_limit_s=0.2)
    rules = make_rules(engine, TINY)
    found = written_down(run_trial(rules, engine, walked(TINY, 1)), engine, TINY)
    _, again = rerun(found, engine)
    assert found == again


def test_another_engine_may_hold():
    """On an engine without the fault the run goes through, to its end."""
    found = failing(LosesABlock)
    trial, again = rerun(found, load_engine("fast"))
    assert (None, []) == (again, trial.breaches)
    assert [step.action for step in found.steps] == trial.actions


# ---- damage --------------------------------------------------------------------------------------


def message_of(path):
    """The sentence that a file is refused with."""
    with pytest.raises(HarnessError) as refused:
        read(path)
    return str(refused.value)


def message_of_text(tmp_path, text):
    """The sentence that a text is refused with, without its place."""
    path = tmp_path / "found.json"
    path.write_text(text)
    message = message_of(path)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def changed(*path, **fields):
    """The text of a counterexample with other fields somewhere; None leaves a field out."""
    document = json.loads(dumps(found_in("thrash")))
    place = functools.reduce(lambda part, key: part[key], path, document)
    for name, value in fields.items():
        if value is None:
            del place[name]
        else:
            place[name] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " is not JSON (Expecting value: line 1 column 1 (char 0)); was it cut off?"),
        (dumps(found_in("thrash"))[:-900], " is not JSON ("),
        ("[" * 100_000, " is not JSON (maximum recursion depth"),
        ("9" * 10_000, " is not JSON (Exceeds the limit"),
        ("[]", " has schema None, this version reads 'schedcheck.counterexample/1'; write it"),
        ("{}", " has schema None, this version"),
        (
            changed(schema="schedcheck.counterexample/2"),
            " has schema 'schedcheck.counterexample/2'",
        ),
        (changed(schema=["schedcheck.counterexample/1"]), " has schema ['schedcheck."),
        (changed(seed="0"), ": seed: '0' is not a whole number; give one"),
        (changed(seed=True), ": seed: True is not a whole number; give one"),
        (changed(seed=1.0), ": seed: 1.0 is not a whole number; give one"),
        (changed(is_shortest=1), ": is_shortest: 1 is neither true nor false; say one of them"),
        (changed(engine=None), ": engine: this field is missing; give it a value"),
        (changed(extra=1), ": extra is unknown; known are schema, schedcheck_version, setting"),
        (changed(steps={}), ": steps: {} is not a list; give one"),
        (changed(steps=[3]), ": steps[0]: 3 is not an object with fields; give one"),
        (changed(steps="r0"), ": steps: 'r0' is not a list; give one"),
        (changed(claims=["comfort"]), ": claims ['comfort'] are unknown; known are prompts_are"),
        (changed(breaches=[]), ": breaches is empty, so nothing is left to show; name a breach"),
        (changed(steps=[]), ": steps is empty, so nothing breaks a rule; restore the file"),
        (changed("breaches", 0, kind="x"), ": breaches[0].kind: 'x' is unknown; choose invariant"),
        (changed("config", num_blocks=0), ": config: num_blocks=0 is below 1; the pool is empty"),
        (changed("config", block_size="2"), ": config.block_size: '2' is not a whole number"),
        (changed("config", policy="lifo"), ": config.policy: 'lifo' is unknown; choose fcfs or"),
        (changed("config", num_gpus=1), ": config: num_gpus is unknown; known are max_num_batch"),
        (changed("config", max_model_len=2), ": a shape has 3 prompt tokens, max_model_len=2"),
        (changed(max_in_flight=0), ": steps[2]: schedule cannot happen there; restore the file"),
        (changed("steps", 0, action={}), ": steps[0].action: {} is no action; its name must be"),
        (changed("steps", 0, action=[]), ": steps[0].action: [] is no action; its name must be"),
        (
            changed("steps", 2, action={"name": "schedule", "now": 1}),
            ": steps[2].action: now is unknown; known are ",
        ),
        (
            changed("steps", 0, "action", "request", prompt_token_ids=[]),
            ": a shape has an empty prompt; give it at least one token",
        ),
        (
            changed("steps", 0, "action", "request", arrival_time="0"),
            ": steps[0].action.request.arrival_time: '0' is not a number; give one",
        ),
        (
            changed("steps", 1, "action", "request", request_id="r0"),
            ": steps[1]: add_request cannot happen there; restore the file",
        ),
        (
            changed("steps", 3, "action", sampled_token_ids={"r9": [0]}),
            ": steps[3]: update_from_output cannot happen there; restore the file",
        ),
        (
            changed("steps", 3, action={"name": "schedule"}),
            ": steps[3]: schedule cannot happen there; restore the file",
        ),
        (
            changed("steps", 0, action={"name": "finish_requests", "request_ids": ["r0"]}),
            ": steps[0]: finish_requests cannot happen there; restore the file",
        ),
        (
            changed(
                "steps",
                0,
                action={"name": "finish_requests", "request_ids": ["r0"], "status": "RUNNING"},
            ),
            ": steps[0].action.status: 'RUNNING' ends no request; choose one of FINISHED_STOPPED",
        ),
        (
            changed("steps", 2, output=None),
            ": steps[2]: an answer is missing, which only the last step may lack; restore the file",
        ),
        (
            changed("steps", 0, observation=None),
            ": steps[0]: an answer is missing, which only the last step may lack; restore the file",
        ),
        (
            changed("steps", 0, "observation", running="r0"),
            ": steps[0].observation.running: 'r0' is not a list; give one",
        ),
        (
            changed("steps", 0, "observation", ref_cnt={"one": 1}),
            ": steps[0].observation.ref_cnt: key 'one' is not a whole number; give one",
        ),
        (
            changed("steps", 0, "observation", ref_cnt={"01": 1}),
            ": steps[0].observation.ref_cnt: key '01' is not a whole number; give one",
        ),
        (
            changed("steps", 0, "observation", block_contents={"1": [None]}),
            ": steps[0].observation.block_contents[1]: ",
        ),
    ],
)
def test_damage_is_one_sentence(tmp_path, text, message):
    """Whatever is wrong with a file, one sentence names the place, the value and the way out."""
    assert message_of_text(tmp_path, text).startswith(message)


def test_what_is_no_file_is_one_sentence(tmp_path):
    """A path that leads to no file of ours is refused in one sentence."""
    missing, binary = tmp_path / "missing.json", tmp_path / "binary.json"
    binary.write_bytes(bytes(range(256)))
    assert f"{missing} does not exist; name a counterexample file" == message_of(missing)
    cannot = f"{tmp_path} cannot be read: Is a directory; name a counterexample file"
    assert cannot == message_of(tmp_path)
    below = binary / "x.json"
    cannot = f"{below} cannot be read: Not a directory; name a counterexample file"
    assert cannot == message_of(below)
    assert message_of(binary).startswith(f"{binary} is not JSON ('utf-8' codec can't decode")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    """A file in the place of the folder is refused in one sentence."""
    (tmp_path / "file").touch()
    with pytest.raises(HarnessError, match="cannot be written: Not a directory; choose another"):
        write(found_in("thrash"), tmp_path / "file" / "folder")


PATCHES = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=3)
PATCHES |= st.lists(PATCHES, max_size=2) | st.dictionaries(st.text(max_size=2), PATCHES, max_size=2)


@st.composite
def damaged(draw):
    """A document with one value replaced, or left out, in any place."""
    document = json.loads(dumps(found_in(draw(st.sampled_from(["thrash", "publish-at-grant"])))))
    place = document
    for _ in range(draw(st.integers(0, 8))):
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        inner = [key for key in keys if isinstance(place[key], dict | list) and place[key]]
        if not inner:
            break
        place = place[draw(st.sampled_from(inner))]
    key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    if draw(st.booleans()):
        del place[key]
    else:
        place[key] = draw(PATCHES)
    return document


@settings(max_examples=150)
@given(damaged())
def test_damage_anywhere_is_refused_or_harmless(tmp_path_factory, document):
    """A damaged file is refused with a sentence, or it is a file like any other."""
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_text(json.dumps(document))
    try:
        found = read(path)
    except HarnessError as refused:
        assert str(refused).startswith(str(path))  # noqa: PT017
        return
    assert found == CONVERTER.structure(json.loads(dumps(found)), Counterexample)
    trial, _ = rerun(found, SPEC)
    assert isinstance(trial, Trial)
