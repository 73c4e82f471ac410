"""Engines by name: `spec`, `fast`, or any `module:attribute` that builds a scheduler.

Entry point: `load_engine`. Every call of an engine is guarded, so that whatever it does becomes a
finding and never a fault of ours.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeVar, cast

from attrs import fields, frozen

from checkers.answers import find_faults
from checkers.errors import EngineFault, HarnessError
from spec.interface import (
    ConfigError,
    ControlledScheduler,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    Observation,
    PauseState,
    RequestStatus,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    StreamingUpdate,
)

EngineFactory = Callable[[SchedulerConfig], Scheduler]

A = TypeVar("A")
T = TypeVar("T")

ENGINES = {
    "spec": "spec.scheduler:ReferenceScheduler",
    "fast": "impl.scheduler:FastScheduler",
    "vllm": "impl.adapters.vllm:Vllm",
}
"""Short names."""


@frozen
class Engine:
    """Something that can be put under test."""

    name: str
    """As given on the command line."""
    make: EngineFactory
    time_limit_s: float = 10.0
    """A call that takes longer is a hang; 0 waits for ever."""

    @property
    def is_spec(self) -> bool:
        """Whether this is the specification itself, which lockstep would compare to itself."""
        return self.name == "spec"

    def build(self, config: SchedulerConfig, *, is_trusted: bool = False) -> Guarded:
        """Builds a fresh engine. Raises `EngineFault` if its constructor raises or hangs.

        Raises `HarnessError` if it is a `ConfigError`: the engine has not what `config` asks for.
        Of one that is trusted, answers are not looked into, which takes time: whoever trusts must
        expect any error in using them, and then run the same again without trust.
        """
        try:
            with _guard("__init__", self.time_limit_s):
                return Guarded(self.make(config), self.time_limit_s, is_trusted=is_trusted)
        except ConfigError as error:
            raise HarnessError(f"engine {self.name!r}: {error}") from error


def load_engine(name: str, time_limit_s: float = 10.0) -> Engine:
    """Finds an engine by name, and lets it `prepare`, if it has that: import what takes long.

    Raises `HarnessError` if there is none.
    """
    target = ENGINES.get(name, name)
    if not target.partition(":")[2]:
        known = ", ".join(sorted(ENGINES))
        raise HarnessError(f"engine {name!r} is unknown; name one of {known}, or module:attribute")
    with importing(f"engine {name!r}"):
        make = import_attribute(target)
        getattr(make, "prepare", _nothing)()
    if not callable(make):
        raise HarnessError(
            f"engine {name!r} is a {type(make).__name__}; "
            "name a callable that takes a SchedulerConfig"
        )
    return Engine(name, cast(EngineFactory, make), time_limit_s)


def import_attribute(target: str) -> Any:
    """Returns what stands behind `module:attribute`; raises whatever its module raises."""
    module_name, _, attribute = target.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # An installed command does not look where it is called.
    return getattr(importlib.import_module(module_name), attribute)


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Lets an import that fails be a `HarnessError`; somebody else's module may fail in any way."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise HarnessError(
            f"{what} cannot be imported: {type(error).__name__}: {error}; "
            "name a module that can, and an attribute of it"
        ) from error


def _nothing() -> None:
    """What most engines have to prepare."""


class Guarded:
    """An engine whose faults in any call become `EngineFault`s."""

    def __init__(self, engine: Scheduler, time_limit_s: float, *, is_trusted: bool) -> None:
        self.engine = engine
        self._time_limit_s = time_limit_s
        self._is_trusted = is_trusted
        # Steps that have not returned, and what they looked like when they were handed over.
        self._in_flight: deque[tuple[SchedulerOutput, dict[str, str]]] = deque()

    def add_request(self, new: NewRequest) -> EngineCoreOutput | None:
        """As the engine."""
        with _guard("add_request", self._time_limit_s):
            refusal = self.engine.add_request(new)
            self._expect(refusal, EngineCoreOutput | None, "add_request()")
        return refusal

    def schedule(self) -> SchedulerOutput:
        """As the engine."""
        with _guard("schedule", self._time_limit_s):
            output = self.engine.schedule()
            self._expect(output, SchedulerOutput, "schedule()")
        if not self._is_trusted:
            self._in_flight.append((output, _show(output)))
        return output

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """As the engine."""
        self._expect_unchanged(output)
        with _guard("update_from_output", self._time_limit_s):
            results = self.engine.update_from_output(output, result)
            self._expect(results, dict[int, list[EngineCoreOutput]], "update_from_output()")
        return results

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """As the engine."""
        with _guard("finish_requests", self._time_limit_s):
            self.engine.finish_requests(request_ids, finished_status)

    def set_pause_state(self, pause_state: PauseState) -> None:
        """As the engine."""
        with _guard("set_pause_state", self._time_limit_s):
            cast(ControlledScheduler, self.engine).set_pause_state(pause_state)

    def grammar_ready(self, request_id: str) -> None:
        """As the engine."""
        with _guard("grammar_ready", self._time_limit_s):
            cast(ControlledScheduler, self.engine).grammar_ready(request_id)

    def finish_recving(self, request_id: str, num_valid_tokens: int) -> None:
        """As the engine."""
        with _guard("finish_recving", self._time_limit_s):
            engine = cast(ControlledScheduler, self.engine)
            engine.finish_recving(request_id, num_valid_tokens)

    def streaming_update(self, request_id: str, update: StreamingUpdate | None) -> None:
        """As the engine."""
        with _guard("streaming_update", self._time_limit_s):
            cast(ControlledScheduler, self.engine).streaming_update(request_id, update)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """As the engine."""
        with _guard("reset_prefix_cache", self._time_limit_s):
            engine = cast(ControlledScheduler, self.engine)
            is_reset = engine.reset_prefix_cache(reset_running_requests)
            self._expect(is_reset, bool, "reset_prefix_cache()")
        return is_reset

    def update_draft_token_ids(self, draft_token_ids: dict[str, list[int]]) -> None:
        """As the engine."""
        with _guard("update_draft_token_ids", self._time_limit_s):
            cast(ControlledScheduler, self.engine).update_draft_token_ids(draft_token_ids)

    def observe(self) -> Observation:
        """As the engine."""
        with _guard("observe", self._time_limit_s):
            seen = self.engine.observe()
            self._expect(seen, Observation, "observe()")
        return seen

    def _expect_unchanged(self, output: SchedulerOutput) -> None:
        """Raises `EngineFault` if a step is not what was handed over: a worker may read it late."""
        while self._in_flight:
            planned, before = self._in_flight.popleft()
            if planned is not output:
                continue
            for name, now in _show(output).items():
                if now != before[name]:
                    raise EngineFault(
                        "engine_answers",
                        f"{name} of a step in flight was {before[name]} when schedule() returned "
                        f"it, and is {now} now",
                    )
            return

    def _expect(self, answer: object, kind: Any, call: str) -> None:
        fault = None if self._is_trusted else next(find_faults(answer, kind, call), None)
        if fault is not None:
            raise EngineFault("engine_answers", fault)


def _show(output: SchedulerOutput) -> dict[str, str]:
    """What each field of a step looks like."""
    return {field.name: repr(getattr(output, field.name)) for field in fields(SchedulerOutput)}


class _Hang(BaseException):
    """The time limit ran out; not an Exception, so that an engine's own handlers let it pass."""


