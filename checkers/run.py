"""One scheduler under observation: every action becomes a transition, every transition is judged.

Entry point: `Run.step`. It serves the walks, the Hypothesis machine, replay, shrinking and
validation alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from attrs import field, frozen

import spec.invariants
import spec.witnesses  # noqa: F401  (registers)
from checkers.errors import HarnessError
from spec.interface import Observation, Scheduler, SchedulerConfig
from spec.model import (
    Action,
    Environment,
    Model,
    Outcome,
    ResetPrefixCache,
    Schedule,
    Transition,
)
from spec.registry import EVERY_ACTION, INVARIANTS, WITNESSES, Invariant
from spec.worker import GhostWorker, WorkerReport

Verdict = Literal["holds", "violated", "undetermined"]
"""What a check comes to; what is undetermined is never printed as a success."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """A finding outweighs what is undetermined; where nothing was checked, nothing is settled."""
    order: list[Verdict] = ["holds", "undetermined", "violated"]
    return max(verdicts, key=order.index, default="undetermined")


BreachKind = Literal["invariant", "lockstep", "engine", "recording", "liveness"]


@frozen
class Breach:
    """A rule that does not hold, with its evidence."""

    name: str
    """The invariant's name; else `same_as_spec`, `engine_raises` and its kin, or of liveness."""
    rule: str
    """One sentence: what should hold."""
    evidence: tuple[str, ...]
    """One sentence per breach."""
    kind: BreachKind = "invariant"
    detail: str = field(default="", eq=False)
    """A traceback, or how the spec came to its decision."""


def select_invariants(claims: Iterable[str] = ()) -> list[Invariant]:
    """All invariants, and the claims asked for. Raises `HarnessError` for an unknown claim."""
    unknown = [name for name in claims if name not in INVARIANTS]
    if unknown:
        known = ", ".join(name for name, rule in INVARIANTS.items() if rule.is_claim)
        raise HarnessError(f"claims {unknown} are unknown; known are {known}")
    return [rule for name, rule in INVARIANTS.items() if not rule.is_claim or name in claims]


class Judge:
    """Judges transitions, and counts what was looked at."""

    def __init__(self, config: SchedulerConfig, invariants: list[Invariant]) -> None:
        self.config = config
        self.invariants = invariants
        self._rules = {kind: [r for r in invariants if kind in r.on] for kind in EVERY_ACTION}
        self._transition_rules = {
            kind: [r for r in rules if not r.of_state] for kind, rules in self._rules.items()
        }
        self._sightings = {
            kind: [w for w in WITNESSES.values() if kind in w.on] for kind in EVERY_ACTION
        }
        self.num_transitions = 0
        self.witnesses: Counter[str] = Counter()
        self.unobserved: set[str] = set()
        """Invariants that were passed over, since the engine does not show what they need."""

    def breaches(self, seen: Transition, *, is_known_state: bool = False) -> Iterator[Breach]:
        """Yields every rule that a transition breaks, in the order of the registry.

        `is_known_state` says that the state after it has been judged before, under whatever names.
        """
        rules = self._transition_rules if is_known_state else self._rules
        for rule in rules[type(seen.action)]:
            if rule.needs and not rule.is_observable(self.config, seen):
                self.unobserved.add(rule.name)
                continue
            evidence = tuple(rule.check(self.config, seen))
            if evidence:
                yield Breach(rule.name, rule.rule, evidence)

    def look(self, seen: Transition) -> None:
        """Counts a transition and the witnesses in it."""
        self.num_transitions += 1
        for witness in self._sightings[type(seen.action)]:
            if witness.is_seen(self.config, seen):
                self.witnesses[witness.name] += 1


class Run:
    """A scheduler in its environment, followed by a ghost worker."""

    def __init__(
        self,
        config: SchedulerConfig,
        scheduler: Scheduler,
        environment: Environment | None = None,
        *,
        with_worker: bool = True,
    ) -> None:
        self.model = Model(environment, scheduler)
        self.worker = GhostWorker(config.block_size) if with_worker else None
        self.seen: Observation = scheduler.observe()

    def step(self, action: Action) -> Transition:
        """Lets an action happen and observes it. Raises `EngineFault` if the engine fails."""
        model, before = self.model, self.seen
        live, in_flight = model.live, model.in_flight
        outcome = model.do(action)
        self.seen = after = model.scheduler.observe()
        transition = Transition(
            action, before, after, outcome, live, model.live, in_flight, model.in_flight
        )
        transition.pause_state = model.pause_state
        if self.worker is not None:
            follow(self.worker, transition)
        return transition


def follow(worker: GhostWorker, seen: Transition) -> None:
    """Lets the ghost worker take part in a transition, and notes what it has to say."""
    if isinstance(seen.action, Schedule):
        seen.worker = _execute(worker, seen, seen.outcome)
    else:
        if isinstance(seen.action, ResetPrefixCache):
            worker.preempt(seen.preempted)
        # Whoever ends with these tokens may have published some of them.
        for outputs in (seen.outcome.results or {}).values():
            for sent in outputs:
                if sent.request_id in seen.live:
                    known = seen.live[sent.request_id].token_ids
                    worker.learn(sent.request_id, (*known, *sent.new_token_ids))
        for name, num_rejected in seen.num_rejected.items():
            if num_rejected and name in worker.writers:
                worker.roll_back(name, num_rejected)
    seen.published_faults = list(worker.check_published(seen.after))


def _execute(worker: GhostWorker, seen: Transition, outcome: Outcome) -> WorkerReport:
    assert outcome.output is not None, "a schedule action has an output"
    preempted = [name for name, r in seen.after.requests.items() if r.status == "PREEMPTED"]
    worker.preempt([*outcome.output.preempted_req_ids, *preempted])
    token_ids = {name: live.token_ids for name, live in seen.live.items()}
    salts = {name: live.new.cache_key for name, live in seen.live.items()}
    return worker.execute(outcome.output, token_ids, salts)
