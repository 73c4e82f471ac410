"""The unmodified scheduler of vLLM 0.33.0 beside the specification, and faults of the release."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from attrs import evolve

from checkers.configs import load_settings
from checkers.counterexample import read, rerun
from checkers.engines import load_engine
from checkers.errors import HarnessError
from checkers.lockstep import Lockstep
from checkers.run import Run
from checkers.search import Plan, search
from checkers.shrink import Effort
from impl.adapters import vllm_config
from spec.actions import AddRequest, KVReceived, ResetPrefixCache, Schedule, UpdateFromOutput
from spec.dialects import DIALECTS
from spec.interface import ConfigError, NewRequest, SchedulerConfig

# What an engine's libraries think outdated is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

DOCS = Path(__file__).parents[2] / "docs"
FINDINGS = sorted((DOCS / "findings" / "vllm-0.33.0").glob("*.json"))
RELEASED = DIALECTS["vllm-0.33.0-as-released"]
NOT_IN_VLLM = {
    name
    for name, setting in load_settings().items()
    if any(getattr(setting.scheduler, field) for field in vllm_config.OURS_ALONE)
}
"""They ask for limits, gates or refusals that vLLM's scheduler does not have."""
OTHERWISE = {
    "lost-load": "shows a fault of the release",
    "thrash": "claims what the release does not keep",
    "dropped-token": "drops stale output, a choice that the release does not make",
    "deep-drafts": "hits no blocks of the same step, a choice that the release does not make",
    "deep-streaming": "resets while a request waits for input, at which the release raises",
}
LIKE_THE_RELEASE = [
    name
    for name, setting in load_settings().items()
    if setting.dialect.startswith("vllm-0.33.0") and name not in NOT_IN_VLLM | OTHERWISE.keys()
]


@pytest.fixture(scope="module")
def vllm():
    """The engine, if it is installed."""
    try:
        engine = load_engine("vllm", time_limit_s=60.0)
    except HarnessError as error:
        pytest.skip(f"{error}")
    logging.disable(logging.WARNING)
    return engine


def as_released(name):
    """A setting with the faults of the release, and without resets that it answers by raising."""
    setting = load_settings()[name]
    scheduler = evolve(setting.scheduler, **RELEASED)
    has_resets = setting.environment.with_resets and not scheduler.defer_block_free
    return evolve(
        setting,
        scheduler=scheduler,
        environment=evolve(setting.environment, with_resets=has_resets),
    )


@pytest.mark.engine
@pytest.mark.parametrize("name", LIKE_THE_RELEASE)
def test_the_release_does_as_the_specification(vllm, name):
    """Walks of the release are as specified; what breaks a rule is one of its known faults."""
    found = search(
        vllm, [as_released(name)], Plan(num_walks=8, length=80, effort=Effort(seconds=2.0))
    )
    broken = (
        [breach.name for breach in found.counterexample.breaches] if found.counterexample else []
    )
    known = {"published_blocks_were_written", "drafts_are_for_the_next_step"}
    if load_settings()[name].scheduler.load_kv_async:
        known |= {"work_is_conserved", "the_oldest_gains_a_token"}
    assert set(broken) <= known


@pytest.mark.engine
@pytest.mark.parametrize("name", sorted(NOT_IN_VLLM))
def test_what_vllm_does_not_have_is_said(vllm, name):
    """A setting with a field that vLLM knows nothing of is refused in one sentence."""
    with pytest.raises(HarnessError, match="is nothing that vLLM's scheduler knows; choose"):
        vllm.build(load_settings()[name].scheduler)


def make_config(**fields):
    """A small configuration of the release."""
    usual = {
        "max_num_batched_tokens": 8,
        "max_num_seqs": 2,
        "max_model_len": 16,
        "block_size": 2,
        "num_blocks": 8,
    }
    return SchedulerConfig(**{**usual, **RELEASED, **fields})


def run(vllm, config, *actions):
    """The release, after some actions in lockstep with the specification."""
    followed, lockstep = Run(config, vllm.build(config)), Lockstep(config)
    for action in actions:
        assert lockstep.step(followed.step(action)) is None
    return followed


