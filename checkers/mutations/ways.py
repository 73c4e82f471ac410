"""Each checker by itself, looking for a bug in the setting in which it shows.

Entry point: `WAYS`. Any rule will do here, the first that breaks, and nothing is shrunk. How much
each looks at is counted in runs, actions and states, so no machine sees more than another.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import settings as profile
from hypothesis.stateful import run_state_machine_as_test

from checkers.configs import Setting
from checkers.engines import Engine, hang_alarms
from checkers.errors import HarnessError
from checkers.explore import Budget
from checkers.explore_engine import EngineExplorer
from checkers.liveness import NAME as LIVENESS
from checkers.machine import scheduler_machine
from checkers.mutations.look import Look
from checkers.mutations.recorded import find_obstacle, read_walk, record_walk
from checkers.search import Plan, make_rules, search
from checkers.shrink import NO_EFFORT
from checkers.trial import Trial, run_trial
from checkers.validate import validate
from checkers.walk import draw_action
from spec.actions import Action
from spec.model import Model
from spec.scheduler import ReferenceScheduler

NUM_WALKS, NUM_RECORDINGS, LENGTH = 20, 10, 100
"""Of `search` and `lockstep`; of `validate`; actions in each."""
MAX_STATES, MAX_STATES_DRAINED = 1_000, 400
"""Of `explore`; of `liveness`."""
NUM_RUNS, NUM_RULES = 40, 30
"""Of `machine`, and in each run."""

Way = Callable[[Setting, Engine], Look]


def _search(setting: Setting, engine: Engine) -> Look:
    """Random walks of the engine beside the spec; all rules."""
    plan = Plan(num_walks=NUM_WALKS, length=LENGTH, effort=NO_EFFORT)
    found = search(engine, [setting], plan).counterexample
    if found is None:
        return Look(looked_at=f"{NUM_WALKS} walks of {LENGTH} actions")
    names = tuple(breach.name for breach in found.breaches)
    return Look(broken=names, num_actions=found.num_actions_found)


def _lockstep(setting: Setting, engine: Engine) -> Look:
    """The engine is led along walks of the spec; only that it does the same is asked."""
    rules = attrs.evolve(make_rules(engine, setting), invariants=())
    for seed in range(NUM_WALKS):
        trial = run_trial(rules, engine, _walk_spec(setting, seed))
        if trial.breaches:
            return _describe(trial)
    return Look(looked_at=f"{NUM_WALKS} walks of {LENGTH} actions")


def _walk_spec(setting: Setting, seed: int) -> list[Action]:
    rng = random.Random(f"{setting.name} {seed}")
    model = Model(setting.environment, ReferenceScheduler(setting.scheduler))
    actions: list[Action] = []
    while len(actions) < LENGTH and (action := draw_action(model, rng)) is not None:
        model.do(action)
        actions.append(action)
    return actions


def _validate(setting: Setting, engine: Engine) -> Look:
    """Walks of the engine are recorded, and the recordings judged."""
    obstacle = find_obstacle(setting, NUM_RECORDINGS, LENGTH)
    if obstacle:
        return Look(unfit=obstacle)
    num_refused = 0
    for seed in range(NUM_RECORDINGS):
        with hang_alarms():
            lines = list(record_walk(setting, engine.build(setting.scheduler), seed, LENGTH))
        try:
            rejection = validate(read_walk(setting, lines)).rejection
        except HarnessError:
            num_refused += 1  # It names somebody who never arrived, say: no rule speaks of that.
            continue
        if rejection is not None:
            names = tuple(breach.name for breach in rejection.breaches)
            return Look(broken=names, num_actions=rejection.line - 1, line=rejection.line)
    refused = f", {num_refused} of them refused as malformed" if num_refused else ""
    return Look(looked_at=f"{NUM_RECORDINGS} recordings of {LENGTH} actions{refused}")


def _machine(setting: Setting, engine: Engine) -> Look:
    """Hypothesis draws what happens; always the same runs."""
    kind = scheduler_machine(engine.name, [setting], time_limit_s=engine.time_limit_s)
    trials: list[Trial] = []

    class Noting(kind):  # type: ignore[misc, valid-type]
        def teardown(self) -> None:
            trials.append(self.trial)
            super().teardown()

    try:
        run_state_machine_as_test(
            Noting,
            settings=profile(
                max_examples=NUM_RUNS,
                stateful_step_count=NUM_RULES,
                derandomize=True,
                database=None,
                deadline=None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
                verbosity=Verbosity.quiet,
            ),
        )
    except AssertionError:
        return _describe(next(trial for trial in trials if trial.breaches))
    return Look(looked_at=f"{NUM_RUNS} runs of {NUM_RULES} rules")


def _explore(setting: Setting, engine: Engine) -> Look:
    """The engine is led to the states of the spec; all rules, and loops."""
    rules = make_rules(engine, setting)
    explorer = EngineExplorer(rules, engine, setting.environment)
    found = explorer.run(Budget(states=MAX_STATES))
    if found.failing:
        return _describe(run_trial(rules, engine, found.failing))
    return _look_for_lasso(explorer)


def _liveness(setting: Setting, engine: Engine) -> Look:
    """The engine is led to the states of the spec; only loops are looked for."""
    rules = attrs.evolve(make_rules(engine, setting), invariants=(), lockstep=False)
    explorer = EngineExplorer(rules, engine, setting.environment)
    explorer.run(Budget(states=MAX_STATES_DRAINED))
    return _look_for_lasso(explorer)


def _look_for_lasso(explorer: EngineExplorer) -> Look:
    found = explorer.found
    if found.lasso is not None:
        return Look(broken=(LIVENESS,), num_actions=len(found.lasso.actions))
    which = "all" if found.is_complete else "the first"
    end = ", then a call failed" if found.failing else ""
    return Look(looked_at=f"{which} {found.num_unique} states{end}")


def _describe(trial: Trial) -> Look:
    names = tuple(breach.name for breach in trial.breaches)
    return Look(broken=names, num_actions=len(trial.steps))


WAYS: dict[str, Way] = {
    "search": _search,
    "lockstep": _lockstep,
    "validate": _validate,
    "machine": _machine,
    "explore": _explore,
    "liveness": _liveness,
}
"""By the name of the checker."""
