"""What the checkers make of one planted bug, and of our engine as it is in the same setting.

Entry points: `catch` and `check_baseline`.
"""

from __future__ import annotations

import time

import attrs
from attrs import frozen

from checkers.counterexample import Counterexample, make_counterexample
from checkers.engines import Engine, load_engine
from checkers.explore import Budget
from checkers.explore_engine import EngineExplorer
from checkers.liveness import run_lasso
from checkers.mutations.registry import Mutation, planted
from checkers.search import Plan, make_rules, search
from checkers.table import describe_breach, table_of

PLAN = Plan(num_walks=20, length=100, shrink_s=8.0)
"""Enough for every bug that is listed, and so for each baseline."""
ENGINE_TIME_S = 2.0


@frozen(kw_only=True)
class Look:
    """What was seen of an engine, with a bug or without."""

    broken: tuple[str, ...] = ()
    """The rules that the last step of the run breaks; none if no run was found."""
    num_actions: int = 0
    """In the shrunk run; of a loop, the way in and the loop once."""
    lines: tuple[str, ...] = ()
    """The run as a table, and its evidence."""
    cpu_s: float = 0.0


def catch(wrong: Mutation) -> Look:
    """Plants a bug, and lets its checker look for it."""
    with planted(wrong):
        return check_baseline(wrong)


def check_baseline(wrong: Mutation) -> Look:
    """Lets the checker of a bug look at our engine as it is now: if whole, it finds nothing."""
    started = time.process_time()
    engine = load_engine("fast", ENGINE_TIME_S)
    found = _find_loop(wrong, engine) if wrong.checker == "liveness" else _walk(wrong, engine)
    seen = Look() if found is None else _describe(found)
    return attrs.evolve(seen, cpu_s=time.process_time() - started)


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
