"""Counterexamples as files: all that is needed to run a failure again, byte for byte.

Entry points: `Counterexample`, `write`, `read`, `rerun`.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import attrs
import cattrs
from attrs import frozen
from cattrs.gen import (
    make_dict_structure_fn,
    make_dict_unstructure_fn,
    make_mapping_structure_fn,
    override,
)
from cattrs.strategies import configure_tagged_union

from checkers.convert import Hook, explain, make_converter, shown
from checkers.engines import Engine
from checkers.errors import HarnessError
from checkers.explain import explain_last
from checkers.liveness import NAME, Lasso, run_lasso
from checkers.possible import expect_possible
from checkers.run import Breach, select_invariants
from checkers.trial import Rules, TraceStep, Trial, run_trial
from spec.actions import ACTION_NAMES, Action, AddRequest, Schedule, UpdateFromOutput
from spec.interface import (
    FINISH_REASON,
    EngineCoreOutput,
    Observation,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.transition import Outcome

Schema = Literal["schedcheck.counterexample/1"]
SCHEMA: Schema = "schedcheck.counterexample/1"


@frozen(kw_only=True)
class StepDocument:
    """One action and what came of it; fields are null where the engine did not answer."""

    action: Action
    output: SchedulerOutput | None = None
    """Of `schedule`."""
    results: dict[int, list[EngineCoreOutput]] | None = None
    """Of `update_from_output`, by client."""
    observation: Observation | None = None


@frozen(kw_only=True)
class Counterexample:
    """A run that breaks a rule."""

    schema: Schema = SCHEMA
    schedcheck_version: str = "0.1.0"
    setting: str
    """The name of the setting that it was found in."""
    dialect: str
    engine: str
    """As named on the command line."""
    found_by: str
    """The command."""
    seed: int | None
    """Of the walk, if it was a walk."""
    num_actions_found: int
    """How long the run was before it was shrunk."""
    is_shortest: bool
    """Whether a complete breadth-first search has found no shorter run that breaks the rule.

    For the specification that is a proof; of an engine it has seen one path to each state.
    """
    loop_start: int | None = None
    """How many steps lead to the loop of a run that goes on for ever; None if the run ends."""
    config: SchedulerConfig
    max_in_flight: int
    lockstep: bool
    claims: tuple[str, ...]
    breaches: tuple[Breach, ...]
    """All that the last step breaks, the first one first."""
    explanation: tuple[str, ...]
    """How the specification decides in the last step, a sentence per rule, gate or effect."""
    steps: tuple[StepDocument, ...]

    @property
    def breach(self) -> Breach:
        """What the file is about."""
        return self.breaches[0]

    @property
    def lasso(self) -> Lasso | None:
        """The run as a way in and a loop; None if it ends."""
        if self.loop_start is None:
            return None
        actions = tuple(step.action for step in self.steps)
        return Lasso(actions[: self.loop_start], actions[self.loop_start :])

    @property
    def rules(self) -> Rules:
        """What the run is held against."""
        return Rules(
            self.config,
            tuple(select_invariants(self.claims)),
            self.max_in_flight,
            lockstep=self.lockstep,
        )


def make_counterexample(
    rules: Rules,
    engine: Engine,
    trial: Trial,
    *,
    setting: str,
    dialect: str,
    found_by: str,
    seed: int | None = None,
    num_actions_found: int | None = None,
    is_shortest: bool = False,
    loop_start: int | None = None,
) -> Counterexample:
    """Writes down a failing run; `num_actions_found` is its length before it was shrunk."""
    return Counterexample(
        setting=setting,
        dialect=dialect,
        engine=engine.name,
        found_by=found_by,
        seed=seed,
        num_actions_found=len(trial.steps) if num_actions_found is None else num_actions_found,
        is_shortest=is_shortest,
        loop_start=loop_start,
        config=rules.config,
        max_in_flight=rules.max_in_flight,
        lockstep=rules.lockstep,
        claims=tuple(rule.name for rule in rules.invariants if rule.is_claim),
        breaches=tuple(trial.breaches),
        explanation=_explain(rules, trial, loop_start),
        steps=make_steps(trial),
    )


def _explain(rules: Rules, trial: Trial, loop_start: int | None) -> tuple[str, ...]:
    """How the specification decides in the last step, or in the first that a loop plans."""
    actions = trial.actions
    if loop_start is not None:
        actions = actions[: actions.index(Schedule(), loop_start) + 1]
    return explain_last(rules.config, actions)


def make_steps(trial: Trial) -> tuple[StepDocument, ...]:
    """A trial's steps as a file holds them."""
    return tuple(_make_step(step) for step in trial.steps)


def _make_step(step: TraceStep) -> StepDocument:
    outcome = step.outcome or Outcome()
    return StepDocument(
        action=step.action,
        output=outcome.output,
        results=outcome.results,
        observation=step.seen,
    )


def dumps(counterexample: Counterexample) -> str:
    """The document's text: always the same bytes for the same counterexample. A step a line."""
    document = CONVERTER.unstructure(counterexample)
    steps = document.pop("steps")
    head = json.dumps(document, indent=1)
    lines = ",\n".join("  " + json.dumps(step, separators=(",", ":")) for step in steps)
    return f'{head[:-2]},\n "steps": [\n{lines}\n ]\n}}\n'


def write(counterexample: Counterexample, folder: Path) -> Path:
    """Writes a counterexample under a name made of its rule and its content; returns the path."""
    text = dumps(counterexample)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    path = folder / f"{counterexample.breach.name}-{digest}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HarnessError(
            f"{path} cannot be written: {error.strerror}; choose another folder with --out"
        ) from error
    return path


