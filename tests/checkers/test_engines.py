from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time

import attrs
import pytest

from checkers import engines
from checkers.engines import Engine, call_within, hang_alarms, load_engine
from checkers.errors import EngineFault, HarnessError
from spec.interface import ModelRunnerOutput, NewRequest, RequestStatus, SchedulerOutput
from spec.scheduler import ReferenceScheduler
from tests.checkers.planted import TINY, HangsInSchedule, SwallowsEverything, engine_of

CALLS = {
    "add_request": (NewRequest(request_id="a", prompt_token_ids=(0,), max_tokens=1),),
    "schedule": (),
    "update_from_output": (SchedulerOutput(), ModelRunnerOutput({})),
    "finish_requests": (["a"], RequestStatus.FINISHED_ABORTED),
    "set_pause_state": ("paused_all",),
    "grammar_ready": ("a",),
    "streaming_update": ("a", None),
    "reset_prefix_cache": (True,),
    "observe": (),
}


def build(make, time_limit_s=10.0, **options):
    """An engine in a small configuration."""
    return engine_of(make, time_limit_s).build(TINY.scheduler, **options)


def failing(call, method):
    """The specification, with one call replaced."""
    return type("Failing", (ReferenceScheduler,), {call: method})


def fault_of(make, call, time_limit_s=10.0):
    """What a call of an engine is found to do."""
    engine = build(make, time_limit_s)
    with hang_alarms(), pytest.raises(EngineFault) as fault:
        getattr(engine, call)(*CALLS[call])
    return fault.value


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["spec", "fast", "spec.scheduler:ReferenceScheduler"])
def test_an_engine_is_found_by_name(name):
    """A short name or module:attribute leads to what builds the engine."""
    engine = load_engine(name)
    assert (name, name == "spec") == (engine.name, engine.is_spec)
    assert [] == engine.build(TINY.scheduler).observe().running


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "engine '' is unknown; name one of fast, spec, vllm, or module:attribute"),
        ("sglang", "engine 'sglang' is unknown; name one of fast, spec, vllm, or module:attribute"),
        ("impl.scheduler:", "engine 'impl.scheduler:' is unknown; name one of fast, spec"),
        ("no_such:Engine", "engine 'no_such:Engine' cannot be imported: ModuleNotFoundError: No"),
        (":Engine", "engine ':Engine' cannot be imported: ValueError: Empty module name; name"),
        ("..impl:Engine", "engine '..impl:Engine' cannot be imported: TypeError: the 'package'"),
        ("impl.scheduler:Slow", "engine 'impl.scheduler:Slow' cannot be imported: AttributeError"),
        ("impl.scheduler:__name__", "engine 'impl.scheduler:__name__' is a str; name a callable"),
        ("raises_here:Engine", "engine 'raises_here:Engine' cannot be imported: OSError: no GPU"),
        ("exits_here:Engine", "engine 'exits_here:Engine' cannot be imported: SystemExit: 0; name"),
        ("typo_here:Engine", "engine 'typo_here:Engine' cannot be imported: SyntaxError: "),
    ],
)
def test_what_is_no_engine_is_one_sentence(tmp_path, monkeypatch, name, message):
    """A name that leads to no engine is refused, with the reason and the way out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raises_here.py").write_text("raise OSError('no GPU')")
    (tmp_path / "exits_here.py").write_text("raise SystemExit(0)")
    (tmp_path / "typo_here.py").write_text("class")
    with pytest.raises(HarnessError) as refused:
        load_engine(name)
    assert str(refused.value).startswith(message)


def test_a_module_is_found_where_the_command_is_called(tmp_path, monkeypatch):
    """An engine beside the user is found, though an installed command does not look there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    text = "from spec.scheduler import ReferenceScheduler as Mine"
    (tmp_path / "beside_the_user.py").write_text(text)
    assert ReferenceScheduler is load_engine("beside_the_user:Mine").make


# ---- calls ---------------------------------------------------------------------------------------