class _Watchdog:
    """Knows when the engine was called, and interrupts a call that takes too long.

    It needs the main thread, and cannot end a call that is stuck in C code. An engine that catches
    everything and goes on is interrupted again, in its handler; two such loops around each other
    are not ended.
    """

    tick_s = 0.1

    def __init__(self) -> None:
        self._called_at = 0.0
        self._limit_s = 0.0
        # Who traced before the interruption, such as a debugger; set while ours does.
        self._other_trace: list[Any] = []

    def start(self, limit_s: float) -> None:
        """The engine is called."""
        self._limit_s = limit_s
        self._called_at = time.monotonic()

    def stop(self) -> None:
        """The engine has returned."""
        self._called_at = 0.0
        if self._other_trace:
            sys.settrace(self._other_trace.pop())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks at the clock in the block, at every tick."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = signal.signal(signal.SIGALRM, self._on_tick)
        old_timer = signal.setitimer(signal.ITIMER_REAL, self.tick_s, self.tick_s)
        try:
            with self._keeping_the_process():
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, *old_timer)
            signal.signal(signal.SIGALRM, old)

    @contextmanager
    def _keeping_the_process(self) -> Iterator[None]:
        """Lets an engine that would end this process raise instead: no verdict would be left.

        Processes that are forked meanwhile end as ever.
        """
        end, process = os._exit, os.getpid()

        def refuse(status: int) -> NoReturn:
            if self._called_at and os.getpid() == process:
                raise SystemExit(f"os._exit({status})")
            end(status)

        vars(os)["_exit"] = refuse
        try:
            yield
        finally:
            vars(os)["_exit"] = end

    def _on_tick(self, number: int, frame: FrameType | None) -> None:
        is_running = self._called_at and frame is not None and not _is_untouchable(frame)
        if is_running and 0 < self._limit_s < time.monotonic() - self._called_at:
            self._interrupt(frame)

    def _interrupt(self, frame: FrameType | None) -> None:
        if not self._other_trace:
            self._other_trace.append(sys.gettrace())
        while frame is not None and frame.f_code.co_filename != __file__:
            frame.f_trace = self._on_next_line
            frame = frame.f_back
        sys.settrace(self._on_next_line)
        raise _Hang

    def _on_next_line(self, frame: FrameType, event: str, arg: object) -> Any:
        """Interrupts once more if the engine goes on, which is in a handler that has caught it."""
        is_ours = frame.f_code.co_filename == __file__ or _is_collecting(frame)
        if self._called_at and event == "line" and not is_ours:
            raise _Hang
        return self._on_next_line


