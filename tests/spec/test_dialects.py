"""Every dialect field: what happens with one value, and what with the other.

A test is named after its field; `test_every_dialect_field_has_a_test` sees that none is missing.
"""

from __future__ import annotations

import ast
import inspect
from textwrap import dedent

import attrs
import pytest

from spec.actions import KVReceived, SetPauseState, UpdateFromOutput
from spec.dialects import CHOICES, DIALECTS
from spec.interface import SchedulerConfig
from tests.spec.support import Driver, make_config, make_request

LOW, HIGH = 5, 0
"""Priorities; the smaller number is served first."""


def dialect_fields() -> set[str]:
    """The fields of `SchedulerConfig` whose docstring says that they are a dialect's."""
    (cls,) = ast.parse(dedent(inspect.getsource(SchedulerConfig))).body
    assert isinstance(cls, ast.ClassDef)
    fields = set()
    for line, doc in zip(cls.body, cls.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(doc, ast.Expr):
            assert isinstance(line.target, ast.Name)
            if ast.literal_eval(doc.value).startswith("Dialect"):
                fields.add(line.target.id)
    return fields


def test_every_dialect_field_has_a_test() -> None:
    """A dialect field without a test of its name would be a choice that nobody has seen matter."""
    faults = DIALECTS["vllm-0.33.0-as-released"].keys()
    ours = {"reserve_admitted_prefills", "reject_too_large"}
    assert CHOICES.keys() | faults | ours == dialect_fields()
    assert {f"test_{name}" for name in dialect_fields()} <= set(globals())


@pytest.mark.parametrize("reserve", [False, True])
def test_reserve_admitted_prefills(*, reserve: bool) -> None:
    """The gate reserves none of the free blocks, so two prompts pass it for one's memory.

    One step later the second is preempted in mid-prompt. The reserve-aware gate leaves alone what
    the first still needs, and the second waits.
    """
    config = SchedulerConfig(
        max_num_batched_tokens=18,
        max_num_seqs=4,
        max_model_len=20,
        block_size=16,
        num_blocks=3,
        long_prefill_token_threshold=9,
        reserve_admitted_prefills=reserve,
    )
    driver = Driver(config, make_request("A", 19), make_request("B", 19))
    first, second = driver.step(), driver.step()
    if reserve:
        # Both need two blocks; A holds one and still needs one of the two that are free.
        assert ({"A": 9}, ["B"]) == (first.num_scheduled_tokens, driver.waiting)
        assert ({"A": 9}, []) == (second.num_scheduled_tokens, second.preempted_req_ids)
    else:
        assert {"A": 9, "B": 9} == first.num_scheduled_tokens
        assert ({"A": 9}, ["B"]) == (second.num_scheduled_tokens, second.preempted_req_ids)


@pytest.mark.parametrize("rejects", [False, True])
def test_reject_too_large(*, rejects: bool) -> None:
    """A, who is larger than the pool, waits for ever and B behind it, or it is refused at once."""
    driver = Driver(make_config(num_blocks=2, reject_too_large=rejects))
    driver.add(make_request("A", 9))
    driver.add(make_request("B", 3, max_tokens=2))
    assert ({"B": 3} if rejects else {}) == driver.step().num_scheduled_tokens
    assert ([] if rejects else ["A", "B"]) == driver.waiting


@pytest.mark.parametrize("at_grant", [False, True])
def test_publish_at_grant(*, at_grant: bool) -> None:
    """A chunk that is published and taken back in one step stays findable, though it never ran.

    The victim itself resumes with more computed tokens than any step has computed.
    """
    config = make_config(
        policy="priority",
        enable_prefix_caching=True,
        max_num_batched_tokens=12,
        long_prefill_token_threshold=8,
        num_blocks=8,
        scheduler_reserve_full_isl=False,
        publish_at_grant=at_grant,
    )
    driver = Driver(config, make_request("A", tuple(range(29)), priority=LOW))
    driver.step()
    driver.add(make_request("B", 4, priority=HIGH))
    assert {"A": 8, "B": 4} == driver.step().num_scheduled_tokens
    # 20 tokens of A have run. It is granted 8 more, then B needs a block, and there is none.
    output = driver.step()
    assert ({"B": 1}, ["A"]) == (output.num_scheduled_tokens, output.preempted_req_ids)
    driver.abort("B")
    resumed = driver.schedule().scheduled_cached_reqs["A"]
    assert (24 if at_grant else 20) == resumed.num_computed_tokens


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("is_running", [False, True])
def test_same_step_prefix_hits(*, same_step: bool, is_running: bool) -> None:
    """A request admitted in a step may, or may not, hit what this step computes, in either pass."""
    config = make_config(
        enable_prefix_caching=True, same_step_prefix_hits=same_step, max_num_batched_tokens=8
    )
    prefix = tuple(range(7))
    driver = Driver(config, make_request("A", prefix if not is_running else tuple(range(12))))
    if is_running:
        driver.step()
    driver.add(make_request("B", (*range(12), 99)))
    output = driver.schedule()
    num_before = 8 if is_running else 0
    num_after = 12 if is_running else 4
    assert (num_after if same_step else num_before) == (
        output.scheduled_new_reqs["B"].num_computed_tokens
    )
    # In the next step all of it can be hit.
    driver.abort("B")
    driver.add(make_request("C", (*range(12), 98)))
    assert num_after == driver.schedule().scheduled_new_reqs["C"].num_computed_tokens


@pytest.mark.parametrize(("spares", "expected"), [(True, 16), (False, 3)])
def test_threshold_spares_lone_request(*, spares: bool, expected: int) -> None:
    """Fact 13: from 0.32 on the threshold is lifted when running + waiting <= 1."""
    config = make_config(long_prefill_token_threshold=3, threshold_spares_lone_request=spares)
    driver = Driver(config, make_request("A", 30))
    # The first step admits A, in the second it runs.
    assert {"A": expected} == driver.step().num_scheduled_tokens
    assert {"A": min(expected, 14)} == driver.step().num_scheduled_tokens


@pytest.mark.parametrize(("uncached_first", "queue"), [(True, [3, 4, 2, 1]), (False, [4, 3, 2, 1])])
def test_uncached_blocks_first(*, uncached_first: bool, queue: list[int]) -> None:
    """Fact 20: blocks freed without a hash go to the head (0.16, 0.11: to the tail)."""
    config = make_config(
        enable_prefix_caching=True, num_blocks=4, uncached_blocks_first=uncached_first
    )
    driver = Driver(config, make_request("A", 9))
    driver.step()
    driver.abort("A")
    assert queue == driver.scheduler.observe().free_block_ids


@pytest.mark.parametrize(("goes_on", "expected"), [(True, {"B": 1}), (False, {})])
def test_continue_after_self_preemption(*, goes_on: bool, expected: dict[str, int]) -> None:
    """Fact 4: after a self-preemption priority goes on at the same index (0.16, 0.11: stops)."""
    config = make_config(policy="priority", num_blocks=2, continue_after_self_preemption=goes_on)
    driver = Driver(config, make_request("A", 3, priority=LOW))
    driver.step()
    driver.add(make_request("B", 2, priority=HIGH))
    assert {"A": 1, "B": 2} == driver.step().num_scheduled_tokens
    output = driver.schedule()
    assert (["A"], expected) == (output.preempted_req_ids, output.num_scheduled_tokens)


def test_fcfs_has_nothing_left_after_a_self_preemption() -> None:
    """Fact 4: under FCFS a request that preempts itself was the last, so both dialects agree."""
    for goes_on in (True, False):
        config = make_config(num_blocks=2, continue_after_self_preemption=goes_on)
        driver = Driver(config, make_request("A", 2), make_request("B", 4))
        driver.step()
        output = driver.step()
        assert (["B"], {"A": 1}) == (output.preempted_req_ids, output.num_scheduled_tokens)


@pytest.mark.parametrize(
    ("rule", "is_victim_scheduled", "served"),
    [
        ("always", True, ["B", "C"]),
        ("always", False, ["B", "C"]),
        ("scheduled", True, ["B", "C"]),
        ("scheduled", False, ["B"]),
        ("never", True, ["B"]),
        ("never", False, ["B"]),
    ],
)
def test_cursor_follows_victim(*, rule: str, is_victim_scheduled: bool, served: list[str]) -> None:
    """Fact 2: if the victim stood before the cursor, it moves back by one, scheduled or not.

    In 0.16 it does so only if the victim was scheduled, in 0.11 never; then C is passed over.
    """
    config = make_config(
        policy="priority",
        block_size=2,
        num_blocks=4,
        long_prefill_token_threshold=2,
        max_num_batched_tokens=16,
        threshold_spares_lone_request=False,
        async_scheduling=True,
        scheduler_reserve_full_isl=False,
        cursor_follows_victim=rule,
    )
    # With max_tokens=1 nothing is left to do for A while its token is being sampled.
    max_tokens = 9 if is_victim_scheduled else 1
    driver = Driver(config, make_request("A", 3, max_tokens, priority=LOW))
    driver.schedule()
    driver.add(make_request("B", 6, arrival_time=1.0))
    driver.add(make_request("C", 4, arrival_time=2.0))
    assert {"A": 1, "B": 2, "C": 2} == driver.schedule().num_scheduled_tokens
    output = driver.schedule()
    assert ["A"] == output.preempted_req_ids
    assert served == list(output.num_scheduled_tokens)


def make_driver_with_stale_output(**changes: object) -> Driver:
    """B was preempted while its first token is being sampled; there is room for it again."""
    config = make_config(num_blocks=4, async_scheduling=True, **changes)
    driver = Driver(config, make_request("A", 8), make_request("B", 6))
    driver.schedule()
    assert ["B"] == driver.schedule().preempted_req_ids
    driver.abort("A")
    return driver


@pytest.mark.parametrize(("waits", "expected"), [(True, {}), (False, {"B": 6})])
def test_wait_for_stale_output(*, waits: bool, expected: dict[str, int]) -> None:
    """Fact 11: while stale output is in flight a request is not ready (0.16, 0.11: no gate)."""
    driver = make_driver_with_stale_output(wait_for_stale_output=waits)
    assert expected == driver.schedule().num_scheduled_tokens
    if waits:
        driver.update()
        assert {"B": 7} == driver.schedule().num_scheduled_tokens


@pytest.mark.parametrize("delivers", [True, False])
def test_deliver_stale_output(*, delivers: bool) -> None:
    """Fact 12: tokens of a voided step are delivered; else dropped, and sampled again."""
    driver = make_driver_with_stale_output(deliver_stale_output=delivers)
    results = driver.update(B=7)
    assert delivers == ("B" in results)
    assert ((7,) if delivers else ()) == driver["B"].output_token_ids
    assert {"B": 7 if delivers else 6} == driver.schedule().num_scheduled_tokens


@pytest.mark.parametrize(("counts", "expected"), [(True, {}), (False, {"B": 3})])
def test_idle_loras_count(*, counts: bool, expected: dict[str, int]) -> None:
    """A waits for its last token; its adapter keeps the slot (0.16, 0.11: B's adapter takes it)."""
    driver = Driver(
        make_config(max_loras=1, async_scheduling=True, idle_loras_count=counts),
        make_request("A", 3, max_tokens=1, lora_id=1),
        make_request("B", 3, lora_id=2),
    )
    assert {"A": 3} == driver.schedule().num_scheduled_tokens
    assert expected == driver.schedule().num_scheduled_tokens


@pytest.mark.parametrize(("ahead", "num_blocks"), [(True, 2), (False, 1)])
def test_lookahead_at_admission(*, ahead: bool, num_blocks: int) -> None:
    """Slots to be written ahead come with the admission (0.16, 0.11: with the next step)."""
    config = make_config(
        num_speculative_tokens=1, num_lookahead_tokens=1, lookahead_at_admission=ahead
    )
    driver = Driver(config, make_request("A", 4))
    assert num_blocks == len(driver.schedule().scheduled_new_reqs["A"].block_ids)


@pytest.mark.parametrize(("pads", "expected"), [(True, 3), (False, 1)])
def test_pad_admitted_decodes(*, pads: bool, expected: int) -> None:
    """B has one token, and is admitted with two draft slots beside A (0.16, 0.11: with none)."""
    config = make_config(num_speculative_tokens=2, pad_admitted_decodes=pads)
    driver = Driver(config, make_request("A", 3))
    driver.step()
    driver.add(make_request("B", 1))
    output = driver.schedule()
    assert {"A": 1, "B": expected} == output.num_scheduled_tokens
    assert ({"B": [-1, -1]} if pads else {}) == output.scheduled_spec_decode_tokens


@pytest.mark.parametrize(("publishes", "expected"), [(True, [1]), (False, [])])
def test_publish_verified_drafts(*, publishes: bool, expected: list[int]) -> None:
    """An accepted draft that fills a block is published at once (0.16, 0.11: at the next grant)."""
    config = make_config(
        enable_prefix_caching=True, num_speculative_tokens=1, publish_verified_drafts=publishes
    )
    driver = Driver(config, make_request("A", 2))
    driver.schedule()
    driver.do(UpdateFromOutput({"A": [5]}, {"A": [6]}))
    driver.schedule()
    driver.do(UpdateFromOutput({"A": [6, 7]}))
    assert expected == driver.scheduler.observe().cached_block_ids


@pytest.mark.parametrize("keeps", [True, False])
def test_keep_unscheduled_drafts(*, keeps: bool) -> None:
    """B sits a step out, in which its worker drafts nothing for it; as released, it keeps its -1s.

    A's drafts use up the budget.
    """
    config = make_config(
        async_scheduling=True,
        num_speculative_tokens=2,
        max_num_batched_tokens=5,
        keep_unscheduled_drafts=keeps,
    )
    driver = Driver(config, make_request("A", 2), make_request("B", 2))
    assert {"A": 2, "B": 2} == driver.schedule().num_scheduled_tokens
    driver.do(SetPauseState("paused_all"))
    assert {} == driver.schedule().num_scheduled_tokens
    assert (2 if keeps else 0) == driver["B"].num_draft_tokens


@pytest.mark.parametrize("reserve", [False, True])
def test_reserve_for_lost_loads(*, reserve: bool) -> None:
    """Of 4 blocks A's load takes 2 and fails; as released, the next one must leave 3 more alone."""
    config = make_config(
        load_kv_async=True, block_size=2, num_blocks=4, reserve_for_lost_loads=reserve
    )
    driver = Driver(config, make_request("A", 5, num_remote_tokens=4))
    driver.step()
    driver.do(KVReceived("A", 0))
    assert ([] if reserve else ["A"]) == list(driver.schedule().kv_loads)


@pytest.mark.parametrize(("stops", "num_steps"), [(True, 2), (False, 3)])
def test_stop_at_max_tokens_in_flight(*, stops: bool, num_steps: int) -> None:
    """Fact 6: a request whose last token is being sampled is skipped (0.11: a surplus step)."""
    config = make_config(async_scheduling=True, stop_at_max_tokens_in_flight=stops)
    driver = Driver(config, make_request("A", 4, max_tokens=2))
    steps = [driver.schedule()]
    while driver.live:
        steps.append(driver.schedule())
        driver.update()
    assert num_steps == sum("A" in step.num_scheduled_tokens for step in steps)


@pytest.mark.parametrize(
    ("stop_order", "reason"),
    [("stop_length", "stop"), ("min_stop_length", None), ("length_stop", "length")],
)
def test_stop_order(*, stop_order: str, reason: str | None) -> None:
    """Fact 30: an EOS that is the last token, but below min_tokens, tells the orders apart."""
    driver = Driver(
        make_config(stop_order=stop_order),
        make_request("A", 1, max_tokens=1, min_tokens=2, eos_token_id=7),
    )
    driver.schedule()
    assert reason == driver.update(A=7)["A"].finish_reason


@pytest.mark.parametrize("name", DIALECTS)
def test_dialects_build(name: str) -> None:
    """Every dialect builds, and names only fields that differ from the default."""
    config = make_config(**DIALECTS[name])
    default = make_config()
    assert set(DIALECTS[name]) == {
        field.name
        for field in attrs.fields(SchedulerConfig)
        if getattr(config, field.name) != getattr(default, field.name)
    }


def test_the_default_is_the_corrected_release() -> None:
    """As released, vLLM 0.33.0 differs from the default by its faults."""
    assert {} == DIALECTS["vllm-0.33.0"]
    released = DIALECTS["vllm-0.33.0-as-released"]
    faults = ("publish_at_grant", "keep_unscheduled_drafts", "reserve_for_lost_loads")
    assert dict.fromkeys(faults, True) == released
