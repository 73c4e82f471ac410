"""Settings drawn at random: always the same ones, all features in them, and nothing wrong there."""

from __future__ import annotations

import itertools
from random import Random

import attrs
import pytest

from checkers.configs import Setting
from checkers.counterexample import rerun
from checkers.engines import load_engine
from checkers.errors import HarnessError
from checkers.mixed import EOS, STOP, Mix, draw_config, draw_setting, find_setting, is_mixed
from checkers.search import Plan, search
from spec.dialects import DIALECTS
from spec.interface import SchedulerConfig
from tests.checkers.planted import TakesTheInputBudget, engine_of

NUM_DRAWN = 1500
FEATURES = {
    "priorities": lambda s: s.scheduler.policy == "priority",
    "prefix cache": lambda s: s.scheduler.enable_prefix_caching,
    "three steps in flight": lambda s: s.environment.max_in_flight > 2,
    "drafts": lambda s: s.scheduler.num_speculative_tokens > 0,
    "draft slots": lambda s: s.scheduler.num_draft_slots > 0,
    "lookahead": lambda s: s.scheduler.num_lookahead_tokens > 0,
    "two budgets": lambda s: (
        s.scheduler.max_num_scheduled_tokens
        < s.scheduler.max_num_batched_tokens - s.scheduler.num_draft_slots
    ),
    "threshold": lambda s: s.scheduler.long_prefill_token_threshold > 0,
    "whole prompts": lambda s: not s.scheduler.enable_chunked_prefill,
    "reserve": lambda s: s.scheduler.reserve_admitted_prefills,
    "watermark": lambda s: s.scheduler.num_watermark_blocks > 0,
    "partial prefills": lambda s: s.scheduler.max_num_partial_prefills > 0,
    "refusals": lambda s: s.scheduler.reject_too_large,
    "adapters": lambda s: s.scheduler.max_loras > 0 and has(s, "lora_id"),
    "loads": lambda s: has(s, "num_remote_tokens"),
    "kept blocks": lambda s: s.scheduler.defer_block_free,
    "grammars": lambda s: has(s, "structured_output"),
    "sessions": lambda s: has(s, "resumable"),
    "stops": lambda s: has(s, "stop_token_ids"),
    "repetitions": lambda s: has(s, "repetition_detection"),
    "salts": lambda s: has(s, "cache_salt"),
    "pauses": lambda s: s.environment.with_pauses,
    "resets": lambda s: s.environment.with_resets,
    "aborts": lambda s: s.environment.with_aborts,
}


def has(setting: Setting, name: str) -> bool:
    """Whether a request of the menu uses a feature."""
    return any(getattr(shape, name) for shape in setting.environment.shapes)


@pytest.fixture(scope="module")
def drawn() -> list[Setting]:
    """The first settings of seed 0."""
    return [draw_setting(0, number) for number in range(NUM_DRAWN)]


def test_a_name_draws_the_same_setting_at_any_time(drawn):
    """A report names a setting, and whoever reads it can have it again."""
    assert drawn[7] == draw_setting(0, 7) == find_setting("mixed-0-7")
    assert is_mixed(drawn[7])
    assert not is_mixed(find_setting("tiny"))
    assert draw_setting(1, 7) != drawn[7]


@pytest.mark.parametrize("name", ["mixed-", "mixed-1", "mixed-1-x", "mixed--1-1"])
def test_no_other_name_is_one(name):
    """What is nearly such a name is unknown, as any other."""
    with pytest.raises(HarnessError, match="is unknown"):
        find_setting(name)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(FEATURES, 2)))
def test_every_feature_meets_every_other(drawn, one, other):
    """That is what they are for."""
    assert any(FEATURES[one](setting) and FEATURES[other](setting) for setting in drawn)


def test_every_choice_of_a_dialect_is_drawn_but_no_fault(drawn):
    """Each field of a configuration has another value than usual somewhere; faults never."""
    usual = {
        field.name: field.default
        for field in attrs.fields(SchedulerConfig)
        if field.default is not attrs.NOTHING and not isinstance(field.default, attrs.Factory)
    }
    changed = {
        name
        for setting in drawn
        for name, value in usual.items()
        if getattr(setting.scheduler, name) != value
    }
    assert changed == usual.keys() - DIALECTS["vllm-0.33.0-as-released"].keys()


def test_some_settings_are_about_little():
    """What a setting is about is on, and no other feature: what is rare shows there."""
    about = Mix(Random(0), frozenset(("loads", "reserve")))
    config = draw_config(about, async_scheduling=True, wait_for_stale_output=True)
    assert (True, True) == (config.load_kv_async, config.reserve_admitted_prefills)
    assert (0, 0, 0, False) == (
        config.max_loras,
        config.num_speculative_tokens,
        config.num_watermark_blocks,
        config.reject_too_large,
    )


def test_drafts_may_end_a_request(drawn):
    """Among drafts are tokens that stop a request, which then ends amid what was accepted."""
    assert any({EOS, STOP} & {*setting.environment.draft_token_ids} for setting in drawn)


def test_a_field_may_be_fixed():
    """What is given is not drawn."""
    fixed = {"block_size": 2, "num_blocks": 5, "policy": "priority", "max_model_len": 8}
    config = draw_config(Mix(Random(0)), **fixed)
    assert fixed == {name: getattr(config, name) for name in fixed}


def test_our_engine_does_as_the_specification_in_them():
    """Walks through some of them, in lockstep, differ nowhere and break nothing."""
    found = search(load_engine("fast"), [], Plan(num_walks=6, num_mixed=20, length=80))
    assert (120, 120, "holds") == (found.num_walks, found.num_mixed, found.verdict)


def test_the_specification_breaks_no_rule_in_them():
    """All walks of the specification are held against the invariants."""
    found = search(load_engine("spec"), [], Plan(num_walks=2, num_mixed=20, length=80))
    assert (40, "holds") == (found.num_judged_walks, found.verdict)


TOO_MUCH = ("max_loras", "num_watermark_blocks", "long_prefill_token_threshold", "load_kv_async")


def test_what_no_named_setting_shows_is_found():
    """An engine that takes one budget for the other breaks a rule where the two differ.

    What else was drawn is left out of the counterexample, as far as it fails without.
    """
    engine = engine_of(TakesTheInputBudget)
    named = [find_setting(name) for name in ("plain", "async")]
    assert "holds" == search(engine, named, Plan(num_walks=2)).verdict
    found = search(engine, named, Plan(num_walks=2, num_mixed=40)).counterexample
    assert found is not None
    assert "token_budget_is_kept" == found.breach.name
    name, _, what = found.setting.partition(", ")
    drawn = find_setting(name).scheduler
    kept = {"max_num_batched_tokens", "max_num_scheduled_tokens"}
    assert ("simplified", {name: getattr(drawn, name) for name in kept}) == (
        what,
        {name: getattr(found.config, name) for name in kept},
    )
    assert [] == [name for name in TOO_MUCH if getattr(found.config, name)]
    assert found == rerun(found, engine)[1]
