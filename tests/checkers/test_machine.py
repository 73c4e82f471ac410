from __future__ import annotations

import re
from collections import Counter

import attrs
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from checkers.configs import load_setting, load_settings
from checkers.errors import HarnessError
from checkers.machine import scheduler_machine
from spec.interface import EngineCoreOutput
from spec.scheduler import ReferenceScheduler

MAX_ACTIONS = 12
TINY = load_setting("tiny")
PLAIN = load_setting("plain")


# ---- engines, most of them broken ----------------------------------------------------------------


class ForgetsLastBlock(ReferenceScheduler):
    """Frees all blocks of a finished request but the last."""

    def _finish(self, request, status):
        request.block_ids = request.block_ids[:-1]
        super()._finish(request, status)


class KeepsWhatIsComputed(ReferenceScheduler):
    """Preempts a request, and leaves it its computed tokens."""

    def _preempt(self, victim):
        num_computed_tokens = victim.num_computed_tokens
        super()._preempt(victim)
        victim.num_computed_tokens = num_computed_tokens


class PreemptsTheFirst(ReferenceScheduler):
    """Preempts the request that has run for the longest time."""

    def _choose_victim(self):
        return self.running[0]


class HasOneSeatTooMany(ReferenceScheduler):
    """Runs one request more than it may."""

    def _has_seat(self):
        return len(self.running) <= self.config.max_num_seqs


class TellsTwice(ReferenceScheduler):
    """Names those who have finished in two steps."""

    def _end_step(self):
        finished_req_ids = list(self.finished_req_ids)
        output = super()._end_step()
        self.finished_req_ids = [] if output.num_scheduled_tokens else finished_req_ids
        return output


class AnswersTheDead(ReferenceScheduler):
    """Sends a client that has left one more output."""

    def update_from_output(self, output, result):
        """Answers for whoever was scheduled, alive or not."""
        dead = [name for name in output.num_scheduled_tokens if name not in self.requests]
        results = super().update_from_output(output, result)
        for name in dead:
            results.setdefault(0, []).append(EngineCoreOutput(name, [0]))
        return results


class Raises(ReferenceScheduler):
    """Cannot preempt."""

    def _preempt(self, victim):
        raise RuntimeError(f"no idea how to preempt {victim.request_id}")


class Hangs(ReferenceScheduler):
    """Waits for ever for a second request to be gone."""

    def add_request(self, new):
        """Never returns the second time."""
        super().add_request(new)
        while len(self.requests) > 1:
            pass


class SaysNothing(ReferenceScheduler):
    """Has no answer when there is nothing to schedule."""

    def schedule(self):
        """Returns nothing, instead of an empty output."""
        return super().schedule() if self.requests else None


class DoesNotStart(ReferenceScheduler):
    """Raises before it has seen a request."""

    def __init__(self, config):
        raise RuntimeError("no device")


class BreaksThenRaises(HasOneSeatTooMany):
    """Falls over what it has done before."""

    def update_from_output(self, output, result):
        """Notices too late what has happened."""
        if len(self.running) > self.config.max_num_seqs:
            raise RuntimeError("too many")
        return super().update_from_output(output, result)


class PublishesNothing(ReferenceScheduler):
    """Has a prefix cache that stays empty, which breaks no rule."""

    def _publish(self, request, num_tokens):
        pass


# ---- what the machine says of them ---------------------------------------------------------------


def find(engine, setting, **options):
    """Runs the machine until it finds something; returns the message."""
    machine = scheduler_machine(engine, [setting], **options)
    enough = settings(machine.TestCase.settings, max_examples=200)
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=enough)
    return str(caught.value)


def num_actions(message):
    """The number of the last row of the table; a row may be two actions, as in "3-4"."""
    return max(int(number) for number in re.findall(r"^  (?:\d+-)?(\d+)  ", message, re.MULTILINE))


@pytest.mark.parametrize("engine", ["spec", "fast"])
def test_our_engines_pass(engine):
    """Whatever happens in any setting, the specification and our own engine keep every promise."""
    run_state_machine_as_test(scheduler_machine(engine))


