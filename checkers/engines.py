"""Engines by name: `spec`, `fast`, or any `module:attribute` that builds a scheduler.

Entry point: `load_engine`. Every call of an engine is guarded, so that whatever it does becomes a
finding and never a fault of ours.
"""

from __future__ import annotations

import importlib
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, cast

from attrs import frozen

from checkers.errors import EngineFault, HarnessError
from spec.interface import (
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    Observation,
    RequestStatus,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
)

EngineFactory = Callable[[SchedulerConfig], Scheduler]

ENGINES = {"spec": "spec.scheduler:ReferenceScheduler", "fast": "impl.scheduler:FastScheduler"}
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

    def build(self, config: SchedulerConfig) -> Guarded:
        """Builds a fresh engine. Raises `EngineFault` if its constructor does."""
        with _guard("__init__", self.time_limit_s):
            return Guarded(self.make(config), self.time_limit_s)


def load_engine(name: str, time_limit_s: float = 10.0) -> Engine:
    """Finds an engine by name. Raises `HarnessError` if there is none."""
    target = ENGINES.get(name, name)
    module_name, _, attribute = target.partition(":")
    if not attribute:
        known = ", ".join(sorted(ENGINES))
        raise HarnessError(f"engine {name!r} is unknown; name one of {known}, or module:attribute")
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # An engine's module may fail in any way.
        raise HarnessError(
            f"engine {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(make):
        raise HarnessError(
            f"engine {name!r} is a {type(make).__name__}; "
            "name a callable that takes a SchedulerConfig"
        )
    return Engine(name, cast(EngineFactory, make), time_limit_s)


class Guarded:
    """An engine whose faults in any call become `EngineFault`s."""

    def __init__(self, engine: Scheduler, time_limit_s: float) -> None:
        self.engine = engine
        self._time_limit_s = time_limit_s

    def add_request(self, new: NewRequest) -> None:
        """As the engine."""
        with _guard("add_request", self._time_limit_s):
            self.engine.add_request(new)

    def schedule(self) -> SchedulerOutput:
        """As the engine."""
        with _guard("schedule", self._time_limit_s):
            output = self.engine.schedule()
        return cast(SchedulerOutput, _expect(output, SchedulerOutput, "schedule"))

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """As the engine."""
        with _guard("update_from_output", self._time_limit_s):
            results = self.engine.update_from_output(output, result)
        return cast(
            "dict[int, list[EngineCoreOutput]]", _expect(results, dict, "update_from_output")
        )

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """As the engine."""
        with _guard("finish_requests", self._time_limit_s):
            self.engine.finish_requests(request_ids, finished_status)

    def observe(self) -> Observation:
        """As the engine."""
        with _guard("observe", self._time_limit_s):
            seen = self.engine.observe()
        return cast(Observation, _expect(seen, Observation, "observe"))


def _expect(answer: Any, kind: type, call: str) -> Any:
    if not isinstance(answer, kind):
        raise EngineFault(
            "engine_answers", f"{call} returned {answer!r}, expected a {kind.__name__}"
        )
    return answer


class _Hang(BaseException):
    """The time limit ran out; not an Exception, so that an engine's own handlers let it pass."""


class _Watchdog:
    """Knows when the engine was called, and interrupts a call that takes too long.

    It needs the main thread, and cannot end a call that is stuck in C code.
    """

    tick_s = 0.1

    def __init__(self) -> None:
        self.called_at = 0.0
        self.limit_s = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks at the clock in the block, at every tick."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = signal.signal(signal.SIGALRM, self._on_tick)
        signal.setitimer(signal.ITIMER_REAL, self.tick_s, self.tick_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)

    def _on_tick(self, number: int, frame: FrameType | None) -> None:
        if self.called_at and self.limit_s and time.monotonic() - self.called_at > self.limit_s:
            self.called_at = 0.0
            raise _Hang


_WATCHDOG = _Watchdog()
hang_alarms = _WATCHDOG.watching


class _guard:  # noqa: N801  (reads as a statement: `with _guard("schedule", 10)`)
    """Turns whatever an engine's call raises into an `EngineFault`."""

    __slots__ = ("_call", "_limit_s")

    def __init__(self, call: str, time_limit_s: float) -> None:
        self._call = call
        self._limit_s = time_limit_s

    def __enter__(self) -> None:
        _WATCHDOG.limit_s = self._limit_s
        _WATCHDOG.called_at = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _WATCHDOG.called_at = 0.0
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit | EngineFault):
            return
        lines = "".join(traceback.format_exception(kind, error, trace))
        if isinstance(error, _Hang):
            evidence = f"{self._call} did not return within {self._limit_s:g} s"
            raise EngineFault("engine_hangs", evidence, lines) from None
        evidence = f"{self._call} raised {type(error).__name__}: {error}"
        raise EngineFault("engine_raises", evidence, lines) from None
