"""Processes that look for planted bugs, so that a bug which hangs or dies takes nobody along.

Entry point: `run_all`. A process serves one task after the other; one that does not answer in time
is ended, and a new one takes its place.
"""

from __future__ import annotations

import contextlib
import importlib
import resource
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from attrs import define, field, frozen

from checkers.errors import HarnessError
from checkers.mutations.catch import Look, catch, check_baseline
from checkers.mutations.registry import MUTATIONS
from checkers.processes import describe_end, start_process

LIMIT_S = 60.0
"""Wall-clock time for one task, the start of a process included."""
MEMORY_MIB = 2048
"""Of address space, for each process."""
TICK_S = 0.2


@frozen
class Task:
    """What a process is asked for."""

    name: str
    """Of the bug."""
    is_baseline: bool = False
    """Whether our engine is to be looked at without the bug."""


Answer = tuple[Task, Look | str]
"""What was seen; or how the process came to its end, if it did not answer."""


def run_all(
    tasks: Sequence[Task],
    num_workers: int,
    on_start: Callable[[Task], None],
    limit_s: float = LIMIT_S,
) -> Iterator[Answer]:
    """Yields what came of each task, as it comes. Raises `HarnessError` for a fault of ours."""
    waiting = deque(tasks)
    workers = [Worker(limit_s) for _ in range(min(num_workers, len(waiting)))]
    try:
        while waiting or any(worker.task for worker in workers):
            for worker in workers:
                if worker.task is None and waiting:
                    on_start(waiting[0])
                    worker.give(waiting.popleft())
            busy = [worker for worker in workers if worker.task]
            ready = wait([worker.connection for worker in busy], TICK_S)
            for worker in busy:
                if worker.connection in ready or time.monotonic() > worker.deadline:
                    yield worker.collect()
    finally:
        for worker in workers:
            worker.close()


@define
class Worker:
    """A process, and what it is doing."""

    limit_s: float
    task: Task | None = None
    deadline: float = 0.0
    """On the monotonic clock."""
    connection: Connection = field(init=False)
    process: BaseProcess = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Starts the process. Ctrl-C is for the command alone, which then ends it."""
        self.process, self.connection = start_process(serve)

    def give(self, task: Task) -> None:
        """Hands it a task."""
        self.task, self.deadline = task, time.monotonic() + self.limit_s
        with contextlib.suppress(BrokenPipeError):  # That it has ended is found out in a moment.
            self.connection.send(task)

    def collect(self) -> Answer:
        """What came of its task; a process that has ended, or is too late, is replaced."""
        task, self.task = self.task, None
        assert task is not None, "only a process with a task is asked"
        try:
            answer = self.connection.recv() if self.connection.poll() else None
        except (EOFError, ConnectionResetError):
            answer = describe_end(self.process)
        if isinstance(answer, Look):
            return task, answer
        if isinstance(answer, HarnessError):
            raise answer
        how = answer or f"did not come to an end within {self.limit_s:g} s"
        self.close()
        self.start()
        return task, how

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def serve(connection: Connection) -> None:
    """Answers one task after the other, until there are no more."""
    # What an engine prints is no part of the report.
    sys.stdout = sys.stderr
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # Some systems have no such limit.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MIB << 20, MEMORY_MIB << 20))
    importlib.import_module("checkers.mutations.bugs")
    with contextlib.suppress(EOFError):
        while True:
            connection.send(_do(connection.recv()))


def _do(task: Task) -> Look | HarnessError:
    try:
        wrong = MUTATIONS[task.name]
        return check_baseline(wrong) if task.is_baseline else catch(wrong)
    except Exception:  # noqa: BLE001  (the command says so, and exits as for any fault of ours)
        return HarnessError(f"{task.name}: {traceback.format_exc()}")