def test_a_guarded_engine_does_as_the_engine():
    """The guard changes no argument and no answer."""
    engine, spec = build(ReferenceScheduler), ReferenceScheduler(TINY.scheduler)
    for call, arguments in CALLS.items():
        assert getattr(spec, call)(*arguments) == getattr(engine, call)(*arguments)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_raises_is_a_fault(call):
    """Whatever a call raises is the engine's fault, with the traceback."""

    def method(self, *arguments):
        raise LookupError("where is it?")

    fault = fault_of(failing(call, method), call)
    assert ("engine_raises", f"{call} raised LookupError: where is it?") == (
        fault.name,
        fault.evidence,
    )
    assert fault.traceback.rstrip().endswith("LookupError: where is it?")


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_does_not_return_is_a_fault(call):
    """A call is interrupted when it takes too long."""

    def method(self, *arguments):
        while True:
            pass

    fault = fault_of(failing(call, method), call, time_limit_s=0.1)
    assert ("engine_hangs", f"{call} did not return within 0.1 s") == (fault.name, fault.evidence)


@pytest.mark.parametrize("make", [HangsInSchedule, SwallowsEverything])
def test_an_interrupted_engine_leaves_nothing_behind(make):
    """After a hang the next engine is on its own: nobody traces it, and no alarm is left."""
    trace = sys.gettrace()
    for _ in range(2):
        assert "engine_hangs" == fault_of(make, "schedule", time_limit_s=0.1).name
        assert {} == build(ReferenceScheduler).schedule().num_scheduled_tokens
    assert trace is sys.gettrace()
    assert (0.0, 0.0) == signal.getitimer(signal.ITIMER_REAL)


def test_nobody_is_interrupted_while_memory_is_cleared_up():
    """A collector's callback takes as long as it likes, and what comes after it is interrupted."""
    phases, interruptions = [], []

    def callback(phase, info):
        try:
            if not phases:
                time.sleep(0.3)
        except BaseException as error:  # noqa: BLE001  (what interrupts is no Exception)
            interruptions.append(error)
        phases.append(phase)

    class CollectsAndHangs(ReferenceScheduler):
        def schedule(self):
            gc.collect()
            while True:
                pass

    gc.collect()  # What other tests have left is not cleared up here.
    gc.callbacks.append(callback)
    try:
        assert "engine_hangs" == fault_of(CollectsAndHangs, "schedule", time_limit_s=0.1).name
    finally:
        gc.callbacks.remove(callback)
    assert ["start", "stop"] == phases[:2]
    assert [] == interruptions


def test_an_engine_is_not_interrupted_again_while_memory_is_cleared_up():
    """A collector's callback that runs in a handler of the engine is no line of the engine."""
    interruptions = []

    def callback(phase, info):
        try:
            info = dict(info)
        except BaseException as error:  # noqa: BLE001  (what interrupts is no Exception)
            interruptions.append(error)

    watchdog = engines._Watchdog()
    watchdog.start(limit_s=1.0)
    gc.callbacks.append(callback)
    sys.settrace(watchdog._on_next_line)
    try:
        gc.collect()
    finally:
        sys.settrace(None)
        gc.callbacks.remove(callback)
    assert [] == interruptions


def test_an_engine_that_has_returned_is_not_interrupted(monkeypatch):
    """Whatever runs while the watchdog is told that a call is over does not count as the call."""
    stop, taken = engines._Watchdog.stop, []

    def take_a_while():
        time.sleep(0.3)
        taken.append(True)

    def stop_slowly(self):
        take_a_while()
        stop(self)

    monkeypatch.setattr(engines._Watchdog, "stop", stop_slowly)
    engine = Engine("quick", ReferenceScheduler, 0.1).build(TINY.scheduler)
    with hang_alarms():
        assert {} == engine.schedule().num_scheduled_tokens
    assert [True] * 2 == taken


class EndsTheProcess(ReferenceScheduler):
    """An engine that takes the process along."""

    def schedule(self):
        """Ends it."""
        os._exit(0)


def test_an_engine_that_would_end_the_process_is_a_finding():
    """Nobody would be left to tell, and the exit code would say that all is well."""
    end = os._exit
    fault = fault_of(EndsTheProcess, "schedule")
    assert ("engine_raises", "schedule raised SystemExit: os._exit(0)") == (
        fault.name,
        fault.evidence,
    )
    assert end is os._exit


