"""Processes that judge mutants: forked, so that what is made once is there for all of them.

Entry point: `judge_all`.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.pool
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from attrs import define

from checkers.mutations.systematic.judge import Bench, Fate
from checkers.mutations.systematic.mutants import Mutant

CONTEXT = multiprocessing.get_context("fork")
LIMIT_S = 600.0
"""Wall-clock time in which no process finishes a mutant: none of them is left."""
MEMORY_MIB = 4096
"""Of address space, for each process."""


class LostWorkersError(Exception):
    """The processes judge nothing any more. The message says so, and what helps."""


@define
class _Inherited:
    """What a forked process has from its parent, since code objects cannot be sent."""

    bench: Bench | None = None
    mutants: Sequence[Mutant] = ()


_INHERITED = _Inherited()


def judge_all(
    bench: Bench, mutants: Sequence[Mutant], num_workers: int, deadline: float
) -> Iterator[tuple[Mutant, Fate]]:
    """Yields what became of each mutant, as it comes, until the deadline on the monotonic clock.

    Raises `LostWorkersError` if nothing comes any more.
    """
    _INHERITED.bench, _INHERITED.mutants = bench, mutants
    gc.collect()
    gc.freeze()  # Else every process would copy all that it goes through.
    try:
        with CONTEXT.Pool(num_workers, _begin) as pool:
            fates = pool.imap_unordered(_judge, range(len(mutants)))
            for _ in mutants:
                answer = _wait(fates, deadline)
                if answer is None:
                    return
                yield mutants[answer[0]], answer[1]
    finally:
        gc.unfreeze()


def _wait(
    fates: multiprocessing.pool.IMapIterator[tuple[int, Fate]], deadline: float
) -> tuple[int, Fate] | None:
    """The next answer; None once the time is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        return None
    try:
        return fates.next(timeout=min(left, LIMIT_S))
    except multiprocessing.TimeoutError:
        if left <= LIMIT_S:
            return None
        raise LostWorkersError(
            f"no mutant was finished within {LIMIT_S:g} s, so a process must have ended; "
            "give it more memory, or name fewer settings"
        ) from None


def _begin() -> None:
    """Ctrl-C is for the command alone, which then ends the processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr
    with contextlib.suppress(ValueError, OSError):  # Some systems have no such limit.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MIB << 20, MEMORY_MIB << 20))


def _judge(index: int) -> tuple[int, Fate]:
    assert _INHERITED.bench is not None, "a process is forked once there is something to do"
    return index, _INHERITED.bench.judge(_INHERITED.mutants[index])
