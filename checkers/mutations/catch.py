"""What the checkers make of one planted bug, and of our engine as it is in the same setting.

Entry points: `catch` and `check_baseline`.
"""

from __future__ import annotations

import time

import attrs

from checkers.counterexample import Counterexample, make_counterexample
from checkers.engines import Engine, load_engine
from checkers.explore import Budget
from checkers.explore_engine import EngineExplorer
from checkers.liveness import run_lasso
from checkers.mutations.look import Look
from checkers.mutations.registry import Mutation, planted
from checkers.mutations.ways import WAYS
from checkers.search import Plan, make_rules, search
from checkers.shrink import Effort
from checkers.table import describe_breach, table_of

PLAN = Plan(num_walks=20, length=100, effort=Effort(seconds=24.0))
"""Enough for every bug that is listed, and so for each baseline."""
ENGINE_TIME_S = 4.0
"""A busy machine may leave a process alone for seconds, and ten walks that hang must have time."""


def catch(wrong: Mutation, by: str = "") -> Look:
    """Plants a bug, and lets a checker look for it: its own, unless another one is named."""
    with planted(wrong):
        return check_baseline(wrong, by)


def check_baseline(wrong: Mutation, by: str = "") -> Look:
    """Lets that checker look at our engine as it is now: if whole, it finds nothing."""
    started = time.process_time()
    engine = load_engine("fast", ENGINE_TIME_S)
    seen = WAYS[by](wrong.setting, engine) if by else _look_for(wrong, engine)
    return attrs.evolve(seen, cpu_s=time.process_time() - started)


def _look_for(wrong: Mutation, engine: Engine) -> Look:
    found = _find_loop(wrong, engine) if wrong.checker == "liveness" else _walk(wrong, engine)
    return Look() if found is None else _describe(found)


def _walk(wrong: Mutation, engine: Engine) -> Counterexample | None:
    plan = attrs.evolve(PLAN, lockstep=not wrong.is_rare)
    return search(engine, [wrong.setting], plan).counterexample


def _find_loop(wrong: Mutation, engine: Engine) -> Counterexample | None:
    """Looks for a loop alone: a bug that keeps somebody waiting breaks other rules long before."""
    rules = attrs.evolve(make_rules(engine, wrong.setting), invariants=(), lockstep=False)
    lasso = EngineExplorer(rules, engine, wrong.setting.environment).run(Budget()).lasso
    if lasso is None:
        return None
    return make_counterexample(
        rules,
        engine,
        run_lasso(rules, engine, lasso),
        setting=wrong.setting.name,
        dialect=wrong.setting.dialect,
        found_by="mutate",
        loop_start=len(lasso.way_in),
    )


def _describe(found: Counterexample) -> Look:
    table = table_of(found.steps, found.config.num_blocks, found.loop_start)
    return Look(
        broken=tuple(breach.name for breach in found.breaches),
        num_actions=len(found.steps),
        lines=(*table, *describe_breach(found.breaches)),
    )
