"""Each invariant is silent on correct runs, and says of a forged one what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

import spec.invariants  # noqa: F401, importing it registers the invariants
from checkers.configs import Setting, load_settings
from checkers.run import Judge, Run, select_invariants
from spec.dialects import CHOICES, DIALECTS
from spec.interface import EngineCoreOutput, SchedulerConfig
from spec.registry import INVARIANTS
from spec.scheduler import ReferenceScheduler
from spec.transition import Outcome, Transition
from tests.spec import (
    easily_misjudged,
    forged_controls,
    forged_drafts,
    forged_loads,
    forged_progress,  # noqa: F401, importing it registers its forgeries
    forged_streaming,
)
from tests.spec.forgeries import BASES, FORGERIES, Base, Forgery
from tests.spec.support import OPTIONS, configs
from tests.spec.transitions import make_run, seeds, walk

ALL_BASES = (
    *BASES,
    *easily_misjudged.BASES,
    *forged_controls.BASES,
    *forged_drafts.BASES,
    *forged_loads.BASES,
    *forged_streaming.BASES,
)
DIALECT_FIELDS = ("reserve_admitted_prefills", "reject_too_large", *CHOICES)
"""All but `FAULTS`."""
FAULTS = dict.fromkeys(DIALECTS["vllm-0.33.0-as-released"], False)

dialects = st.fixed_dictionaries({name: st.sampled_from(OPTIONS[name]) for name in DIALECT_FIELDS})


def speak_another(setting: Setting, dialect: dict[str, Any]) -> SchedulerConfig:
    """A setting's configuration in another dialect."""
    may_reserve = setting.scheduler.scheduler_reserve_full_isl
    reserves = dialect["reserve_admitted_prefills"] and may_reserve
    changes = {**dialect, "reserve_admitted_prefills": reserves, **FAULTS}
    resumable = [shape for shape in setting.environment.shapes if shape.resumable]
    if setting.scheduler.load_kv_async or resumable:
        changes["wait_for_stale_output"] = True  # No load without it, and no streaming input.
    return evolve(setting.scheduler, **changes)


@given(configs(), seeds)
def test_any_correct_run_breaks_nothing(config: SchedulerConfig, seed: int) -> None:
    """Whatever the configuration and the dialect, no invariant objects to a correct run."""
    config = evolve(config, **FAULTS)
    check(config, make_run(config), seed)


@pytest.mark.parametrize("setting", load_settings().values(), ids=lambda setting: setting.name)
@given(dialect=dialects, seed=seeds)
@settings(max_examples=10)
def test_no_setting_breaks_anything(setting: Setting, dialect: dict[str, Any], seed: int) -> None:
    """The same for the named settings, with their stop rules and clients, in any dialect."""
    config = speak_another(setting, dialect)
    check(config, Run(config, ReferenceScheduler(config), setting.environment), seed)


def check(config: SchedulerConfig, run: Run, seed: int) -> None:
    """Judges a walk of the specification; all can be observed of it."""
    judge = Judge(config, select_invariants())
    for seen in walk(run, seed):
        assert [] == list(judge.breaches(seen))
    assert set() == judge.unobserved


@given(seeds)
def test_the_claim_holds_where_it_is_made(seed: int) -> None:
    """With the reserve-aware gate no prompt is preempted, in the setting that says so."""
    setting = load_settings()["thrash-reserved"]
    config = setting.scheduler
    judge = Judge(config, select_invariants(setting.claims))
    for seen in walk(Run(config, ReferenceScheduler(config), setting.environment), seed):
        assert [] == list(judge.breaches(seen))


@pytest.mark.parametrize("base", ALL_BASES)
def test_what_is_forged_was_right(base: Base) -> None:
    """Nothing is wrong with a transition before it is forged."""
    config, seen = base()
    assert [] == list(Judge(config, list(INVARIANTS.values())).breaches(seen))


def name_of(forgery: Forgery) -> str:
    """What a forgery is called in a report of tests."""
    return f"{forgery.invariant}-{forgery.change.__name__.strip('_')}"


@pytest.mark.parametrize("forgery", FORGERIES, ids=name_of)
def test_forgery(forgery: Forgery) -> None:
    """An invariant says of a forgery what is wrong, and nothing else."""
    config, seen = forgery.make()
    assert list(forgery.evidence) == list(INVARIANTS[forgery.invariant].check(config, seen))


def test_every_invariant_has_a_forgery() -> None:
    """No invariant is left out above."""
    assert INVARIANTS.keys() == {forgery.invariant for forgery in FORGERIES}


@pytest.mark.parametrize(
    "forgery", [f for f in FORGERIES if INVARIANTS[f.invariant].of_state], ids=name_of
)
def test_an_invariant_of_the_state_looks_at_nothing_else(forgery: Forgery) -> None:
    """Whatever came before, it says the same; only what was lost can be said of two states."""
    config, seen = forgery.make()
    alone = evolve(
        seen,
        before=seen.after,
        live=seen.live_after,
        in_flight=seen.in_flight_after,
        outcome=Outcome(),
    )
    expected = [sentence for sentence in forgery.evidence if not sentence.startswith("lost ")]
    assert expected == list(INVARIANTS[forgery.invariant].check(config, alone))


# ---- engines that make no sense ------------------------------------------------------------------


def _unknown_names(seen: Transition) -> None:
    seen.after.running.append("X")
    seen.after.waiting.insert(0, "Y")
    if seen.outcome.output is not None:
        seen.outcome.output.num_scheduled_tokens["Z"] = 1
        seen.outcome.output.preempted_req_ids.append("Z")
    if seen.outcome.results is not None:
        seen.outcome.results[7] = [EngineCoreOutput("Z", [], "stop")]


def _nobody_before(seen: Transition) -> None:
    seen.before.requests.clear()
    for shown in (seen.before, seen.after):
        shown.running.append("X")


def _nobody_after(seen: Transition) -> None:
    seen.after.requests.clear()


def _nothing_told(seen: Transition) -> None:
    seen.after.waiting.append("X")
    if seen.outcome.output is not None:
        seen.outcome.output.scheduled_new_reqs.clear()
        seen.outcome.output.scheduled_cached_reqs.clear()


@pytest.mark.parametrize("change", [_unknown_names, _nobody_before, _nobody_after, _nothing_told])
@pytest.mark.parametrize("base", ALL_BASES)
def test_nonsense_is_judged(base: Base, change: Callable[[Transition], None]) -> None:
    """Whatever names an engine makes up or leaves out, each invariant comes to a judgement."""
    config, seen = base()
    nonsense = deepcopy(seen)
    change(nonsense)
    judge = Judge(config, list(INVARIANTS.values()))
    assert [] != list(judge.breaches(nonsense))
