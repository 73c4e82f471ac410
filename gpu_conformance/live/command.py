"""What `schedcheck conform --live` does: each axis for each number type, then the matrix.

Entry point: `conform_live`.
"""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from checkers.errors import EngineFault, HarnessError
from checkers.progress import Progress
from checkers.report import Check
from gpu_conformance.adapters.folder import write_model
from gpu_conformance.command import check_device, choose_axes, try_value
from gpu_conformance.live.bench import LiveBench, LiveOutcome, LiveSubject, make_live_requests
from gpu_conformance.live.beside import EngineBeside
from gpu_conformance.live.compare import TOLERANCES
from gpu_conformance.live.report import (
    check_alone,
    check_live_axis,
    check_live_matrix,
    check_no_answer,
)
from gpu_conformance.registry import Axis, Value
from gpu_conformance.subject import ENGINE_TIMEOUT

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
    engine_timeout: float = ENGINE_TIMEOUT
    """Seconds that an answer may take."""

    @property
    def arguments(self) -> str:
        """What a command line needs to compute the same again."""
        given = ["--device", self.device, "--model", self.model]
        given += ["--tolerance", str(self.tolerance)] if self.tolerance else []
        if self.engine_timeout != ENGINE_TIMEOUT:
            given += ["--engine-timeout", f"{self.engine_timeout:g}"]
        return shlex.join(given)


def conform_live(order: LiveOrder, progress: Progress) -> Iterator[Check]:
    """Yields what was seen for each number type and axis; at the end, the matrix."""
    check_device(order.device)
    axes = choose_live_axes(order.axes)
    for axis, values in axes:
        for value in values:
            try_value(axis, value)
    target = find_target(order.name)
    outcomes: list[tuple[LiveSubject, LiveOutcome]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = order.model
        if model == TINY:
            write_model(Path(folder))
            model = folder
        for dtype in dict.fromkeys(order.dtypes or TOLERANCES):
            progress.say(f"conform {order.name} {dtype}: each request alone")
            engine = EngineBeside(target, model, dtype, order.device, order.engine_timeout)
            subject = LiveSubject(
                name=order.name,
                dtype=dtype,
                device=order.device,
                engine=engine,
                tolerance=order.tolerance or TOLERANCES[dtype],
            )
            with contextlib.closing(engine):
                yield from _check_subject(subject, axes, order.arguments, progress, outcomes)
    yield check_live_matrix(outcomes)


def _check_subject(
    subject: LiveSubject,
    axes: Sequence[tuple[Axis, tuple[Value, ...]]],
    arguments: str,
    progress: Progress,
    outcomes: list[tuple[LiveSubject, LiveOutcome]],
) -> Iterator[Check]:
    """Checks one number type, and adds what came of it to `outcomes`."""
    try:
        bench = LiveBench(subject, make_live_requests())
    except EngineFault as fault:
        yield check_no_answer(subject, fault, arguments)
        return
    yield check_alone(bench)
    for axis, values in axes:
        found = list(_run(bench, axis, values, progress))
        outcomes += [(subject, outcome) for outcome in found]
        yield check_live_axis(subject, axis, found, arguments)


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


def find_target(name: str) -> str:
    """Where the adapter stands: `module:attribute`. Raises `HarnessError` for another name."""
    target = ENGINES.get(name, name)
    if ":" not in target:
        known = ", ".join(sorted(ENGINES))
        raise HarnessError(f"--live {name} is unknown; name {known}, or module:attribute")
    return target
