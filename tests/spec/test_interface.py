"""The boundary: a configuration that makes no sense is refused in one clear sentence."""

from __future__ import annotations

import math
import pickle
import re
from typing import Any

import attrs
import pytest
from hypothesis import given

from spec.interface import ConfigError, SchedulerConfig, SchedulerOutput
from tests.spec.support import OPTIONS, configs, make_config

SMALLEST = {
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "max_model_len": 2,
    "block_size": 1,
    "num_blocks": 1,
    "max_num_scheduled_tokens": 1,
    "long_prefill_token_threshold": 0,
    "num_watermark_blocks": 0,
    "num_speculative_tokens": 0,
    "num_lookahead_tokens": 0,
    "num_draft_slots": 0,
    "max_num_partial_prefills": 0,
    "max_long_partial_prefills": 0,
    "max_loras": 0,
}
"""The least value of every whole number."""

WHOLE = {"enable_chunked_prefill": False, "max_model_len": 17}
"""Prompts in one piece, as long as the budget allows."""

CHOICES = ("policy", "cursor_follows_victim", "stop_order")

FLAGS = tuple(
    field.name for field in attrs.fields(SchedulerConfig) if isinstance(field.default, bool)
)

WRONG_KINDS: dict[tuple[str, ...], tuple[object, ...]] = {
    tuple(SMALLEST): (1.5, math.nan, "8", None, True, [4]),
    FLAGS: (0, 1, "yes", None),
    CHOICES: ("lifo", "", None, 0, []),
}
"""Values that are no whole number, neither true nor false, or not among the choices."""

SENSELESS: list[tuple[str, object]] = [
    *((name, low) for name, least in SMALLEST.items() for low in (least - 1, -(10**9))),
    *((name, value) for names, values in WRONG_KINDS.items() for name in names for value in values),
]


def test_every_field_is_checked() -> None:
    """No field is without a check, so that a new one cannot be forgotten here."""
    fields = {field.name for field in attrs.fields(SchedulerConfig)}
    assert fields == {*SMALLEST, *FLAGS, *CHOICES}
    assert fields == {*OPTIONS, "max_num_scheduled_tokens"}


@pytest.mark.parametrize(("name", "value"), SENSELESS, ids=str)
def test_senseless_value(name: str, value: object) -> None:
    """A senseless value gives one sentence that names the field, its value and the way out."""
    with pytest.raises(ConfigError) as caught:
        make_config(**{name: value})
    assert_is_clear(str(caught.value), name, value)


def assert_is_clear(message: str, name: str, value: object) -> None:
    """Checks the form `field=value is wrong; way out`, on one line and without a full stop."""
    assert message.startswith(f"{name}={value!r} ")
    assert None is not re.fullmatch(r"[^;\n]+; [^\n]+[^.;\n]", message)


@pytest.mark.parametrize(("name", "least"), SMALLEST.items())
def test_smallest_value(name: str, least: int) -> None:
    """The least value that makes sense is accepted."""
    assert least == getattr(make_config(**{name: least}), name)