_WATCHDOG = _Watchdog()
hang_alarms = _WATCHDOG.watching


def call_within(limit_s: float, call: Callable[[A], T], argument: A) -> T:
    """Calls; raises `EngineFault` if that takes so many seconds, while `hang_alarms` are on."""
    _WATCHDOG.start(limit_s)
    try:
        try:
            return call(argument)
        finally:
            _WATCHDOG.stop()
    except _Hang as hang:
        evidence = f"did not return within {limit_s:g} s"
        raise EngineFault("engine_hangs", evidence, _format_place(hang.__traceback__)) from None


class _guard:  # noqa: N801  (reads as a statement: `with _guard("schedule", 10)`)
    """Turns whatever an engine's call raises into an `EngineFault`."""

    __slots__ = ("_call", "_limit_s")

    def __init__(self, call: str, time_limit_s: float) -> None:
        self._call = call
        self._limit_s = time_limit_s

    def __enter__(self) -> None:
        _WATCHDOG.start(self._limit_s)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _WATCHDOG.stop()
        if error is None or isinstance(error, KeyboardInterrupt | EngineFault | ConfigError):
            return
        if isinstance(error, _Hang):
            evidence = f"{self._call} did not return within {self._limit_s:g} s"
            raise EngineFault("engine_hangs", evidence, _format_place(trace)) from None
        evidence = f"{self._call} raised {type(error).__name__}: {error}"
        # Of the traceback, the engine's part.
        own = trace and trace.tb_next
        lines = "".join(traceback.format_exception(kind, error, own))
        raise EngineFault("engine_raises", evidence, lines) from None


def _format_place(trace: TracebackType | None) -> str:
    """Where the engine was when it was interrupted."""
    lines = [line for line in traceback.extract_tb(trace) if line.filename != __file__]
    return "".join(traceback.format_list(lines))


def _is_untouchable(frame: FrameType) -> bool:
    """Whether the engine has just returned, or is about to be called, or memory is cleared up."""
    if _is_collecting(frame):
        return True
    above: FrameType | None = frame
    while above is not None and above.f_code.co_filename != __file__:
        above = above.f_back
    is_between = above is frame and frame.f_code is call_within.__code__
    return (
        above is None
        or is_between
        or above.f_code.co_qualname.startswith(("_guard.", "_Watchdog."))
    )


def _is_collecting(frame: FrameType) -> bool:
    """Whether memory is cleared up: a collector's callback runs.

    It runs in the middle of some instruction. Who is interrupted there swallows it, and the
    interpreter may not survive that a trace begins there; the next tick, or line, comes soon.
    """
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    above: FrameType | None = frame
    while above is not None and above.f_code.co_filename != __file__:
        if above.f_code in callbacks:
            return True
        above = above.f_back
    return False
