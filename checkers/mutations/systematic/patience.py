"""An end for what hangs, where nobody guards each call: nothing has moved for too long.

Entry point: `expecting_progress`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TICK_S = 1.5
"""Of CPU time, so that a busy machine makes nobody look as if it hung."""


class HangError(BaseException):
    """Nothing has moved. No `Exception`, so that nothing on its way takes it for one of its own."""


@contextmanager
def expecting_progress(count: Callable[[], int]) -> Iterator[None]:
    """Raises `HangError` in the block if a count stays the same from one tick to the next.

    It needs the main thread.
    """
    last = -1

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if count() == last:
            raise HangError
        last = count()

    old = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, TICK_S, TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
