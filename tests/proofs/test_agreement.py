from __future__ import annotations

import random
from types import SimpleNamespace

import attrs
import pytest

import impl.block_pool
import impl.lifecycle
import impl.request
import impl.scheduler
from checkers.configs import load_settings
from checkers.walk import draw_action
from impl.scheduler import FastScheduler
from proofs.agreement import schedule
from proofs.bounded import Scenario, prove_bounded
from proofs.mutants import MUTANTS, planted
from proofs.symbolic.engine import lent, make_engine, show
from proofs.symbolic.state import Shape
from proofs.theorems.our_engine_equals_the_spec import our_engine_equals_the_spec
from spec.block_pool import CountedBlockPool
from spec.model import Model
from spec.scheduler import ReferenceScheduler
from tests.proofs.scope import has_turns

# Our engine works `decode_until` out anew only when a table changes, and a turn may change none; a
# load names its blocks, and in a counted pool none has a name.
SETTINGS = [
    each
    for each in load_settings().values()
    if not each.scheduler.enable_prefix_caching
    and not each.scheduler.load_kv_async
    and not has_turns(each)
]


def walk(setting, seed, num_actions=120):
    """Yields the spec, with a counted pool, and our engine after each action of a random walk."""
    config = setting.scheduler
    spec = ReferenceScheduler(config, CountedBlockPool(config.num_blocks))
    engine = FastScheduler(config)
    models = [Model(setting.environment, each) for each in (spec, engine)]
    rng = random.Random(seed)
    for _ in range(num_actions):
        action = draw_action(models[0], rng)
        if action is None:
            return
        for model in models:
            model.do(action)
        yield spec, engine


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_built_engine_is_the_one_that_a_run_has(setting):
    """What the theorems start from, our engine really is, wherever a run of it gets to."""
    for seed in range(4):
        for spec, engine in walk(setting, seed):
            with lent():
                built = make_engine(SimpleNamespace(scheduler=spec))
            assert show(engine) == show(built)


def test_what_was_lent_is_taken_back():
    """Our engine's modules have their own names again, after an error too."""
    modules = (impl.scheduler, impl.lifecycle, impl.block_pool, impl.request)
    before = [dict(vars(module)) for module in modules]
    with lent():
        assert before != [dict(vars(module)) for module in modules]
    with pytest.raises(RuntimeError, match="stop"), lent():
        raise RuntimeError("stop")
    assert before == [dict(vars(module)) for module in modules]


def test_a_difference_is_shown_from_both_sides():
    """Where our engine differs, the counterexample tells what each side says."""
    scenario = Scenario(schedule, Shape(num_running=1, num_waiting=1))
    small = attrs.evolve(our_engine_equals_the_spec, scenarios=(scenario,))
    with planted(MUTANTS["our_watermark_is_forgotten"]):
        (proof,) = prove_bounded([small])
    text = "\n".join(proof.failure.lines)
    assert "gate" in text
    assert "our engine" in text
