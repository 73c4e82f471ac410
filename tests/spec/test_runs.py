"""Claims about whole runs, and that the random walks of these tests come to the point."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from attrs import evolve
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from spec.block_pool import CountedBlockPool
from spec.interface import SchedulerConfig, SchedulerOutput
from spec.model import Model
from spec.request import Request
from spec.scheduler import ReferenceScheduler
from spec.transition import Outcome
from tests.spec.support import (
    SHAPES,
    Driver,
    choices,
    configs,
    make_config,
    make_driver_for_walks,
    make_environment,
    make_request,
    walk,
    without_loads,
)


@given(configs(), choices)
def test_decisions_need_no_identities(config: SchedulerConfig, walk_choices: list[int]) -> None:
    """Without a prefix cache, a scheduler on the counted pool schedules the very same tokens.

    Without loads, too, since those are of blocks that have names.
    """
    config = evolve(without_loads(config), enable_prefix_caching=False)
    schedulers = [
        ReferenceScheduler(config),
        ReferenceScheduler(config, CountedBlockPool(config.num_blocks)),
    ]
    models = [Model(make_environment(config), scheduler) for scheduler in schedulers]
    for outcomes in zip(*[walk(model, walk_choices) for model in models], strict=True):
        seen = [
            (
                outcome.output and list(outcome.output.num_scheduled_tokens.items()),
                outcome.output and outcome.output.preempted_req_ids,
                outcome.results,
                scheduler.block_pool.num_free_blocks,
            )
            for outcome, scheduler in zip(outcomes, schedulers, strict=True)
        ]
        assert seen[0] == seen[1]


@given(configs(), choices)
def test_reserve_aware_gate_ends_the_fight_of_prompts(
    config: SchedulerConfig, walk_choices: list[int]
) -> None:
    """Under the reserve-aware gate prompts alone never preempt: not with one output token each."""
    config = evolve(
        config,
        scheduler_reserve_full_isl=True,
        reserve_admitted_prefills=True,
        # A surplus step would compute an output token.
        stop_at_max_tokens_in_flight=True,
    )
    model = Model(
        make_environment(config, shapes=tuple(evolve(shape, max_tokens=1) for shape in SHAPES)),
        ReferenceScheduler(config),
    )
    for outcome in walk(model, walk_choices):
        assert outcome.output is None or [] == outcome.output.preempted_req_ids


def test_reserve_aware_gate_does_not_reserve_outputs() -> None:
    """The gate reserves for known tokens only: outputs may eat what a prompt was promised."""
    config = make_config(
        block_size=1,
        num_blocks=8,
        long_prefill_token_threshold=1,
        reserve_admitted_prefills=True,
    )
    driver = Driver(config, make_request("A", 1, max_tokens=5))
    driver.step()
    driver.add(make_request("B", 4))
    for _ in range(3):
        assert {"A": 1, "B": 1} == driver.step().num_scheduled_tokens
    # A's fifth token takes the block that B's fourth prompt token needs.
    output = driver.step()
    assert ({"A": 1}, ["B"]) == (output.num_scheduled_tokens, output.preempted_req_ids)


@pytest.mark.parametrize(("reserves", "preempted"), [(True, []), (False, ["B"])])
def test_reserve_aware_gate_reserves_what_is_written_ahead(
    reserves: bool, preempted: list[str]
) -> None:
    """Each chunk of a prompt is written ahead of, also the last; the release sets no block aside.

    Two prompts of 4 tokens, a token a step, fill 8 blocks; the slots ahead of each want 4 more.
    """
    config = make_config(
        block_size=1,
        num_blocks=8,
        max_model_len=8,
        long_prefill_token_threshold=1,
        num_speculative_tokens=2,
        num_lookahead_tokens=2,
        reserve_admitted_prefills=reserves,
    )
    driver = Driver(config, make_request("A", 4, max_tokens=1), make_request("B", 4, max_tokens=1))
    seen = [name for _ in range(4) for name in driver.step().preempted_req_ids]
    assert preempted == seen


@given(configs(), choices)
def test_every_run_can_end(config: SchedulerConfig, walk_choices: list[int]) -> None:
    """Wherever a run stands, steps alone finish all requests, if the pool holds any one.

    Steps, and the ends of loads.
    """
    config = evolve(config, num_blocks=max(config.num_blocks, config.max_model_len))
    driver = make_driver_for_walks(config)
    for _ in walk(driver, walk_choices):
        pass
    for _ in range(200):
        while driver.in_flight:
            driver.update()
        if not driver.live:
            return
        while loads := driver.transfers():
            driver.do(loads[-1])
        driver.schedule()
    assert {} == driver.live


# ---- the walks reach what they are meant to reach ------------------------------------------------


class Watched(ReferenceScheduler):
    """A scheduler that remembers whether the last step took back what it had scheduled."""

    has_taken_back = False

    def schedule(self) -> SchedulerOutput:
        """Schedules a step."""
        self.has_taken_back = False
        return super().schedule()

    def _take_back(self, victim: Request) -> None:
        self.has_taken_back |= victim.request_id in self.output.num_scheduled_tokens
        super()._take_back(victim)


Witness = Callable[[Driver, set[str], Outcome], bool]
"""Judges an action: the driver after it, who ran before it, and what the engine answered."""


def _takes_a_victim_back(driver: Driver, ran: set[str], outcome: Outcome) -> bool:
    return cast(Watched, driver.scheduler).has_taken_back


def _preempts_several(driver: Driver, ran: set[str], outcome: Outcome) -> bool:
    return outcome.output is not None and len(outcome.output.preempted_req_ids) > 1


def _preempts_all(driver: Driver, ran: set[str], outcome: Outcome) -> bool:
    return outcome.output is not None and ran == set(outcome.output.preempted_req_ids) != set()


def _resumes(driver: Driver, ran: set[str], outcome: Outcome) -> bool:
    return outcome.output is not None and any(
        cached.resumed for cached in outcome.output.scheduled_cached_reqs.values()
    )


def _resumes_on_a_hit(driver: Driver, ran: set[str], outcome: Outcome) -> bool:
    return outcome.output is not None and any(
        cached.resumed and cached.num_computed_tokens > 0
        for cached in outcome.output.scheduled_cached_reqs.values()
    )


def _shares_a_block(driver: Driver, ran: set[str], outcome: Outcome) -> bool:
    return max(driver.scheduler.observe().ref_cnt.values(), default=0) > 1


def _delivers_stale_output(driver: Driver, ran: set[str], outcome: Outcome) -> bool:
    return outcome.returned is not None and any(
        output.request_id in outcome.returned.voided
        for outputs in (outcome.results or {}).values()
        for output in outputs
    )


def _stale_output_ends_a_request(driver: Driver, ran: set[str], outcome: Outcome) -> bool:
    return outcome.returned is not None and any(
        output.request_id in outcome.returned.voided and output.finish_reason is not None
        for outputs in (outcome.results or {}).values()
        for output in outputs
    )


@pytest.mark.parametrize(
    "witness",
    [
        _takes_a_victim_back,
        _preempts_several,
        _preempts_all,
        _resumes,
        _resumes_on_a_hit,
        _shares_a_block,
        _delivers_stale_output,
        _stale_output_ends_a_request,
    ],
)
def test_walks_reach(witness: Witness) -> None:
    """A property that holds for all walks says little if no walk comes to the point: they do."""

    def reaches(run: tuple[SchedulerConfig, list[int]]) -> bool:
        config, walk_choices = run
        driver = make_driver_for_walks(config, make_scheduler=Watched)
        ran = set(driver.running)
        for outcome in walk(driver, walk_choices):
            if witness(driver, ran, outcome):
                return True
            ran = set(driver.running)
        return False

    find(
        st.tuples(configs(), choices),
        reaches,
        settings=settings(max_examples=2000, phases=[Phase.generate]),
    )


def test_every_fact_has_a_test() -> None:
    """Each of the 30 facts is named by the docstring of a test that checks it."""
    docstrings = [
        ast.get_docstring(node) or ""
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    named = {
        int(number)
        for docstring in docstrings
        if docstring.startswith("Fact")
        for number in docstring.split(":")[0].replace("Facts", "").replace("Fact", "").split("and")
    }
    assert set(range(1, 31)) == named