@pytest.mark.parametrize(
    ("name", "fields", "way_out"),
    [
        (
            "max_num_scheduled_tokens",
            {"max_num_scheduled_tokens": 17},
            "lower it, or raise the latter",
        ),
        (
            "reserve_admitted_prefills",
            {"reserve_admitted_prefills": True, "scheduler_reserve_full_isl": False},
            "switch both on or both off",
        ),
        (
            "max_long_partial_prefills",
            {"max_long_partial_prefills": 1, "long_prefill_token_threshold": 0},
            "set it, or switch the limit off",
        ),
        (
            "max_num_scheduled_tokens",
            {"enable_chunked_prefill": False, "max_model_len": 18},
            "raise the budget, or switch chunked prefill on",
        ),
        (
            "num_lookahead_tokens",
            {"num_lookahead_tokens": 1},
            "set that above 0, or num_lookahead_tokens to 0",
        ),
        (
            "num_draft_slots",
            {"num_draft_slots": 1},
            "set that above 0, or num_draft_slots to 0",
        ),
        (
            "defer_async_loads",
            {"defer_async_loads": True, "load_kv_async": True},
            "switch them on, or it off",
        ),
        (
            "defer_async_loads",
            {"defer_async_loads": True, "defer_block_free": True},
            "switch them on, or it off",
        ),
        (
            "load_kv_async",
            {"load_kv_async": True, "wait_for_stale_output": False},
            "switch both on, or the former off",
        ),
    ],
)
def test_senseless_combination(name: str, fields: dict[str, Any], way_out: str) -> None:
    """Values that make no sense together give one sentence that names both and the way out."""
    with pytest.raises(ConfigError) as caught:
        make_config(**fields)
    assert_is_clear(str(caught.value), name, fields.get(name, 16))
    assert str(caught.value).endswith(way_out)
    for other, value in fields.items():
        assert re.search(rf"{other}( - 1)? ?=", str(caught.value)), (other, value)


@pytest.mark.parametrize("fields", [{"num_draft_slots": 16}, {"num_draft_slots": 1, **WHOLE}])
def test_draft_slots_leave_room_for_a_request(fields: dict[str, Any]) -> None:
    """A batch that draft slots fill up could never take a request, and that is said."""
    with pytest.raises(ConfigError) as caught:
        make_config(num_speculative_tokens=1, **fields)
    assert_is_clear(str(caught.value), "num_draft_slots", fields["num_draft_slots"])
    assert "max_num_batched_tokens=16, so a request would wait for ever" in str(caught.value)


def test_padding_leaves_room_for_a_request() -> None:
    """An admission that is padded beyond every step would wait for ever, and that is said."""
    with pytest.raises(ConfigError, match="leaves no step of 2 tokens for a padded admission"):
        make_config(num_speculative_tokens=2, max_num_scheduled_tokens=2)


def test_the_combinations_are_sharp() -> None:
    """The last values that fit together are accepted."""
    make_config(num_speculative_tokens=1, num_draft_slots=14)
    make_config(num_speculative_tokens=1, num_draft_slots=15, pad_admitted_decodes=False)
    make_config(num_speculative_tokens=1, num_draft_slots=1, **{**WHOLE, "max_model_len": 16})
    make_config(max_num_scheduled_tokens=16)
    make_config(enable_chunked_prefill=False, max_model_len=17)
    make_config(reserve_admitted_prefills=True)
    make_config(load_kv_async=True, defer_block_free=True, defer_async_loads=True)


def test_token_budget_defaults_to_the_input_budget() -> None:
    """Without speculation the two budgets are one number."""
    assert 5 == make_config(max_num_batched_tokens=5).max_num_scheduled_tokens


def test_proofs_may_switch_the_checks_off() -> None:
    """With validators disabled any value builds a configuration, symbols among them."""
    symbol = object()
    with attrs.validators.disabled():
        assert symbol is make_config(max_num_seqs=symbol, max_num_scheduled_tokens=99).max_num_seqs


def test_config_error_is_a_value_error() -> None:
    """A caller that knows nothing of ours may catch ValueError."""
    assert issubclass(ConfigError, ValueError)


@given(configs())
def test_configs_are_values(config: SchedulerConfig) -> None:
    """A configuration is hashable, compares by value, and cannot be changed."""
    copy = pickle.loads(pickle.dumps(config))
    assert (config, hash(config)) == (copy, hash(copy))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.num_blocks = 1  # type: ignore[misc]


def test_total_num_scheduled_tokens() -> None:
    """A step's total is the sum over its requests."""
    assert 0 == SchedulerOutput().total_num_scheduled_tokens
    assert 7 == SchedulerOutput({"A": 3, "B": 4}).total_num_scheduled_tokens
