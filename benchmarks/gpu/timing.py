"""What a computation costs on a GPU, by its own clock. Entry point: `measure_us`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.sizes import Setting
from impl.runner.graphs import record_cuda

NUM_CALLS = 20
NOT_MEASURED = "not measured"


def measure_us(setting: Setting, compute: Callable[[], Any]) -> float | str:
    """Returns what one replay of a recorded computation takes: the median, in microseconds.

    A dry run computes once and measures nothing.
    """
    if setting.device.type != "cuda":
        compute()
        return NOT_MEASURED
    replay = record_cuda(compute)
    for _ in range(3):
        replay()
    times = []
    for _ in range(NUM_CALLS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return round(median(times), 1)
