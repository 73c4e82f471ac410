"""What the requests of a step share beside blocks."""

from __future__ import annotations

from typing import Any

import pytest

from impl.slots import Slots
from spec.interface import SchedulerConfig
from tests.impl.support import build


def make_slots(**limits: Any) -> Slots:
    """Slots of a step; a prompt of more than 3 tokens is long."""
    return Slots(
        SchedulerConfig(
            max_num_batched_tokens=16,
            max_num_seqs=4,
            max_model_len=32,
            block_size=4,
            num_blocks=16,
            long_prefill_token_threshold=3,
            **limits,
        )
    )


def test_without_limits_nothing_is_refused() -> None:
    """A limit of 0 is none, whoever runs."""
    slots = make_slots()
    for name in "ABC":
        slots.take(build(name, (0,) * 5, lora_id=1), is_scheduled=True)
    long = build("D", (0,) * 5, lora_id=2)
    assert (False, True, True) == (
        slots.is_limited,
        slots.has_slot(long),
        slots.may_be_partial(long, 1),
    )


@pytest.mark.parametrize(
    ("is_scheduled", "idle_count", "lora_id", "expected"),
    [
        (True, True, 0, True),
        (True, True, 1, True),
        (True, True, 2, False),
        (False, True, 2, False),
        (False, False, 2, True),
    ],
)
def test_an_adapter_takes_one_slot(
    *, is_scheduled: bool, idle_count: bool, lora_id: int, expected: bool
) -> None:
    """Another one finds no slot, unless the first one rests in a step where only its own count."""
    slots = make_slots(max_loras=1, idle_loras_count=idle_count)
    slots.take(build("A", lora_id=1), is_scheduled=is_scheduled)
    assert expected == slots.has_slot(build("B", lora_id=lora_id))


@pytest.mark.parametrize(("num_computed_tokens", "expected"), [(4, False), (5, True)])
def test_a_long_prompt_takes_a_slot_until_it_is_computed(
    num_computed_tokens: int, expected: bool
) -> None:
    """While a long prompt is computed in part, another long one waits, and a short one does not."""
    slots = make_slots(max_long_partial_prefills=1)
    running = build("A", (0,) * 5)
    running.num_computed_tokens = num_computed_tokens
    slots.take(running, is_scheduled=True)
    assert expected == slots.has_slot(build("B", (0,) * 4))
    assert slots.has_slot(build("C", (0,) * 3))


@pytest.mark.parametrize(("num_tokens", "expected"), [(1, False), (2, False), (3, True)])
def test_a_prompt_in_part_leaves_room_for_whole_ones(num_tokens: int, expected: bool) -> None:
    """Beside one prompt in part, another is admitted only if all of it is computed at once."""
    slots = make_slots(max_num_partial_prefills=1)
    slots.take(build("A"), is_scheduled=True)
    assert expected == slots.may_be_partial(build("B"), num_tokens)
