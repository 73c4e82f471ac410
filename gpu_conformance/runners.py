"""What can be put under test: any runner of steps, and how ours is looked into.

Entry points: `Runner`, all that is asked of a foreign one, and `OurRunner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import methodcaller
from typing import Protocol, TypeGuard, runtime_checkable

import torch

from checkers.answers import describe
from gpu_conformance.faults import NoAnswer, ask
from impl.runner.batch import SampledRequest, StepBatch
from impl.runner.model_runner import ModelRunner
from spec.interface import ModelRunnerOutput, SchedulerOutput

Tensor = torch.Tensor

NUMBERS = frozenset(
    {
        *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    }
)
"""Types of rows that can be compared."""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of as many bytes."""
MIN_LOGITS_SIZE = 2
"""Bytes of a number of logits; KV may be kept in fewer."""


class Runner(Protocol):
    """Runs steps. Of one that has no more than this, tokens are compared and nothing else."""

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Runs one step, and returns what each of its requests samples."""


@runtime_checkable
class OpenRunner(Runner, Protocol):
    """A runner that shows its bits."""

    def get_logits(self) -> Mapping[str, Tensor]:
        """Of the last step, by request that samples in it: [num_drafts + 1, vocab_size]."""

    def read_kv(self, block_ids: tuple[int, ...], num_tokens: int) -> Tensor:
        """The KV of the first tokens of a block table: [num_tokens, all layers, k and v]."""


class OurRunner(ModelRunner):
    """Our model runner, whose logits are kept.

    No tap is set for that: a runner that is looked into computes nothing from recorded graphs.
    """

    _logits: Mapping[str, Tensor] = {}

    def get_logits(self) -> Mapping[str, Tensor]:
        """Of the last step, by request that samples in it."""
        return self._logits

    def read_kv(self, block_ids: tuple[int, ...], num_tokens: int) -> Tensor:
        """The KV of the first tokens of a block table."""
        layers = [
            part.flatten(1)
            for layer in range(self.config.num_hidden_layers)
            for part in self.kv_cache.read(layer, list(block_ids), num_tokens)
        ]
        return torch.cat(layers, dim=1)

    def _compute(self, batch: StepBatch) -> list[tuple[SampledRequest, Tensor]]:
        rows = super()._compute(batch)
        self._logits = {sampled.request_id: logits for sampled, logits in rows}
        return rows


def show_logits(
    runner: OpenRunner,
    request_id: str,
    sampled: Sequence[int],
    like: Tensor | None = None,
    limit_s: float = 0.0,
) -> Tensor:
    """The rows of logits of a request that has sampled: [len(sampled), vocab_size].

    They must be of the kind of `like`. Raises `NoAnswer` if the runner shows none within the limit.
    """
    shown: object = ask(limit_s, "get_logits()", methodcaller("get_logits"), runner)
    if not isinstance(shown, Mapping):
        raise NoAnswer(
            f"get_logits() shows {describe(shown)}; expected is a dict of rows by request"
        )
    rows = shown.get(request_id)
    num_tokens = _count_tokens(len(sampled))
    shows = f"get_logits() shows {_describe(rows)} for {request_id}, which samples {num_tokens}"
    if not _is_table(rows) or len(rows) < len(sampled):
        raise NoAnswer(f"{shows}; expected is [{len(sampled)}, vocab_size]")
    _check_kind(rows, shows, MIN_LOGITS_SIZE, like)
    if max(sampled) >= rows.shape[1]:
        raise NoAnswer(f"{shows}: {list(sampled)}; expected are tokens below {rows.shape[1]}")
    return rows[: len(sampled)].detach()


def show_kv(
    runner: OpenRunner,
    block_ids: tuple[int, ...],
    num_tokens: int,
    like: Tensor | None = None,
    limit_s: float = 0.0,
) -> Tensor:
    """The KV of the first tokens of a block table, in rows of the kind of `like`.

    Raises `NoAnswer` if the runner shows none within the limit.
    """
    call = methodcaller("read_kv", block_ids, num_tokens)
    rows: object = ask(limit_s, "read_kv()", call, runner)
    shows = f"read_kv() shows {_describe(rows)} for {_count_tokens(num_tokens)}"
    if not _is_table(rows) or len(rows) != num_tokens:
        raise NoAnswer(f"{shows}; expected is [{num_tokens}, all layers, k and v]")
    _check_kind(rows, shows, min(BITS), like)
    return rows.detach()


def _is_table(rows: object) -> TypeGuard[Tensor]:
    """Whether there are rows, and something in them."""
    if not isinstance(rows, Tensor) or rows.is_nested:
        return False
    return rows.dim() == 2 and rows.shape[1] > 0


def _check_kind(rows: Tensor, shows: str, min_size: int, like: Tensor | None) -> None:
    """Raises `NoAnswer` for what is no number, and for rows of another kind than before."""
    is_dense = rows.layout == torch.strided and not rows.is_meta
    if not is_dense or rows.dtype not in NUMBERS or rows.element_size() < min_size:
        raise NoAnswer(
            f"{shows}; expected are real numbers of {8 * min_size} to {8 * max(BITS)} bits, in a "
            "dense tensor"
        )
    if like is not None and _kind_of(rows) != _kind_of(like):
        raise NoAnswer(f"{shows}; a row before it was {_describe(like[0])}")


def _kind_of(rows: Tensor) -> tuple[torch.dtype, torch.device, int]:
    return rows.dtype, rows.device, rows.shape[1]


def _count_tokens(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"


def _describe(rows: object) -> str:
    if not isinstance(rows, Tensor):
        return describe(rows)
    if rows.is_nested:
        return "a nested tensor"
    dtype, layout = (str(each).removeprefix("torch.") for each in (rows.dtype, rows.layout))
    device = "" if rows.device.type == "cpu" else f" on {rows.device}"
    return f"{list(rows.shape)} of {dtype}{'' if layout == 'strided' else f' {layout}'}{device}"


@contextmanager
def cpu_threads(num_threads: int) -> Iterator[None]:
    """Lets torch use so many threads of the CPU for as long as the block lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bits_of(rows: Tensor) -> Tensor:
    """The same numbers as whole numbers: NaN equals itself, and 0 is not -0."""
    return rows.contiguous().view(BITS[rows.element_size()])
