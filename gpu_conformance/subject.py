"""Who is under test: a model on a backend, in a number type, on a device.

Entry points: `Subject`, and `make_subject` for our own runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from attrs import frozen

from checkers.engines import call_within, import_attribute, importing
from checkers.errors import EngineFault, HarnessError
from gpu_conformance.registry import NotHere
from gpu_conformance.runners import OurRunner, Runner
from gpu_conformance.way import Way
from gpu_conformance.work import SAMPLING, VOCAB_SIZE
from impl.runner.config import ModelConfig
from impl.runner.errors import RunnerError
from impl.runner.graphs import use_graphs
from impl.runner.loading import load_model
from impl.runner.ops.backends import make_ops
from impl.runner.weights import Weights
from spec.interface import NewRequest

MakeRunner = Callable[[Way, int], Runner]
"""Takes the way that it is for, and the number of blocks."""
OWN = "own"
"""The number type of a foreign runner, which does not tell."""
CALLS = ("execute", "get_logits", "read_kv")
"""What a runner may be asked for: a step, and its bits."""
ENGINE_TIMEOUT = 600.0
"""Seconds that a step of a runner, or an answer of a live engine, may take.

An engine may take minutes to start, and the first step to compile its kernels.
"""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@frozen(eq=False, kw_only=True)
class Subject:
    """What is asked to compute the same however it is scheduled."""

    backend: str
    dtype: str
    device: str
    make: MakeRunner
    """Makes a fresh runner, its KV cache empty."""
    config: ModelConfig | None = None
    weights: Weights | None = None
    """What a reference in float64 computes with; None for a foreign runner."""
    is_slow: bool = False
    """Whether a step takes seconds, so that only a few values are tried."""
    is_control: bool = False
    """Whether it must fail: a suite that finds nothing here finds nothing anywhere."""
    limit_s: float = ENGINE_TIMEOUT
    """How long a step may take, or anything else that a runner is asked for."""

    @property
    def name(self) -> str:
        """As reports call it."""
        return f"{self.backend}-{self.dtype}"

    def make_within(self, way: Way, num_blocks: int) -> Runner:
        """Makes a fresh runner. Raises `HarnessError` if that takes longer than a step may."""
        try:
            return call_within(self.limit_s, partial(self.make, way), num_blocks)
        except EngineFault as fault:
            raise HarnessError(
                f"{_cannot_be_made(self.backend, way, num_blocks)}: it {fault.evidence}"
            ) from None


def make_subject(
    model: str, backend: str, dtype: str, device: str, *, poison: bool = True
) -> Subject:
    """Puts our runner under test, with a model by what a person types.

    A backend `module:attribute` is a foreign runner, with a model of its own. Raises `HarnessError`
    if the model or the backend cannot be had.
    """
    if is_foreign(backend):
        return _make_foreign(backend, device)
    try:
        ops = make_ops(backend, device, DTYPES[dtype])
        config, weights = load_model(model, device, DTYPES[dtype])
    except (RunnerError, ImportError, OSError) as error:
        raise HarnessError(f"{model} on {backend}, {dtype}, {device}: {error}") from error

    def make(way: Way, num_blocks: int) -> OurRunner:
        runner = OurRunner(
            config,
            weights,
            ops,
            way.config.block_size,
            num_blocks,
            sampling_params=SAMPLING,
            poison=poison,
        )
        if way.graph_bucket:
            use_graphs(runner, (way.graph_bucket,))
        return runner

    return Subject(
        backend=backend,
        dtype=dtype,
        device=device,
        make=make,
        config=config,
        weights=weights,
        is_slow=is_slow(backend, device),
        is_control=is_control(backend),
    )


def check_backend(backend: str, dtype: str, device: str) -> None:
    """Raises `HarnessError` unless the backend is there; no model is loaded."""
    if is_foreign(backend):
        find_attribute("runner", backend)
        return
    try:
        make_ops(backend, device, DTYPES[dtype])
    except (RunnerError, ImportError) as error:
        raise HarnessError(f"{backend}, {dtype}, {device}: {error}") from error


def check_fits(subject: Subject, requests: Sequence[NewRequest]) -> None:
    """Raises `NotHere` if a request is too long for the model, or has tokens that it lacks."""
    config = subject.config
    if config is None:
        return
    longest = max(len(request.prompt_token_ids) + request.max_tokens for request in requests)
    if longest > config.max_position_embeddings:
        raise NotHere(
            f"max_position_embeddings={config.max_position_embeddings} is too short, since a "
            f"request comes to {longest} tokens; take a model of at least that"
        )
    greatest = max(max(request.prompt_token_ids) for request in requests)
    if greatest >= config.vocab_size:
        raise NotHere(
            f"vocab_size={config.vocab_size} is too small, since prompts have tokens up to "
            f"{greatest}; take a model of {max(greatest + 1, VOCAB_SIZE)} or more"
        )


def find_attribute(what: str, name: str) -> Any:
    """Finds what stands behind `module:attribute`. Raises `HarnessError` if it is no callable."""
    with importing(f"{what} {name}"):
        found = import_attribute(name)
    if not callable(found):
        raise HarnessError(f"{what} {name} is a {type(found).__name__}; name a callable")
    return found


def _make_foreign(name: str, device: str) -> Subject:
    """Finds a foreign runner: a callable that takes block_size and num_blocks."""
    factory = find_attribute("runner", name)

    def make(way: Way, num_blocks: int) -> Runner:
        if way.graph_bucket:
            raise NotHere("a foreign runner fills up steps as it likes")
        try:
            runner: Runner = factory(way.config.block_size, num_blocks)
        except (Exception, SystemExit) as error:
            raise HarnessError(
                f"{_cannot_be_made(name, way, num_blocks)}: {type(error).__name__}: {error}"
            ) from error
        _check_calls(name, runner)
        return runner

    return Subject(backend=name, dtype=OWN, device=device, make=make)


def _cannot_be_made(name: str, way: Way, num_blocks: int) -> str:
    block_size = way.config.block_size
    return f"runner {name} cannot be made of block_size={block_size} and num_blocks={num_blocks}"


def _check_calls(name: str, runner: object) -> None:
    """Raises `HarnessError` for a runner that cannot run, or that shows half of its bits."""
    has = {call: callable(getattr(runner, call, None)) for call in CALLS}
    if not has["execute"]:
        raise HarnessError(f"runner {name} has no execute(SchedulerOutput), which runs a step")
    if has["get_logits"] != has["read_kv"]:
        shown, other = sorted(("get_logits", "read_kv"), key=lambda call: not has[call])
        raise HarnessError(
            f"runner {name} has {shown} and no {other}, and bits need both; add it, or leave out "
            "both to have tokens compared alone"
        )


def is_foreign(backend: str) -> bool:
    """Whether a backend is somebody else's runner, named `module:attribute`."""
    return ":" in backend


def is_slow(backend: str, device: str) -> bool:
    """Whether kernels are interpreted, line by line."""
    return backend == "triton" and device == "cpu"


def is_control(backend: str) -> bool:
    """Whether a backend promises nothing."""
    return backend == "plain"
