from __future__ import annotations

import json

import attrs
import pytest

from checkers.configs import (
    USES,
    change_setting,
    load_setting,
    load_settings,
    make_scheduler_config,
    read_setting,
)
from checkers.errors import HarnessError
from spec.dialects import DIALECTS
from spec.interface import ConfigError, SchedulerConfig
from spec.registry import WITNESSES

TINY = load_settings()["tiny"]
# "lead" is no command: `verify` leads an engine through the states of such a setting.

TEXT = """
about = "A file of a user."
[scheduler]
max_num_batched_tokens = 3
max_num_seqs = 2
max_model_len = 8
block_size = 2
num_blocks = 3
[environment]
max_live_requests = 2
shapes = [{ prompt = 1, max_tokens = 3 }, { prompt = [0, 0, 0], max_tokens = 3 }]
"""


# ---- files ---------------------------------------------------------------------------------------


def test_the_named_settings_make_sense():
    """Each named setting says what it exercises, and is used by commands that exist."""
    for name, setting in load_settings().items():
        assert name == setting.name
        assert setting.about.endswith(".")
        assert set(setting.used_by) <= set(USES)
        assert set(setting.witnesses) <= set(WITNESSES)


def test_what_is_explored_by_default_is_pinned():
    """A setting that is explored without being asked for has its number of states and witnesses."""
    explored = [s for s in load_settings().values() if "explore" in s.used_by]
    assert [] == [s.name for s in explored if s.num_states is None or not s.witnesses]


def test_a_file_says_what_a_named_setting_says(tmp_path):
    """A user's file builds the same setting as the named one, but for what it leaves out."""
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    expected = attrs.evolve(
        TINY, name="mine", about="A file of a user.", num_states=None, used_by=(), witnesses=()
    )
    assert expected == load_setting(str(path))


def test_json_will_do(tmp_path):
    """A setting may be JSON, with the same fields."""
    path = tmp_path / "mine.json"
    scheduler = {
        "max_num_batched_tokens": 3,
        "max_num_seqs": 2,
        "max_model_len": 8,
        "block_size": 2,
        "num_blocks": 3,
    }
    shapes = [{"prompt": 1, "max_tokens": 3}, {"prompt": 3, "max_tokens": 3}]
    environment = {"max_live_requests": 2, "shapes": shapes}
    path.write_text(json.dumps({"scheduler": scheduler, "environment": environment}))
    setting = load_setting(str(path))
    assert (TINY.scheduler, TINY.environment) == (setting.scheduler, setting.environment)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_is_overridden_by_the_setting(dialect):
    """A dialect's choices hold where the setting makes none."""
    fields = {f.name: getattr(TINY.scheduler, f.name) for f in attrs.fields(SchedulerConfig)}
    required = {f.name for f in attrs.fields(SchedulerConfig) if f.default is attrs.NOTHING}
    given = {name: value for name, value in fields.items() if name in required}
    made = make_scheduler_config(dialect, given)
    for name, value in DIALECTS[dialect].items():
        assert value == getattr(made, name)
    one_more = make_scheduler_config(dialect, {**given, "wait_for_stale_output": True})
    assert one_more.wait_for_stale_output


# ---- what makes no sense -------------------------------------------------------------------------