def read(path: Path) -> Counterexample:
    """Reads a counterexample. Raises `HarnessError` if it is not one."""
    raw = _read_json(path)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise HarnessError(
            f"{path} has schema {shown(schema)}, this version reads {SCHEMA!r}; "
            "write it again with this version, or validate a recording with `schedcheck validate`"
        )
    try:
        found = CONVERTER.structure(raw, Counterexample)
        expect_possible(found.rules, found.steps)
        _expect_loop(found)
    except Exception as error:  # cattrs raises what the data provoke; it explains them all.
        raise HarnessError(f"{path}: {explain(error)}") from error
    if not found.breaches:
        raise HarnessError(f"{path}: breaches is empty, so nothing is left to show; name a breach")
    if not found.steps and found.breach.kind != "engine":
        raise HarnessError(f"{path}: steps is empty, so nothing breaks a rule; restore the file")
    return found


def _expect_loop(found: Counterexample) -> None:
    start, lasso = found.loop_start, found.lasso
    if start is not None and lasso is not None and (start < 1 or Schedule() not in lasso.loop):
        raise HarnessError(
            f"loop_start={start} of {len(found.steps)} steps leaves no way in, or no "
            "loop that plans a step; restore the file"
        )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HarnessError(f"{path} does not exist; name a counterexample file") from None
    except OSError as error:
        raise HarnessError(
            f"{path} cannot be read: {error.strerror}; name a counterexample file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise HarnessError(f"{path} is not JSON ({error}); was it cut off?") from error


def rerun(counterexample: Counterexample, engine: Engine) -> tuple[Trial, Counterexample | None]:
    """Runs the actions again; returns the run and, if a rule breaks, the document it makes.

    On the engine of the file, that document is the file again, byte for byte, as long as nothing
    has changed.
    """
    actions = [step.action for step in counterexample.steps]
    rules = counterexample.rules
    if engine.is_spec:
        rules = attrs.evolve(rules, lockstep=False)
    lasso = counterexample.lasso
    trial = run_lasso(rules, engine, lasso) if lasso else run_trial(rules, engine, actions)
    if not trial.breaches:
        return trial, None
    loop_start = counterexample.loop_start if trial.breaches[0].name == NAME else None
    again = attrs.evolve(
        counterexample,
        engine=engine.name,
        loop_start=loop_start,
        lockstep=rules.lockstep,
        breaches=tuple(trial.breaches),
        explanation=_explain(rules, trial, loop_start),
        steps=make_steps(trial),
    )
    return trial, again


def _make_converter() -> cattrs.Converter:
    converter = make_converter()
    converter.register_unstructure_hook(RequestStatus, lambda status: status.name)
    converter.register_structure_hook(RequestStatus, _structure_status)
    # The place in a menu means nothing outside of it.
    no_shape = override(omit=True)
    converter.register_unstructure_hook(
        AddRequest, make_dict_unstructure_fn(AddRequest, converter, shape=no_shape)
    )
    converter.register_structure_hook(
        AddRequest, make_dict_structure_fn(AddRequest, converter, shape=no_shape)
    )
    # Without speculative decoding nothing is said of drafts.
    if_drafts = override(omit_if_default=True)
    converter.register_unstructure_hook(
        UpdateFromOutput,
        make_dict_unstructure_fn(UpdateFromOutput, converter, draft_token_ids=if_drafts),
    )
    converter.register_unstructure_hook(
        SchedulerOutput,
        make_dict_unstructure_fn(
            SchedulerOutput, converter, scheduled_spec_decode_tokens=if_drafts
        ),
    )
    configure_tagged_union(
        Action, converter, tag_generator=lambda kind: ACTION_NAMES[kind], tag_name="name"
    )
    converter.register_structure_hook(Action, functools.partial(_structure_action, converter))
    converter.register_structure_hook_factory(_is_by_number, _make_by_number_hook)
    # Of a run that ends nothing is said, as before there were others.
    if_loop = override(omit_if_default=True)
    converter.register_unstructure_hook(
        Counterexample, make_dict_unstructure_fn(Counterexample, converter, loop_start=if_loop)
    )
    return converter


def _structure_status(value: Any, kind: Any) -> RequestStatus:
    for status in FINISH_REASON:
        if value == RequestStatus(status).name:
            return RequestStatus(status)
    names = ", ".join(RequestStatus(status).name for status in FINISH_REASON)
    raise ValueError(f"{shown(value)} ends no request; choose one of {names}")


def _structure_action(converter: cattrs.Converter, value: Any, kind: Any) -> Any:
    fields = dict(value) if isinstance(value, dict) else {}
    name = fields.pop("name", None)
    for action, its_name in ACTION_NAMES.items():
        if name == its_name:
            return converter.structure(fields, action)
    names = ", ".join(ACTION_NAMES.values())
    raise ValueError(f"{shown(value)} is no action; its name must be one of {names}")


def _is_by_number(kind: Any) -> bool:
    return get_origin(kind) is dict and get_args(kind)[0] is int


def _make_by_number_hook(kind: Any, converter: cattrs.Converter) -> Hook:
    """The keys of a JSON object are strings, also where they count blocks or clients."""
    structure = make_mapping_structure_fn(kind, converter)

    def structure_by_number(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{shown(value)} is not an object with fields; give one")
        return structure({_structure_key(key): item for key, item in value.items()}, kind)

    return structure_by_number


def _structure_key(key: str) -> int:
    number = int(key) if key.removeprefix("-").isdecimal() else None
    if str(number) != key:
        raise ValueError(f"key {shown(key)} is not a whole number; give one")
    return int(key)


CONVERTER = _make_converter()