def test_a_forked_process_may_end_itself():
    """What is forked while an engine is watched is not the engine."""
    with hang_alarms():
        child = os.fork()
        if child == 0:
            os._exit(7)
        _, status = os.waitpid(child, 0)
    assert 7 == os.waitstatus_to_exitcode(status)


def test_a_number_that_counts_nothing_is_no_answer():
    """Beyond 64 bits nothing is counted, and it could not even be shown."""

    class Grants(ReferenceScheduler):
        def schedule(self):
            return SchedulerOutput({"a": 10**5000})

    fault = fault_of(Grants, "schedule")
    told = "schedule().num_scheduled_tokens['a'] has 16610 bits, expected a whole number of at most"
    assert ("engine_answers", f"{told} 64") == (fault.name, fault.evidence)


class GoesOnWriting(ReferenceScheduler):
    """An engine that goes on using a list which it has handed over."""

    def schedule(self):
        """Remembers the step."""
        self.planned = super().schedule()
        return self.planned

    def add_request(self, new):
        """Writes into it."""
        self.planned.finished_req_ids.append(new.request_id)
        return super().add_request(new)


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_step_in_flight_stays_as_it_was_handed_over(is_trusted):
    """A worker may read it late; who is trusted is not asked, which saves time."""
    engine = Engine("writing", GoesOnWriting, 1.0).build(TINY.scheduler, is_trusted=is_trusted)
    first = engine.schedule()
    engine.add_request(attrs.evolve(TINY.environment.shapes[0], request_id="A"))
    if is_trusted:
        assert {} == engine.update_from_output(first, ModelRunnerOutput({}))
        return
    with pytest.raises(EngineFault) as fault:
        engine.update_from_output(first, ModelRunnerOutput({}))
    told = "finished_req_ids of a step in flight was [] when schedule() returned it, and is ['A']"
    assert ("engine_answers", f"{told} now") == (fault.value.name, fault.value.evidence)


def test_any_call_may_be_given_a_limit():
    """What returns in time is handed on, what does not is interrupted."""

    def spin(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        return "done"

    with hang_alarms():
        assert "done" == call_within(5.0, spin, 0.0)
        with pytest.raises(EngineFault, match=r"did not return within 0\.1 s"):
            call_within(0.1, spin, 5.0)


def test_alarms_may_be_nested():
    """The end of an inner watch leaves the outer one on."""
    with hang_alarms():
        with hang_alarms():
            pass
        with pytest.raises(EngineFault, match="did not return"):
            build(HangsInSchedule, time_limit_s=0.1).schedule()


def test_there_are_no_alarms_in_other_threads():
    """Outside of the main thread an engine runs without a time limit."""
    answers = []

    def work():
        with hang_alarms():
            answers.append(build(ReferenceScheduler).schedule())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [SchedulerOutput()] == answers


def test_ctrl_c_is_no_fault_of_the_engine():
    """A KeyboardInterrupt in a call of an engine is the user's."""

    def method(self):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(failing("schedule", method)).schedule()


def test_a_constructor_is_guarded():
    """An engine that cannot be built has a fault like any other."""
    with pytest.raises(EngineFault, match="__init__ raised TypeError: "):
        Engine("too few", lambda: None).build(TINY.scheduler)


def test_what_is_no_scheduler_has_a_fault():
    """A constructor may return anything; the first call shows it."""
    engine = Engine("nothing", lambda _: None).build(TINY.scheduler)
    with pytest.raises(EngineFault, match="has no attribute 'schedule'"):
        engine.schedule()


# ---- answers -------------------------------------------------------------------------------------


def test_answers_are_looked_into_unless_trusted():
    """A wrong type is a fault with its place; whoever trusts an engine gets what it says."""
    make = failing("update_from_output", lambda *_: {0: {}})
    fault = fault_of(make, "update_from_output")
    assert "update_from_output()[0] is of type dict, expected a list" == fault.evidence
    trusted = build(make, is_trusted=True)
    assert {0: {}} == trusted.update_from_output(*CALLS["update_from_output"])
