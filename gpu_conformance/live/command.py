"""What `schedcheck conform --live` does: each axis for each number type, then the matrix.

Entry point: `conform_live`.
"""

from __future__ import annotations

import importlib
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from checkers.errors import HarnessError
from checkers.progress import Progress
from checkers.report import Check
from gpu_conformance.adapters.folder import write_model
from gpu_conformance.command import check_device, choose_axes
from gpu_conformance.live.bench import LiveBench, LiveOutcome, LiveSubject, make_live_requests
from gpu_conformance.live.compare import TOLERANCES
from gpu_conformance.live.report import check_alone, check_live_axis, check_live_matrix
from gpu_conformance.registry import Axis, Value

ENGINES = {
    "ours": "gpu_conformance.adapters.ours:Ours",
    "vllm": "gpu_conformance.adapters.vllm:Vllm",
}
"""Short names of adapters: callables that take a model, a number type and a device."""
VALUES: dict[str, tuple[Value, ...]] = {
    "max_num_batched_tokens": (17, 64),
    "prefill_chunk_size": (7, 64),
    "batch_size": (1, 2),
    "prefix_cache": ("same step", "much later"),
    "preemption": (0, 1),
}
"""What is tried unless axes are named. Each value starts an engine, which takes seconds."""
TINY = "tiny"


@frozen(kw_only=True)
class LiveOrder:
    """What is to be checked."""

    name: str
    """Of the engine: a short one, or module:attribute."""
    model: str = TINY
    """A folder of Hugging Face, or a small one of random weights."""
    device: str = "cpu"
    dtypes: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    tolerance: float = 0.0
    """Of log-probabilities; 0 is that of the number type."""

    @property
    def arguments(self) -> str:
        """What a command line needs to compute the same again."""
        given = ["--device", self.device, "--model", self.model]
        return shlex.join([*given, "--tolerance", str(self.tolerance)] if self.tolerance else given)


def conform_live(order: LiveOrder, progress: Progress) -> Iterator[Check]:
    """Yields what was seen for each number type and axis; at the end, the matrix."""
    check_device(order.device)
    axes = choose_live_axes(order.axes)
    make = find_adapter(order.name)
    outcomes: list[tuple[LiveSubject, LiveOutcome]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = order.model
        if model == TINY:
            write_model(Path(folder))
            model = folder
        for dtype in order.dtypes or tuple(TOLERANCES):
            progress.say(f"conform {order.name} {dtype}: each request alone")
            subject = LiveSubject(
                name=order.name,
                dtype=dtype,
                device=order.device,
                engine=make(model, dtype, order.device),
                tolerance=order.tolerance or TOLERANCES[dtype],
            )
            bench = LiveBench(subject, make_live_requests())
            yield check_alone(bench)
            for axis, values in axes:
                found = list(_run(bench, axis, values, progress))
                outcomes += [(subject, outcome) for outcome in found]
                yield check_live_axis(subject, axis, found, order.arguments)
    yield check_live_matrix(outcomes)


def _run(
    bench: LiveBench, axis: Axis, values: Sequence[Value], progress: Progress
) -> Iterator[LiveOutcome]:
    for value in values:
        progress.say(f"conform {bench.subject.name} {bench.subject.dtype}: {axis.name} {value}")
        yield bench.run(axis, value)


def choose_live_axes(names: Sequence[str]) -> list[tuple[Axis, tuple[Value, ...]]]:
    """The axes that are named, or those of `VALUES`, each with its values."""
    return [
        (axis, values or VALUES.get(axis.name, axis.values))
        for axis, values in choose_axes(names or tuple(VALUES))
    ]


def find_adapter(name: str) -> Any:
    """Finds what makes an engine. Raises `HarnessError` if there is none."""
    module_name, _, attribute = ENGINES.get(name, name).partition(":")
    if not attribute:
        known = ", ".join(sorted(ENGINES))
        raise HarnessError(f"--live {name} is unknown; name {known}, or module:attribute")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # An installed command does not look where it is called.
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise HarnessError(f"--live {name} cannot be imported: {error}") from error