@pytest.mark.parametrize(
    ("engine", "setting", "rule", "evidence"),
    [
        (ForgetsLastBlock, TINY, "ref_cnt_counts_holders", "has ref_cnt=1, however 0 block tables"),
        (KeepsWhatIsComputed, TINY, "victims_keep_only_their_tokens", "with num_computed_tokens="),
        (PreemptsTheFirst, TINY, "victims_are_the_last_served", "r0 is preempted, however r1 is"),
        (HasOneSeatTooMany, PLAIN, "max_num_seqs_is_kept", "4 requests run, max_num_seqs=3"),
        (TellsTwice, TINY, "finished_ids_are_told_once", "r0"),
        (AnswersTheDead, TINY, "outputs_go_to_the_living", "r0"),
        (Raises, TINY, "engine_raises", "schedule raised RuntimeError: no idea how to preempt r"),
        (SaysNothing, TINY, "engine_answers", "schedule() is None"),
    ],
)
def test_a_planted_fault_is_found_and_shrunk(engine, setting, rule, evidence):
    """A broken engine fails with the rule that it breaks, the evidence, and a short run to it."""
    message = find(engine, setting)
    assert message.startswith(f"error[{rule}]: ")
    assert f"engine {engine.__name__}, setting {setting.name}: block_size=" in message
    assert evidence in message
    assert num_actions(message) <= MAX_ACTIONS


def test_a_hang_is_found():
    """A call that does not return is a finding, too, with the line where it hangs."""
    machine = scheduler_machine(Hangs, ["tiny"], time_limit_s=0.5)
    # Each run that hangs takes its time, so it is not shrunk.
    quick = settings(machine.TestCase.settings, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=r"^error\[engine_hangs\]: ") as caught:
        run_state_machine_as_test(machine, settings=quick)
    assert "Then add_request did not return within 0.5 s." in str(caught.value)
    assert "while len(self.requests) > 1:" in str(caught.value)


def test_an_engine_that_cannot_be_built_is_a_finding():
    """An engine that does not come up is reported like any other fault, with no action before."""
    message = find(DoesNotStart, "tiny")
    assert "Then __init__ raised RuntimeError: no device." in message
    assert "add_request" not in message


def test_lockstep_finds_what_no_invariant_sees():
    """A decision that breaks no rule but is not the specification's fails, and only in lockstep."""
    message = find(PublishesNothing, "prefix")
    assert message.startswith("error[same_as_spec]: ")
    assert "How the spec decided:" in message
    run_state_machine_as_test(scheduler_machine(PublishesNothing, ["prefix"], lockstep=False))


# ---- how the machine drives ----------------------------------------------------------------------


def run_and_watch(setting, **profile):
    """Runs the machine on the specification; returns its machines, after they have ended."""
    machines = []

    class Watched(scheduler_machine("spec", [setting])):
        def teardown(self):
            super().teardown()
            machines.append(self)

    run_state_machine_as_test(Watched, settings=settings(Watched.TestCase.settings, **profile))
    return [machine for machine in machines if machine.trial.steps]


def test_runs_reach_what_the_setting_is_for():
    """A few dozen runs of "plain" meet all that it is for, but for the rarest of its events."""
    wanted = {*PLAIN.witnesses} - {"abort_while_preempted"}
    machines = run_and_watch(PLAIN, max_examples=60, stateful_step_count=40)
    reached = sum((machine.judge.witnesses for machine in machines), Counter())
    assert wanted - {*reached} == set()


def test_a_run_goes_on_when_nothing_is_left_to_do():
    """Idle steps follow the last request's end, and tell the worker that it has finished."""
    alone = attrs.evolve(PLAIN, environment=attrs.evolve(PLAIN.environment, max_arrivals=1))
    machines = run_and_watch(alone, max_examples=20)
    idle = [
        step.outcome.output.finished_req_ids
        for machine in machines
        for step in machine.trial.steps
        if step.outcome.output is not None and not step.outcome.output.num_scheduled_tokens
    ]
    assert ["r0"] in idle
    assert [] in idle


@given(st.none())
@settings(max_examples=1)
def test_what_was_broken_before_a_fault_is_the_finding(nothing):
    """An engine that breaks a rule and then raises is reported for the rule, up to that action."""
    machine = scheduler_machine(BreaksThenRaises, ["plain"])()
    machine.begin("plain", [0, 0, 0, 0])
    with pytest.raises(AssertionError, match=r"error\[max_num_seqs_is_kept\]") as caught:
        machine.engine_step([], 0)
    machine.teardown()
    assert num_actions(str(caught.value)) == 5


def test_without_a_name_all_settings_of_the_machine_are_on_the_menu():
    """The default is every setting that says it is used by the machine."""
    menu = scheduler_machine("spec")().settings
    assert list(menu) == [s.name for s in load_settings().values() if "machine" in s.used_by]


@pytest.mark.parametrize(
    ("engine", "names", "advice"),
    [
        ("no_such_engine", ["tiny"], "engine 'no_such_engine' is unknown"),
        ("spec", ["no_such_setting"], "'no_such_setting' is unknown"),
        ("spec", [], "settings is empty"),
    ],
)
def test_a_machine_that_could_check_nothing_is_refused(engine, names, advice):
    """An unknown engine or setting, or none at all, is said at once, and is no finding."""
    with pytest.raises(HarnessError, match=advice):
        scheduler_machine(engine, names)
