"""What can be put under test: any runner of steps, and how ours is looked into.

Entry points: `Runner`, all that is asked of a foreign one, and `OurRunner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch

from checkers.answers import describe
from gpu_conformance.faults import NoAnswer
from impl.runner.batch import SampledRequest, StepBatch
from impl.runner.model_runner import ModelRunner
from spec.interface import ModelRunnerOutput, SchedulerOutput

Tensor = torch.Tensor


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


def show_logits(runner: OpenRunner, request_id: str, num_rows: int) -> Tensor:
    """The first rows of logits of a request that has sampled: [num_rows, vocab_size].

    Raises `NoAnswer` if the runner shows none.
    """
    rows = runner.get_logits().get(request_id)
    if not isinstance(rows, Tensor) or rows.dim() != 2 or len(rows) < num_rows:
        raise NoAnswer(
            f"get_logits() shows {_describe(rows)} for {request_id}, which samples {num_rows} "
            f"tokens; expected is [{num_rows}, vocab_size]"
        )
    return rows[:num_rows]


def show_kv(runner: OpenRunner, block_ids: tuple[int, ...], num_tokens: int) -> Tensor:
    """The KV of the first tokens of a block table. Raises `NoAnswer` if the runner shows none."""
    rows = runner.read_kv(block_ids, num_tokens)
    if not isinstance(rows, Tensor) or rows.dim() != 2 or len(rows) != num_tokens:
        raise NoAnswer(
            f"read_kv() shows {_describe(rows)} for {num_tokens} tokens; "
            f"expected is [{num_tokens}, all layers, k and v]"
        )
    return rows


def _describe(rows: object) -> str:
    return str(list(rows.shape)) if isinstance(rows, Tensor) else describe(rows)


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
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()]
    return rows.contiguous().view(kind)