def message_of(path):
    """The sentence that a file is refused with."""
    with pytest.raises(HarnessError) as refused:
        read_setting(path)
    message = str(refused.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


SCHEDULER, ENVIRONMENT = "block_size = 2\n", "max_live_requests = 2\n"
SHAPES = TEXT[TEXT.index("shapes = ") :]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tokens = 3", "tokens = 0", ": max_num_batched_tokens=0 is below 1; a step must be able"),
        ("tokens = 3", "tokens = -1", ": max_num_batched_tokens=-1 is below 1; a step must be"),
        ("block_size = 2", "block_size = 0", ": block_size=0 is below 1; a block holds at least"),
        ("block_size = 2", 'block_size = "3"', ": block_size='3' is not a whole number; give one"),
        (
            "block_size = 2",
            "block_size = true",
            ": block_size=True is not a whole number; give one",
        ),
        ("block_size = 2", "block_size = 1.5", ": block_size=1.5 is not a whole number; give one"),
        ("block_size = 2", "block_size = []", ": block_size=[] is not a whole number; give one"),
        ("num_seqs = 2", "num_seqs = 0", ": max_num_seqs=0 is below 1; one request must be able"),
        ("num_blocks = 3", "num_blocks = 0", ": num_blocks=0 is below 1; the pool is empty; give"),
        ("model_len = 8", "model_len = 1", ": max_model_len=1 is below 2; a prompt token and"),
        (
            SCHEDULER,
            f"{SCHEDULER}long_prefill_token_threshold = -1\n",
            ": long_prefill_token_threshold=-1 is below 0; 0 switches the threshold off",
        ),
        (
            SCHEDULER,
            f"{SCHEDULER}num_watermark_blocks = -1\n",
            ": num_watermark_blocks=-1 is below 0; 0 switches the watermark off",
        ),
        (
            SCHEDULER,
            f"{SCHEDULER}enable_prefix_caching = 1\n",
            ": enable_prefix_caching=1 is neither true nor false; say one of them",
        ),
        (
            SCHEDULER,
            f'{SCHEDULER}policy = "lifo"\n',
            ": policy='lifo' is unknown; choose fcfs or priority",
        ),
        (
            SCHEDULER,
            f"{SCHEDULER}num_gpus = 1\n",
            ": scheduler field 'num_gpus' is unknown; known are async_scheduling, block_size",
        ),
        (SCHEDULER, "", ": scheduler fields block_size are missing; give them values"),
        (
            SCHEDULER,
            f"{SCHEDULER}max_num_scheduled_tokens = 4\n",
            ": max_num_scheduled_tokens=4 is above max_num_batched_tokens=3; lower it, or raise",
        ),
        (
            SCHEDULER,
            f"{SCHEDULER}enable_chunked_prefill = false\n",
            ": max_num_scheduled_tokens=3 is below max_model_len - 1 = 7 while enable_chunked_pre",
        ),
        (
            ENVIRONMENT,
            "max_live_requests = 0\n",
            ": max_live_requests=0 is below 1; somebody",
        ),
        (
            ENVIRONMENT,
            'max_live_requests = "2"\n',
            ": environment.max_live_requests: '2' is not a whole number; give one",
        ),
        (
            ENVIRONMENT,
            "max_live_requests = true\n",
            ": environment.max_live_requests: True is not a whole number; give one",
        ),
        (
            ENVIRONMENT,
            f"{ENVIRONMENT}max_in_flight = 2\n",
            ": max_in_flight=2 needs async_scheduling=True; switch it on, or keep one step in",
        ),
        (
            ENVIRONMENT,
            f"{ENVIRONMENT}sampled_token_ids = []\n",
            ": sampled_token_ids is empty, so no step can return; name at least one token",
        ),
        (
            ENVIRONMENT,
            f'{ENVIRONMENT}sampled_token_ids = "01"\n',
            ": environment.sampled_token_ids: '01' is not a list; give one",
        ),
        (
            ENVIRONMENT,
            f"{ENVIRONMENT}weather = 1\n",
            ": environment: weather is unknown; known are shapes, max_live_requests",
        ),
        (SHAPES, "shapes = []", ": shapes is empty, so nothing ever arrives; name at least one"),
        (SHAPES, "shapes = 3", ": environment.shapes: 3 is not a list; give one"),
        (
            SHAPES,
            "shapes = [3]",
            ": environment.shapes[0]: 3 is not an object with fields; give one",
        ),
        (SHAPES, "", ": environment.shapes: this field is missing; give it a value"),
        (
            "prompt = 1",
            "prompt = 0",
            ": environment.shapes[0].prompt: a prompt of 0 tokens is empty; give it at least one",
        ),
        (
            "prompt = [0, 0, 0]",
            'prompt = ["0"]',
            ": environment.shapes[1].prompt: '0' is not a whole number; give one",
        ),
        ("prompt = 1", "prompt = []", ": a shape has an empty prompt; give it at least one token"),
        (
            "prompt = 1",
            "prompt = 8",
            ": a shape has 8 prompt tokens, max_model_len=8 leaves no room for an output token;",
        ),
        ("3 },", "0 },", ": a shape has max_tokens=0, below 1; raise it"),
        (
            "3 },",
            "3, color = 1 },",
            ": environment.shapes[0]: color is unknown; known are prompt, max_tokens",
        ),
        (
            "about",
            "abuot",
            ": abuot is unknown; did you mean about? known are scheduler, environment, about",
        ),
        ("about = ", "about = 3 #", ": about: 3 is not a text; put it in quotes"),
        (
            "about",
            'dialect = "vllm-9"\nabout',
            ": dialect 'vllm-9' is unknown; choose one of vllm-0.33.0, ",
        ),
        (
            "about",
            'claims = ["comfort"]\nabout',
            ": claims ['comfort'] are unknown; known are prompts_are_not_preempted",
        ),
        ("about", 'claims = "comfort"\nabout', ": claims: 'comfort' is not a list; give one"),
        (
            "about",
            'witnesses = ["comfort"]\nabout',
            ": witness 'comfort' is unknown; known are ",
        ),
        (
            "about",
            'used_by = ["verify", "nope"]\nabout',
            ": used_by 'nope' is unknown; choose of explore, lead, search, machine, verify",
        ),
        ("about", 'num_states = "1"\nabout', ": num_states: '1' is not a whole number; give one"),
        ("[scheduler]", "scheduler = 3\n[other]", ": scheduler: 3 is not an object with fields;"),
        (TEXT, "", ": scheduler: this field is missing; give it a value (and 1 more)"),
        (
            "block_size = 2",
            "block_size =",
            " is not TOML: Invalid value (at line 7, column 13); mend",
        ),
        (TEXT, f"x = {'[' * 10_000}", " is not TOML: maximum recursion depth exceeded; mend it"),
    ],
)
def test_a_file_without_sense_is_one_sentence(tmp_path, old, new, message):
    """Whatever is wrong with a setting, one sentence names the place, the value and the way out."""
    path = tmp_path / "mine.toml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    assert message_of(path).startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mine.json", b"{", " is not JSON: Expecting property name enclosed in double quotes: "),
        ("mine.json", b"[]", ": [] is not an object with fields; give one"),
        ("mine.json", b"null", ": None is not an object with fields; give one"),
        ("mine.json", b"[" * 100_000, " is not JSON: maximum recursion depth exceeded"),
        ("mine.json", bytes(range(256)), " is not JSON: 'utf-8' codec can't decode byte 0x80"),
        ("mine.toml", bytes(range(256)), " is not TOML: 'utf-8' codec can't decode byte 0x80"),
    ],
)
def test_what_is_no_setting_is_one_sentence(tmp_path, name, content, message):
    """A file of another kind is refused in one sentence."""
    path = tmp_path / name
    path.write_bytes(content)
    assert message_of(path).startswith(message)


