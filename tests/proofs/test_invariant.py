from __future__ import annotations

import random

import pytest

from checkers.configs import load_settings
from checkers.walk import draw_action
from proofs.invariant import CLAUSES, broken_clauses, clause
from spec.model import Model
from spec.scheduler import ReferenceScheduler

SETTINGS = [
    setting
    for setting in load_settings().values()
    if setting.scheduler.wait_for_stale_output
    and setting.scheduler.stop_order == "stop_length"
    # No proof is about drafts, nor about requests that wait for their grammar.
    and not setting.scheduler.num_speculative_tokens
    and not any(shape.structured_output for shape in setting.environment.shapes)
]


def walk(setting, seed, num_actions=120):
    """Yields the states of a random walk of the spec: the scheduler and the tokens in flight."""
    scheduler = ReferenceScheduler(setting.scheduler)
    model, rng = Model(setting.environment, scheduler), random.Random(seed)
    yield scheduler, []
    for _ in range(num_actions):
        action = draw_action(model, rng)
        if action is None:
            return
        model.do(action)
        yield scheduler, [step.output.num_scheduled_tokens for step in model.in_flight]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_reachable_states_satisfy_the_invariant(setting):
    """Whatever the spec really gets to satisfies every clause: none is too strong."""
    for seed in range(6):
        for scheduler, steps in walk(setting, seed):
            assert [] == broken_clauses(scheduler, steps)


DAMAGES = {
    "the_configuration_makes_sense": lambda s: setattr(s, "config", Changed(s.config)),
    "at_most_max_num_seqs_run": lambda s: s.running.extend(s.running * 3),
    "blocks_are_conserved": lambda s: setattr(s.block_pool, "num_free_blocks", -1),
    "tokens_are_in_bounds": lambda s: setattr(s.running[0], "num_output_tokens", 99),
    "computed_is_within_tokens": lambda s: setattr(s.running[0], "num_computed_tokens", 99),
    "stale_output_is_in_flight": lambda s: setattr(s.running[0], "num_stale_output_tokens", 99),
    "running_requests_run": lambda s: setattr(s.running[0], "status", 1),
    "blocks_are_exact": lambda s: setattr(s.running[0], "num_blocks", 99),
    "running_requests_have_no_stale_output": lambda s: setattr(
        s.running[0], "num_stale_output_tokens", 1
    ),
    "the_last_token_is_not_settled": lambda s: setattr(s.running[0], "num_in_flight_tokens", 99),
    "placeholders_stand_for_samples": lambda s: setattr(s.running[0], "num_output_placeholders", 9),
    "waiting_requests_wait": lambda s: setattr(s.waiting.items[0], "status", 2),
    "waiting_requests_hold_nothing": lambda s: setattr(s.waiting.items[0], "num_blocks", 1),
    "waiting_is_sorted": lambda s: s.waiting.items.reverse(),
    "steps_end_at_known_tokens": lambda s: setattr(s.running[0], "num_in_flight_tokens", 99),
    "voided_steps_are_counted": lambda s: setattr(s.waiting.items[0], "num_in_flight_tokens", 9),
}


class Changed:
    """A configuration that its validators would refuse."""

    def __init__(self, config):
        self.config = config

    def __getattr__(self, name):
        return 0 if name == "max_num_seqs" else getattr(self.config, name)


@pytest.mark.parametrize("name", DAMAGES)
def test_each_clause_notices_its_damage(name):
    """Every clause can fail: a state that breaks it is named by it."""
    setting = next(s for s in SETTINGS if s.scheduler.policy == "priority")
    for seed in range(40):
        for scheduler, steps in walk(setting, seed):
            if scheduler.running and len(scheduler.waiting.items) > 1:
                DAMAGES[name](scheduler)
                broken = broken_clauses(scheduler, steps)
                assert name in {each.partition(" ")[0] for each in broken}
                return
    pytest.fail("no walk has somebody running and two waiting")


def test_every_clause_can_be_damaged():
    """No clause is left out of the test above."""
    assert list(CLAUSES) == list(DAMAGES)


def test_a_clause_is_written_once():
    """The registry refuses a second clause of a name, and one without a sentence."""

    def blocks_are_exact(config, request):
        """Again."""

    def new_clause(config, request):
        pass

    with pytest.raises(AssertionError, match="written twice"):
        clause("running")(blocks_are_exact)
    with pytest.raises(AssertionError, match="no docstring"):
        clause("running")(new_clause)
