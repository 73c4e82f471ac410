"""The registries of invariants and witnesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import evolve

import spec.invariants
import spec.witnesses  # noqa: F401, importing it registers the witnesses
from checkers.run import Run
from spec import registry
from spec.actions import AddRequest, Schedule
from spec.interface import Observation, RequestObservation, SchedulerConfig, SchedulerOutput
from spec.registry import EVERY_ACTION, INVARIANTS, WITNESSES, Invariant, Witness
from spec.scheduler import ReferenceScheduler
from spec.transition import Outcome, Transition
from tests.spec.support import make_config, make_request

RULES: list[Invariant | Witness] = [*INVARIANTS.values(), *WITNESSES.values()]


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registries of a test's own."""
    monkeypatch.setattr(registry, "INVARIANTS", {})
    monkeypatch.setattr(registry, "WITNESSES", {})


def register_invariant(check: registry.Check) -> registry.Check:
    """Registers an invariant that says where it comes from, and nothing else."""
    return registry.invariant(source="somewhere")(check)


def always(config: SchedulerConfig, seen: Transition) -> Iterator[str]:
    """Holds.

    And says more.
    """
    yield from ()


def seldom(config: SchedulerConfig, seen: Transition) -> bool:
    """Happens."""
    return True


@pytest.mark.usefixtures("empty")
def test_an_invariant_is_its_name_and_its_first_line() -> None:
    """A check is registered under its name; its rule is the first line of its docstring."""
    assert always is register_invariant(always)
    assert ["always"] == list(registry.INVARIANTS)
    entry = registry.INVARIANTS["always"]
    assert ("always", "Holds.", always, "somewhere") == (
        entry.name,
        entry.rule,
        entry.check,
        entry.source,
    )
    assert (EVERY_ACTION, (), False) == (entry.on, entry.needs, entry.is_claim)


@pytest.mark.usefixtures("empty")
def test_a_witness_is_its_name_and_its_first_line() -> None:
    """A sighting is registered the same way; by default it looks at schedule actions."""
    assert seldom is registry.witness()(seldom)
    assert {"seldom": Witness("seldom", "Happens.", seldom, (Schedule,))} == registry.WITNESSES


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(
    ("register", "rule"), [(register_invariant, always), (registry.witness(), seldom)]
)
def test_a_name_is_taken_once(
    register: Callable[[Callable[..., object]], object], rule: Callable[..., object]
) -> None:
    """A second registration under one name is refused."""
    register(rule)
    with pytest.raises(ValueError, match=f"{rule.__name__} is registered twice"):
        register(rule)


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("register", [register_invariant, registry.witness()])
def test_a_rule_must_say_what_it_says(
    register: Callable[[Callable[..., object]], object],
) -> None:
    """A rule without a docstring is refused, and nothing is registered."""

    def silent(config: SchedulerConfig, seen: Transition) -> None:
        pass

    with pytest.raises(ValueError, match="silent has no docstring"):
        register(silent)
    assert ({}, {}) == (registry.INVARIANTS, registry.WITNESSES)


@pytest.mark.parametrize("entry", RULES, ids=lambda entry: entry.name)
def test_rules_are_sentences(entry: Invariant | Witness) -> None:
    """Each rule is one sentence on one line, and looks at one kind of action at least."""
    assert entry.rule.endswith(".")
    assert set(entry.on) <= set(EVERY_ACTION)
    assert entry.on


def test_the_four_promises_stand_first() -> None:
    """Reports name the first broken rule, so the budgets come before all others."""
    assert ["token_budget_is_kept", "input_budget_is_kept"] == list(INVARIANTS)[:2]


@pytest.mark.parametrize("entry", INVARIANTS.values(), ids=lambda entry: entry.name)
def test_what_is_needed_exists(entry: Invariant) -> None:
    """What an invariant needs is a field of a transition, an output or a request."""
    known = {"worker", "published_faults"}
    known |= {*SchedulerOutput.__slots__, *RequestObservation.__slots__}
    assert set(entry.needs) <= known


# ---- what an engine does not show ----------------------------------------------------------------


def needing(*needs: str) -> Invariant:
    """An invariant that needs some fields."""
    return Invariant("needy", "Needs.", always, (Schedule,), needs, False, False, "")


@pytest.fixture
def seen() -> Transition:
    """A step of one request, followed by a ghost worker."""
    config = make_config()
    run = Run(config, ReferenceScheduler(config))
    run.step(AddRequest(make_request("A", 5)))
    return run.step(Schedule())


def hide(after: Observation, name: str) -> Observation:
    """The same without a field of its requests."""
    hidden: dict[str, Any] = {name: None}
    requests = {key: evolve(request, **hidden) for key, request in after.requests.items()}
    return evolve(after, requests=requests)


def test_all_is_observable_of_the_specification(seen: Transition) -> None:
    """The specification shows whatever any invariant needs."""
    config = make_config(num_speculative_tokens=1)
    hidden = [rule.name for rule in INVARIANTS.values() if not rule.is_observable(config, seen)]
    assert [] == hidden


@pytest.mark.parametrize("name", ["worker", "published_faults"])
def test_without_a_ghost_nothing_is_known_of_kv(seen: Transition, name: str) -> None:
    """What needs the ghost worker is not observable in a run that none follows."""
    hidden: dict[str, Any] = {name: None}
    assert needing(name).is_observable(make_config(), seen)
    assert not needing(name).is_observable(make_config(), evolve(seen, **hidden))


def test_an_engine_may_not_tell_what_it_zeroes(seen: Transition) -> None:
    """What needs a field of the output is not observable if the engine leaves it out."""
    assert seen.outcome.output is not None
    silent = evolve(seen.outcome.output, new_block_ids_to_zero=None)
    rule = needing("new_block_ids_to_zero")
    assert rule.is_observable(make_config(), seen)
    assert not rule.is_observable(make_config(), evolve(seen, outcome=Outcome(output=silent)))


@pytest.mark.parametrize("name", ["num_output_placeholders", "num_in_flight_tokens"])
def test_an_engine_may_not_have_a_counter(seen: Transition, name: str) -> None:
    """What needs a counter is not observable if requests do not have it; without any, it is."""
    rule = needing("block_ids", name)
    assert rule.is_observable(make_config(), seen)
    assert not rule.is_observable(make_config(), evolve(seen, after=hide(seen.after, name)))
    assert rule.is_observable(make_config(), evolve(seen, after=evolve(seen.after, requests={})))


def test_drafts_are_needed_where_there_are_any(seen: Transition) -> None:
    """An engine need not tell how many drafts a request has if it is never given one."""
    rule = needing("num_draft_tokens")
    silent = evolve(seen, after=hide(seen.after, "num_draft_tokens"))
    assert rule.is_observable(make_config(), silent)
    assert not rule.is_observable(make_config(num_speculative_tokens=1), silent)
    assert rule.is_observable(make_config(num_speculative_tokens=1), seen)
