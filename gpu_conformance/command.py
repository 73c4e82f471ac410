"""What `schedcheck conform` does: each axis for each backend and number type, then the matrix.

Entry points: `conform_all` and `list_everything`.
"""

from __future__ import annotations

import importlib
import importlib.util
import shlex
from collections.abc import Iterator, Sequence

import torch
from attrs import frozen

from checkers.errors import HarnessError
from checkers.progress import Progress
from checkers.report import Check
from gpu_conformance.bench import Bench, Outcome
from gpu_conformance.bugs.registry import BUGS
from gpu_conformance.registry import AXES, Axis, Value
from gpu_conformance.report import (
    check_accuracy,
    check_axis,
    check_control,
    check_matrix,
    check_text,
)
from gpu_conformance.subject import DTYPES, OWN, is_foreign, make_subject
from gpu_conformance.text import read_tokenizer
from gpu_conformance.work import WORKS, make_requests, make_text_requests
from impl.runner.config import TINY_MODELS

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

    @property
    def arguments(self) -> str:
        """What a command line needs to compute the same again."""
        given = ["--device", self.device, "--model", self.model, "--engine", self.engine]
        return shlex.join([*given, "--prompt", self.prompt] if self.prompt else given)


def conform_all(order: Order, progress: Progress) -> Iterator[Check]:
    """Yields what was seen for each backend and axis; at the end, the matrix."""
    chosen = choose_axes(order.axes)
    pairs, left_out = choose_subjects(order)
    outcomes: list[Outcome] = []
    untested: dict[tuple[str, str], list[str]] = {}
    for backend, dtype in pairs:
        bench = make_bench(order, backend, dtype)
        progress.say(f"conform {bench.subject.name}: each request alone")
        if bench.subject.weights is not None:
            yield check_accuracy(bench)
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
    """Puts a backend under test with the text that is given, or a workload of its size."""
    subject = make_subject(order.model, backend, dtype, order.device)
    if order.prompt:
        token_ids = read_tokenizer(order.model).encode(order.prompt)
        return Bench(subject, make_text_requests(token_ids), order.engine)
    work = "slow" if subject.is_slow else "tiny" if order.model in TINY_MODELS else "large"
    return Bench(subject, make_requests(WORKS[work]), order.engine)


# ---- what is asked for ---------------------------------------------------------------------------


def choose_axes(names: Sequence[str]) -> list[tuple[Axis, tuple[Value, ...]]]:
    """The axes that are named, or all, each with the values that are; () is all of them.

    Raises `HarnessError` for one that is unknown.
    """
    importlib.import_module("gpu_conformance.axes")
    chosen: dict[str, tuple[Value, ...]] = {} if names else dict.fromkeys(AXES, ())
    for given in names:
        name, _, value = given.partition("=")
        if name not in AXES:
            raise HarnessError(f"axis {name!r} is unknown; known are {', '.join(AXES)}")
        values = (_read_value(value),) if value else ()
        chosen[name] = (*chosen.get(name, ()), *values)
    return [(AXES[name], values) for name, values in chosen.items()]


def _read_value(text: str) -> Value:
    return int(text) if text.isdecimal() else text


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
    kind = order.device.partition(":")[0]
    if kind not in DEFAULTS:
        raise HarnessError(f"--device {order.device} is unknown; choose cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise HarnessError("--device cuda: torch finds no CUDA device here; leave it out for a CPU")
    named = [(backend, dtype) for backend in order.backends for dtype in _dtypes_of(backend)]
    pairs = [
        (backend, dtype)
        for backend, dtype in named or DEFAULTS[kind]
        if not order.dtypes or dtype in (*order.dtypes, OWN)
    ]
    if not pairs:
        raise HarnessError(f"no backend has {' '.join(order.dtypes)}; leave out --dtype")
    if named or importlib.util.find_spec("triton") is not None:
        return pairs, []
    pairs = [pair for pair in pairs if pair[0] != "triton"]
    return pairs, ["triton is left out: it is not installed (pip install 'schedcheck[runner]')"]


def _dtypes_of(backend: str) -> tuple[str, ...]:
    if is_foreign(backend):
        return (OWN,)
    return ("float32",) if backend == "exact" else tuple(DTYPES)


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
