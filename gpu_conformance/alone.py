"""The baseline: what each request computes alone, its prompt in one step, on the same runner.

Entry point: `compute_alone`.
"""

from __future__ import annotations

import torch

from gpu_conformance.faults import RunnerFault
from gpu_conformance.follow import follow
from gpu_conformance.ledger import Ledger, Part
from gpu_conformance.runners import OpenRunner, Runner, show_kv, show_logits
from gpu_conformance.subject import Subject
from gpu_conformance.way import make_way
from spec.interface import ModelRunnerOutput, NewRequest

Tensor = torch.Tensor


class Alone:
    """All that a request computes. What a runner does not show is None."""

    def __init__(
        self, request: NewRequest, like: Alone | None = None, limit_s: float = 0.0
    ) -> None:
        # Who was computed before, if anybody: all rows of a runner are of one kind.
        self._like = like
        self._limit_s = limit_s
        # Prompt and output.
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(request.prompt_token_ids)
        # [num_output_tokens, vocab_size]: the first is that of the last prompt token.
        self.logits: Tensor | None = None
        # [num_tokens - 1, all layers, k and v]: the last token is never computed.
        self.kv: Tensor | None = None

    def meet(self, runner: Runner) -> None:
        """Needs nothing of it before it runs."""

    def watch(self, runner: Runner, parts: list[Part], result: ModelRunnerOutput) -> None:
        """Enters what a step has computed."""
        for part in parts:
            sampled = result.sampled_token_ids.get(part.request_id, [])
            self.token_ids += sampled
            if sampled and isinstance(runner, OpenRunner):
                self._enter_bits(runner, part, sampled)

    def _enter_bits(self, runner: OpenRunner, part: Part, sampled: list[int]) -> None:
        """Copies what is shown, which the runner may write over."""
        like = self._like if self.logits is None else self
        logits, kv = (like.logits, like.kv) if like else (None, None)
        rows = show_logits(runner, part.request_id, sampled, logits, self._limit_s)
        self.logits = torch.cat([rows[:0] if self.logits is None else self.logits, rows])
        self.kv = show_kv(runner, part.block_ids, part.end, kv, self._limit_s).clone()

    def find_nan(self) -> str:
        """How many rows are not even numbers; "" if none is."""
        for name, rows in (("logits", self.logits), ("KV", self.kv)):
            num_rows = 0 if rows is None else int(rows.double().isnan().any(dim=1).sum())
            if rows is not None and num_rows:
                return f"NaN is in {num_rows} of {len(rows)} rows of {name}"
        return ""


def compute_alone(subject: Subject, request: NewRequest, like: Alone | None = None) -> Alone:
    """Computes a request with nobody beside it, unchunked, on one thread of the CPU.

    `like` is somebody who was. Raises `RunnerFault` if the runner gives no answer.
    """
    alone = Alone(request, like, subject.limit_s)
    way = make_way([request])
    try:
        follow(way, subject, alone, Ledger(way))
    except RunnerFault as fault:
        raise RunnerFault(f"{request.request_id} alone: {fault.evidence}", fault.trace) from fault
    return alone