def test_what_is_no_file_is_one_sentence(tmp_path):
    """A path that leads nowhere, or to a folder, is refused in one sentence."""
    assert " does not exist; name a .toml or .json file" == message_of(tmp_path / "x.toml")
    assert " cannot be read: Is a directory; name a .toml or .json file" == message_of(tmp_path)
    long = tmp_path / f"{'x' * 5000}.toml"
    assert " cannot be read: File name too long; name a .toml or .json file" == message_of(long)


@pytest.mark.parametrize("name", ["", "tinny", "x" * 5000, "/", "mine"])
def test_an_unknown_name_is_one_sentence(name):
    """A name that is no setting and no file is refused, with the names there are."""
    with pytest.raises(
        HarnessError, match=r"is unknown; name one of plain, tiny, .*\.toml or \.js"
    ):
        load_setting(name)


# ---- changes -------------------------------------------------------------------------------------


def test_a_change_takes_its_value():
    """`field=value` changes the scheduler or its environment; bare words are texts."""
    changes = ("num_blocks=5", "policy=priority", "with_aborts=false", "sampled_token_ids=[0, 1]")
    changed = change_setting(TINY, changes, ())
    assert (5, "priority") == (changed.scheduler.num_blocks, changed.scheduler.policy)
    assert (False, (0, 1)) == (
        changed.environment.with_aborts,
        changed.environment.sampled_token_ids,
    )
    back = change_setting(
        changed,
        ("num_blocks=3", 'policy="fcfs"', "with_aborts=true", "sampled_token_ids=[0]"),
        (),
    )
    assert (TINY.scheduler, TINY.environment) == (back.scheduler, back.environment)


def test_a_changed_setting_claims_nothing_of_the_old_one():
    """How many states there are and what must be seen was said of the setting as it was."""
    changed = change_setting(TINY, ("num_blocks=4",), ("prompts_are_not_preempted",))
    assert (None, ()) == (changed.num_states, changed.witnesses)
    assert ("tiny num_blocks=4", ("prompts_are_not_preempted",)) == (changed.name, changed.claims)
    claimed = change_setting(TINY, (), ("prompts_are_not_preempted",))
    assert (124, TINY.witnesses) == (claimed.num_states, claimed.witnesses)
    assert TINY is change_setting(TINY, (), ())


