"""A whole run of one engine: a list of actions, everything seen, and the first breach.

Entry points: `run_trial`, and `run_for`, which is in haste. They are strict about nothing: actions
that cannot happen (any more) are left out, so that shrinking may drop what it likes; the trial's
own steps are the run that did happen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import attrs
from attrs import define, field, frozen

from checkers.engines import Engine, hang_alarms
from checkers.errors import EngineFault
from checkers.lockstep import Lockstep
from checkers.run import Breach, Judge, Run
from spec.actions import (
    Action,
    AddRequest,
    Control,
    FinishRequests,
    GrammarReady,
    KVReceived,
    ResetPrefixCache,
    Schedule,
    SetPauseState,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.interface import Observation, SchedulerConfig
from spec.model import Model
from spec.registry import Invariant
from spec.sessions import may_take
from spec.transition import LiveRequest, Outcome, StepInFlight

FAULT_RULES = {
    "engine_raises": "No call of an engine raises.",
    "engine_hangs": "Every call of an engine returns.",
    "engine_answers": "Every call of an engine returns what the interface says.",
}


@frozen
class TraceStep:
    """An action, what the engine answered, and what was seen after it."""

    action: Action
    outcome: Outcome | None
    """None if the engine failed in this very step."""
    seen: Observation | None


@define
class Trial:
    """A run that happened."""

    steps: list[TraceStep] = field(factory=list)
    breaches: list[Breach] = field(factory=list)
    """All that the last step breaks; [] if the run holds."""
    is_interrupted: bool = field(default=False, eq=False)
    """Whether Ctrl-C ended its shrinking."""

    @property
    def actions(self) -> list[Action]:
        """What happened."""
        return [step.action for step in self.steps]


@frozen
class Rules:
    """What a run is held against."""

    config: SchedulerConfig
    invariants: tuple[Invariant, ...]
    max_in_flight: int = 1
    default_token_id: int = 0
    """Sampled where a run says nothing."""
    lockstep: bool = True
    """Whether the engine must do as the specification does."""


CHANGED = EngineFault("engine_answers", "what observe() had returned changed after the next call")


def run_trial(rules: Rules, engine: Engine, actions: Iterable[Action]) -> Trial:
    """Runs actions until the first breach. Actions that cannot happen are left out."""
    trial = Trial()
    with hang_alarms():
        try:
            _run(trial, rules, engine, actions)
        except EngineFault as fault:
            trial.breaches = [breach_of_fault(fault)]
    return trial


def run_for(
    rules: Rules, engine: Engine, actions: Sequence[Action], wanted: Collection[str]
) -> Trial:
    """Runs actions as `run_trial` does if they may break a wanted rule; else less is looked at.

    Most candidates of a shrinking break nothing, and are found out in a fraction of the time.
    """
    if not _may_break(rules, engine, actions, wanted):
        return Trial()
    return run_trial(rules, engine, actions)


def _may_break(
    rules: Rules, engine: Engine, actions: Sequence[Action], wanted: Collection[str]
) -> bool:
    if CHANGED.name in wanted:
        return True  # Only who trusts nothing sees that.
    chosen = tuple(rule for rule in rules.invariants if rule.name in wanted)
    trial = Trial()
    try:
        with hang_alarms():
            _run(trial, attrs.evolve(rules, invariants=chosen), engine, actions, is_trusted=True)
    except EngineFault as fault:
        return fault.name in wanted
    except Exception:  # noqa: BLE001  (a plain run tells whose fault it is, and raises if ours)
        return True
    return any(breach.name in wanted for breach in trial.breaches)


def _run(
    trial: Trial,
    rules: Rules,
    engine: Engine,
    actions: Iterable[Action],
    *,
    is_trusted: bool = False,
) -> None:
    run = Run(rules.config, engine.build(rules.config, is_trusted=is_trusted))
    judge = Judge(rules.config, list(rules.invariants))
    lockstep = Lockstep(rules.config) if rules.lockstep else None
    for wanted in actions:
        action = make_possible(run.model, wanted, rules)
        if action is None:
            continue
        before, shown = run.seen, "" if is_trusted else repr(run.seen)
        _take(trial, run, judge, lockstep, action)
        if trial.breaches:
            # An answer that the engine goes on using makes every rule speak, and none to the point.
            if not is_trusted and repr(before) != shown:
                trial.breaches.insert(0, breach_of_fault(CHANGED))
            break


def _take(trial: Trial, run: Run, judge: Judge, lockstep: Lockstep | None, action: Action) -> None:
    trial.steps.append(TraceStep(action, None, None))
    seen = run.step(action)
    trial.steps[-1] = TraceStep(action, seen.outcome, seen.after)
    trial.breaches = list(judge.breaches(seen))
    difference = None if lockstep is None else lockstep.step(seen)
    if difference is not None:
        trial.breaches.append(difference)


def breach_of_fault(fault: EngineFault) -> Breach:
    """An engine's fault, as a finding."""
    return Breach(fault.name, FAULT_RULES[fault.name], (fault.evidence,), "engine", fault.traceback)


