"""What `schedcheck conform` does: each axis for each backend and number type, then the matrix.

Entry points: `conform_all` and `list_everything`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator, Sequence

import attrs
import torch
from attrs import frozen

from checkers.engines import hang_alarms, load_engine
from checkers.errors import EngineFault, HarnessError
from checkers.progress import Progress
from checkers.report import Check
from gpu_conformance.bench import Bench, Outcome
from gpu_conformance.bugs.registry import BUGS
from gpu_conformance.registry import AXES, Axis, NotHere, Value
from gpu_conformance.report import (
    check_axis,
    check_baseline,
    check_control,
    check_matrix,
    check_text,
)
from gpu_conformance.subject import (
    DTYPES,
    ENGINE_TIMEOUT,
    OWN,
    check_backend,
    check_fits,
    is_foreign,
    make_subject,
)
from gpu_conformance.text import read_tokenizer
from gpu_conformance.way import make_way
from gpu_conformance.work import WORKS, make_requests, make_text_requests
from impl.runner.config import TINY_MODELS
from spec.interface import ConfigError

DEFAULTS: dict[str, tuple[tuple[str, str], ...]] = {
    "cpu": (
        ("tile", "float32"),
        ("tile", "bfloat16"),
        ("exact", "float32"),
        ("triton", "float32"),
        ("plain", "float32"),
        ("plain", "bfloat16"),
    ),
    "cuda": (
        ("triton", "float32"),
        ("triton", "bfloat16"),
        ("exact", "float32"),
        ("plain", "float32"),
        ("plain", "bfloat16"),
    ),
}
"""Backends and number types of a device. The control comes last."""


@frozen(kw_only=True)
class Order:
    """What is to be checked; where nothing is named, all there is."""

    model: str = "tiny"
    device: str = "cpu"
    backends: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    """NAME or NAME=VALUE."""
    prompt: str = ""
    """A text to compute, in place of prompts of random tokens."""
    engine: str = "fast"
    engine_timeout: float = ENGINE_TIMEOUT

    @property
    def arguments(self) -> str:
        """What a command line needs to compute the same again."""
        given = ["--device", self.device, "--model", self.model, "--engine", self.engine]
        if self.engine_timeout != ENGINE_TIMEOUT:
            given += ["--engine-timeout", f"{self.engine_timeout:g}"]
        return shlex.join([*given, "--prompt", self.prompt] if self.prompt else given)


def conform_all(order: Order, progress: Progress) -> Iterator[Check]:
    """Yields what was seen for each backend and axis; at the end, the matrix."""
    chosen = choose_axes(order.axes)
    pairs, left_out = choose_subjects(order)
    check_order(order, chosen, pairs)
    outcomes: list[Outcome] = []
    untested: dict[tuple[str, str], list[str]] = {}
    for backend, dtype in pairs:
        bench = make_bench(order, backend, dtype)
        progress.say(f"conform {bench.subject.name}: each request alone")
        baseline = check_baseline(bench, order.arguments)
        yield baseline
        if baseline.facts["fault"]:
            left_out.append(f"{bench.subject.name}: computes nothing alone to compare with")
            continue
        if order.prompt:
            yield check_text(bench, read_tokenizer(order.model))
        found: list[Outcome] = []
        for axis, values in chosen:
            found_here = list(_run(bench, axis, values, progress))
            found += found_here
            reasons = _reasons_for_nothing(found_here)
            if reasons:
                untested.setdefault((bench.subject.name, reasons), []).append(axis.name)
            elif not bench.subject.is_control:
                yield check_axis(bench, axis, found_here, order.arguments)
        if bench.subject.is_control:
            yield check_control(bench, found)
        outcomes += found
    left_out += [
        f"{name} without {' '.join(axes)}: {why}" for (name, why), axes in untested.items()
    ]
    yield check_matrix(outcomes, left_out)


def _reasons_for_nothing(outcomes: Sequence[Outcome]) -> str:
    """Why nothing of an axis has run; "" if something has."""
    if not outcomes:
        return "a step takes seconds here; name values with --axis NAME=VALUE"
    if any(not outcome.left_out for outcome in outcomes):
        return ""
    return "; ".join(dict.fromkeys(outcome.left_out for outcome in outcomes))


def _run(
    bench: Bench, axis: Axis, values: Sequence[Value], progress: Progress
) -> Iterator[Outcome]:
    subject = bench.subject
    for value in choose_values(axis, values, subject.is_slow, subject.is_control):
        progress.say(f"conform {bench.subject.name}: {axis.name} {value}")
        yield bench.run(axis, value)


def make_bench(order: Order, backend: str, dtype: str) -> Bench:
    """Puts a backend under test with the text that is given, or a workload of its size.

    Raises `HarnessError` if the model has no room for it.
    """
    subject = make_subject(order.model, backend, dtype, order.device)
    subject = attrs.evolve(subject, limit_s=order.engine_timeout)
    if order.prompt:
        token_ids = read_tokenizer(order.model).encode(order.prompt)
        requests = make_text_requests(token_ids)
    else:
        work = "slow" if subject.is_slow else "tiny" if order.model in TINY_MODELS else "large"
        requests = make_requests(WORKS[work])
    try:
        check_fits(subject, requests)
    except NotHere as reason:
        raise HarnessError(f"{order.model}: {reason}") from reason
    return Bench(subject, requests, order.engine)


# ---- what is asked for ---------------------------------------------------------------------------

SCHEDULER_CALLS = ("add_request", "schedule", "update_from_output", "finish_requests")
"""What a way asks of an engine."""


def check_order(
    order: Order,
    chosen: Sequence[tuple[Axis, tuple[Value, ...]]],
    pairs: Sequence[tuple[str, str]],
) -> None:
    """Raises `HarnessError` for what will not do, before anything is computed."""
    check_engine(order.engine)
    for backend, dtype in pairs:
        check_backend(backend, dtype, order.device)
    for axis, values in chosen:
        for value in values:
            try_value(axis, value)


def check_engine(name: str) -> None:
    """Builds an engine once. Raises `HarnessError` unless it is a scheduler."""
    engine = load_engine(name)
    try:
        with hang_alarms():
            built = engine.build(make_way(make_requests(WORKS["slow"])).config).engine
    except EngineFault as fault:
        raise HarnessError(f"engine {name!r} cannot be built: {fault.evidence}") from fault
    for call in SCHEDULER_CALLS:
        if not callable(getattr(built, call, None)):
            raise HarnessError(
                f"engine {name!r} builds a {type(built).__name__}, which has no {call}(); "
                "name a callable that takes a SchedulerConfig and returns a scheduler"
            )


def try_value(axis: Axis, value: Value) -> None:
    """Raises `HarnessError` for a value that makes no sense, whatever the requests."""
    try:
        axis.apply(make_way(make_requests(WORKS["large"])), value)
    except NotHere:
        return  # The report says so.
    except ConfigError as error:
        raise HarnessError(f"axis {axis.name}={value}: {error}") from error


def choose_axes(names: Sequence[str]) -> list[tuple[Axis, tuple[Value, ...]]]:
    """The axes that are named, or all, each with the values that are; () is all of them.

    Raises `HarnessError` for one that is unknown, or a value that makes no sense.
    """
    importlib.import_module("gpu_conformance.axes")
    chosen: dict[str, tuple[Value, ...]] = {} if names else dict.fromkeys(AXES, ())
    for given in names:
        name, sign, value = given.partition("=")
        if name not in AXES:
            raise HarnessError(f"axis {name!r} is unknown; known are {', '.join(AXES)}")
        values = (_read_value(AXES[name], value),) if sign else ()
        chosen[name] = tuple(dict.fromkeys((*chosen.get(name, ()), *values)))
    return [(AXES[name], values) for name, values in chosen.items()]


def _read_value(axis: Axis, text: str) -> Value:
    """A value as it is written: one that is listed, or a number of those that might be."""
    value = int(text) if re.fullmatch("[0-9]{1,12}", text) else text
    listed = (axis.baseline, *axis.values)
    takes_numbers = any(isinstance(other, int) for other in axis.values)
    if value in listed or (takes_numbers and isinstance(value, int) and 0 < value <= axis.greatest):
        return value
    if axis.takes_paths and text:
        return text
    numbers = f"a whole number from 1 to {axis.greatest}, or " if takes_numbers else ""
    raise HarnessError(
        f"axis {axis.name} has no value {text!r}; name {numbers}one of "
        f"{', '.join(map(str, listed))}"
    )


def choose_values(
    axis: Axis, values: Sequence[Value], is_slow: bool, is_control: bool = False
) -> Sequence[Value]:
    """Those that are named; else a few for a slow backend, one for the control, or all."""
    if values:
        return values
    if is_slow:
        return axis.few
    return axis.values[:1] if is_control else axis.values


def choose_subjects(order: Order) -> tuple[list[tuple[str, str]], list[str]]:
    """The backends and types that are named, or all of the device; and what is left out, and why.

    Raises `HarnessError` if the device is not there, or nothing fits.
    """
    kind = check_device(order.device)
    if order.dtypes and order.backends and all(map(is_foreign, order.backends)):
        raise HarnessError(
            f"--dtype {' '.join(order.dtypes)} is for our backends; "
            f"{' '.join(order.backends)} has a number type of its own: leave out --dtype"
        )
    named = [
        (backend, dtype)
        for backend in dict.fromkeys(order.backends)
        for dtype in _choose_dtypes(backend, order.dtypes)
    ]
    pairs = named or [
        (backend, dtype)
        for backend, dtype in DEFAULTS[kind]
        if not order.dtypes or dtype in order.dtypes
    ]
    if named or importlib.util.find_spec("triton") is not None:
        return pairs, []
    pairs = [pair for pair in pairs if pair[0] != "triton"]
    return pairs, ["triton is left out: it is not installed (pip install 'schedcheck[runner]')"]


def check_device(device: str) -> str:
    """Returns the kind of a device. Raises `HarnessError` if it is unknown, or not there."""
    match = re.fullmatch(r"(cpu)|cuda(?::([0-9]{1,3}))?", device)
    if match is None:
        raise HarnessError(f"--device {device} is unknown; choose cpu, cuda or cuda:1")
    if match[1]:
        return "cpu"
    if not torch.cuda.is_available():
        raise HarnessError("--device cuda: torch finds no CUDA device here; leave it out for a CPU")
    if int(match[2] or 0) >= torch.cuda.device_count():
        raise HarnessError(
            f"--device {device}: torch finds {torch.cuda.device_count()} CUDA devices here, "
            "counted from 0"
        )
    return "cuda"


def _choose_dtypes(backend: str, dtypes: Sequence[str]) -> Sequence[str]:
    """Those of a backend that are asked for. Raises `HarnessError` if it has none of them."""
    if is_foreign(backend):
        return (OWN,)
    has = ("float32",) if backend == "exact" else tuple(DTYPES)
    chosen = [dtype for dtype in has if not dtypes or dtype in dtypes]
    if not chosen:
        raise HarnessError(
            f"--backend {backend} has no {' '.join(dict.fromkeys(dtypes))}, only {' '.join(has)}; "
            f"name --dtype {has[0]}, or another backend"
        )
    return chosen


def list_everything() -> Iterator[str]:
    """Yields a line for each axis, then for each bug."""
    importlib.import_module("gpu_conformance.bugs")
    for axis, _ in choose_axes(()):
        values = " ".join(str(value) for value in axis.values)
        yield f"axis  {axis.name:<20} {axis.rule}"
        yield f"      {'':<20} alone {axis.baseline}; {values}"
    for bug in BUGS.values():
        yield f"bug   {bug.name:<46} {bug.kind:<9} {', '.join(bug.sources) or 'ours'}"
        yield f"      {bug.rule}"