def arrival(name, num_prompt_tokens, max_tokens, **fields):
    """A request arrives."""
    prompt = (0,) * num_prompt_tokens
    return AddRequest(
        NewRequest(request_id=name, prompt_token_ids=prompt, max_tokens=max_tokens, **fields)
    )


@pytest.mark.engine
def test_fault_padding_is_cut_by_the_threshold(vllm):
    """A padded admission is cut to the long-prefill threshold, and an assertion ends the engine."""
    config = make_config(num_speculative_tokens=2, long_prefill_token_threshold=2)
    followed = run(vllm, config, arrival("A", 1, 5), Schedule(), UpdateFromOutput({"A": [0]}))
    followed.step(arrival("B", 1, 5))
    with pytest.raises(Exception, match="schedule raised AssertionError"):
        followed.step(Schedule())


@pytest.mark.engine
def test_fault_a_reset_raises_while_a_request_waits_for_input(vllm):
    """Its blocks are held though nobody runs, so the reset of running requests gives up."""
    config = make_config(enable_prefix_caching=True)
    followed = run(
        vllm,
        config,
        arrival("A", 1, 1, resumable=True),
        Schedule(),
        UpdateFromOutput({"A": [0]}),
    )
    with pytest.raises(Exception, match="reset_prefix_cache raised RuntimeError: Failed to reset"):
        followed.step(ResetPrefixCache(True))


@pytest.mark.engine
def test_fault_a_reset_raises_while_blocks_are_kept_back(vllm):
    """Whom the reset preempts has blocks that a step in flight may write, so it gives up."""
    config = make_config(enable_prefix_caching=True, async_scheduling=True, defer_block_free=True)
    followed = run(vllm, config, arrival("A", 1, 1), Schedule())
    with pytest.raises(Exception, match="reset_prefix_cache raised RuntimeError: Failed to reset"):
        followed.step(ResetPrefixCache(True))


@pytest.mark.engine
def test_fault_a_lost_load_is_counted_on(vllm):
    """A's load has brought nothing, and the next one must leave alone what A itself needs."""
    config = make_config(load_kv_async=True, num_blocks=4)
    arrives = arrival("A", 5, 1, num_remote_tokens=4)
    followed = run(vllm, config, arrives, Schedule(), UpdateFromOutput({}), KVReceived("A", 0))
    for _ in range(3):
        seen = followed.step(Schedule())
        assert ({}, {}) == (seen.outcome.output.num_scheduled_tokens, seen.outcome.output.kv_loads)
        followed.step(UpdateFromOutput({}))


@pytest.mark.engine
@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_the_published_runs_happen_again(vllm, path):
    """What docs/findings shows of the release is what it does."""
    found = read(path)
    trial, again = rerun(found, vllm)
    assert again is not None
    assert [b.name for b in found.breaches] == [b.name for b in again.breaches]
    assert len(found.steps) == len(trial.steps)


def test_every_published_run_is_in_the_table():
    """docs/adapters.md names each file of docs/findings."""
    table = (DOCS / "adapters.md").read_text(encoding="utf-8")
    assert [] == [path.name for path in FINDINGS if path.name not in table]
    assert len(FINDINGS) > 0


def test_a_missing_vllm_is_one_sentence(monkeypatch):
    """Where vLLM is not installed, naming it says so, and how to install it."""
    vllm_config.import_vllm.cache_clear()
    monkeypatch.setattr(vllm_config, "PACKAGE", "nothing_of_this_name")
    with pytest.raises(HarnessError) as caught:
        load_engine("vllm")
    vllm_config.import_vllm.cache_clear()
    assert "engine 'vllm' cannot be imported" in str(caught.value)
    assert "docs/adapters.md says how it can be" in str(caught.value)


def test_a_setting_that_an_engine_cannot_do_is_no_finding(monkeypatch):
    """An engine that raises `ConfigError` is not at fault; the message names it."""
    engine = evolve(load_engine("fast"), make=refuse)
    with pytest.raises(HarnessError, match="engine 'fast': nothing is possible here"):
        engine.build(load_settings()["tiny"].scheduler)


def refuse(config):
    """An engine that has nothing that is asked for."""
    raise ConfigError("nothing is possible here")