@pytest.mark.parametrize(
    ("changes", "budgets"),
    [
        (("max_num_batched_tokens=5",), (5, 5)),
        (("max_num_batched_tokens=2",), (2, 2)),
        (("max_num_scheduled_tokens=2",), (3, 2)),
        (("max_num_batched_tokens=5", "max_num_scheduled_tokens=4"), (5, 4)),
    ],
)
def test_the_token_budget_follows_the_input_budget(changes, budgets):
    """Whoever changes the one budget means both, unless both are named."""
    scheduler = change_setting(TINY, changes, ()).scheduler
    assert budgets == (scheduler.max_num_batched_tokens, scheduler.max_num_scheduled_tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("num_blocks", "--set 'num_blocks' is not FIELD=VALUE, such as num_blocks=8 or policy=pri"),
        ("num_blocks=", "--set 'num_blocks=' is not FIELD=VALUE, such as num_blocks=8 or policy="),
        ("=", "--set '=' is not FIELD=VALUE"),
        ("num_blocks=1\nx=2", "--set 'num_blocks=1\\nx=2' is not FIELD=VALUE"),
        ("num_gpus=1", "--set num_gpus=1: no such field; known are async_scheduling, block_size"),
        ("shapes=[]", "--set shapes=[]: no such field; known are async_scheduling, block_size"),
        ("num_blocks=0", "tiny with num_blocks=0: num_blocks=0 is below 1; the pool is empty;"),
        ('num_blocks="3"', "tiny with num_blocks=\"3\": num_blocks: '3' is not a whole number; g"),
        ("num_blocks=true", "tiny with num_blocks=true: num_blocks: True is not a whole number;"),
        ("num_blocks=1.5", "tiny with num_blocks=1.5: num_blocks: 1.5 is not a whole number; gi"),
        ("policy=lifo", "tiny with policy=lifo: policy: 'lifo' is unknown; choose fcfs or prior"),
        ("with_aborts=3", "tiny with with_aborts=3: with_aborts: 3 is neither true nor false; "),
        ("max_in_flight=2", "tiny with max_in_flight=2: max_in_flight=2 needs async_scheduling="),
        ("max_in_flight=x", "tiny with max_in_flight=x: max_in_flight: 'x' is not a whole number"),
        ("max_live_requests=0", "tiny with max_live_requests=0: max_live_requests=0 is below 1;"),
        ("max_model_len=3", "tiny with max_model_len=3: a shape has 3 prompt tokens, max_model_"),
        ("sampled_token_ids=3", "tiny with sampled_token_ids=3: sampled_token_ids: 3 is not a "),
        ("sampled_token_ids=[]", "tiny with sampled_token_ids=[]: sampled_token_ids is empty, so"),
        ("draft_token_ids=[0]", "tiny with draft_token_ids=[0]: draft_token_ids=[0] are more than"),
        ("num_draft_slots=1", "tiny with num_draft_slots=1: num_draft_slots=1 needs num_specul"),
    ],
)
def test_a_change_without_sense_is_one_sentence(change, message):
    """A change that cannot be made is refused, with the setting, the change and the way out."""
    with pytest.raises(HarnessError) as refused:
        change_setting(TINY, (change,), ())
    assert str(refused.value).startswith(message)


def test_nobody_is_told_drafts_of_an_async_worker():
    """With async scheduling an environment that hands drafts over is refused."""
    with pytest.raises(HarnessError, match="are told to no scheduler with async_scheduling=True"):
        change_setting(load_settings()["speculative"], ("async_scheduling=true",), ())


def test_an_unknown_claim_is_one_sentence():
    """A claim that does not exist is refused, with those that do."""
    with pytest.raises(HarnessError, match=r"claims \['comfort'\] are unknown; known are prompts"):
        change_setting(TINY, (), ("comfort",))


def test_a_configuration_names_its_dialect():
    """An unknown dialect is refused before anything is built."""
    with pytest.raises(
        ConfigError, match=r"dialect 'vllm-9' is unknown; choose one of vllm-0\.33\.0"
    ):
        make_scheduler_config("vllm-9", {})