def make_possible(model: Model, wanted: Action, rules: Rules) -> Action | None:
    """The action as it can happen now; None if it cannot."""
    if isinstance(wanted, AddRequest):
        in_flight = {name for step in model.in_flight for name in step.output.num_scheduled_tokens}
        name = wanted.request.request_id
        is_taken = name in model.live or name in in_flight or name in model.loads
        return None if is_taken else wanted
    if isinstance(wanted, FinishRequests):
        # Who has ended may be named all the same, by a client that has not heard of it.
        names = tuple(n for n in wanted.request_ids if n in model.live or n in model.ended)
        return FinishRequests(names, wanted.status) if names else None
    if isinstance(wanted, UpdateFromOutput):
        return _make_possible_update(model, wanted, rules) if model.in_flight else None
    return wanted if _is_possible(model, wanted, rules) else None


def _is_possible(model: Model, wanted: Schedule | Control, rules: Rules) -> bool:
    if isinstance(wanted, GrammarReady):
        live = _find_request(model, wanted.request_id)
        return live is not None and live.waits_for_grammar
    if isinstance(wanted, KVReceived):
        return wanted in model.transfers()
    if isinstance(wanted, StreamingChunk):
        return _may_follow(model, wanted, rules)
    if isinstance(wanted, SetPauseState):
        return wanted.pause_state != model.pause_state
    return isinstance(wanted, ResetPrefixCache) or len(model.in_flight) < rules.max_in_flight


def _may_follow(model: Model, wanted: StreamingChunk, rules: Rules) -> bool:
    """Whether a chunk may be handed over: to an open request, and not beyond `max_model_len`."""
    live, update = _find_request(model, wanted.request_id), wanted.update
    if live is None or not live.is_open:
        return False
    return update is None or (
        min(len(update.prompt_token_ids), update.max_tokens) > 0
        and may_take(live, update, rules.config.max_model_len - 1)
    )


def _find_request(model: Model, request_id: str) -> LiveRequest | None:
    """A request as it is, or as it was when it ended, which not everybody has heard of."""
    return model.live.get(request_id) or model.ended.get(request_id)


def _make_possible_update(model: Model, wanted: UpdateFromOutput, rules: Rules) -> UpdateFromOutput:
    step, is_async = model.in_flight[0], rules.config.async_scheduling
    sampled = {
        name: _make_possible_row(step, name, wanted.sampled_token_ids.get(name), rules)
        for name in model.live_samplers()
    }
    drafts = {
        name: token_ids[: rules.config.num_speculative_tokens]
        for name, token_ids in wanted.draft_token_ids.items()
        if not is_async and name in model.live and name in step.output.num_scheduled_tokens
    }
    return UpdateFromOutput(sampled, {name: ids for name, ids in drafts.items() if ids})


def _make_possible_row(
    step: StepInFlight, request_id: str, wanted: list[int] | None, rules: Rules
) -> list[int]:
    """As many drafts accepted, and then the token that was wanted."""
    drafts = step.drafts_of(request_id)
    if wanted == [] and drafts and request_id in step.voided:
        return []
    row = (wanted or [rules.default_token_id])[: len(drafts) + 1]
    accepted = [
        token if draft < 0 else draft for draft, token in zip(drafts, row[:-1], strict=False)
    ]
    return [*accepted, row[-1]]
