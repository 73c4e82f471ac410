"""Holds each step of a run against what its requests compute alone: logits, KV and tokens.

Entry point: `Oracle`. Rows are compared bit for bit. Once a request has another token than alone,
its further rows answer another question, and are left out; so are those past its last token, which
a step may compute that was scheduled before that token was known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from attrs import define, frozen

from gpu_conformance.alone import Alone
from gpu_conformance.ledger import Part
from gpu_conformance.runners import OpenRunner, Runner, bits_of, show_kv, show_logits
from spec.interface import ModelRunnerOutput

Tensor = torch.Tensor
Kind = Literal["token", "logits", "KV", "no answer"]


@frozen
class Difference:
    """Where a run first departs from what its request computes alone."""

    kind: Kind
    step: int
    """From 0."""
    part: Part | None
    """What the request had in that step; None if there was no answer."""
    position: int
    """Of the token whose row it is; of a token that is sampled, its own."""
    evidence: str
    trace: str = ""
    """The last lines of the traceback, if somebody raised."""

    def describe(self, block_size: int) -> str:
        """In one sentence."""
        if self.part is None:
            return f"{self.kind}: {self.evidence}"
        part = self.part
        place = f"chunk {part.start} to {part.end - 1} of step {self.step}"
        index, slot = divmod(self.position, block_size)
        if index < len(part.block_ids):
            place += f", block {part.block_ids[index]}, slot {slot}"
        return (
            f"{part.request_id}, position {self.position} ({place}): {self.kind}: {self.evidence}"
        )


@define
class Tally:
    """What was compared, and what differed."""

    num_rows: int = 0
    """Of logits, and of KV: what one token has in all layers is one row."""
    num_differing_rows: int = 0
    num_tokens: int = 0
    num_differing_tokens: int = 0

    def add(self, other: Tally) -> None:
        """Sums up."""
        self.num_rows += other.num_rows
        self.num_differing_rows += other.num_differing_rows
        self.num_tokens += other.num_tokens
        self.num_differing_tokens += other.num_differing_tokens

    @property
    def is_clean(self) -> bool:
        """Whether nothing differed."""
        return not self.num_differing_rows and not self.num_differing_tokens

    @property
    def is_weaker(self) -> bool:
        """Whether tokens are all that was compared, since no bits were shown."""
        return self.num_tokens > 0 and not self.num_rows


class Oracle:
    """Watches one run."""

    def __init__(self, alone: Mapping[str, Alone], limit_s: float = 0.0) -> None:
        self.alone = alone
        self.limit_s = limit_s
        """How long a runner may take to show its bits; 0 is for ever."""
        self.tally = Tally()
        self.first: Difference | None = None
        self.step = -1
        # How many tokens of each request have been sampled, and who has got another one than alone.
        self._num_sampled = dict.fromkeys(alone, 0)
        self._lost: set[str] = set()
        # Rows of KV of each request that are counted already, and those of them that differ.
        self._num_counted = dict.fromkeys(alone, 0)
        self._wrong_kv: dict[str, set[int]] = {name: set() for name in alone}

    def meet(self, runner: Runner) -> None:
        """Needs nothing of it before it runs."""

    def watch(self, runner: Runner, parts: list[Part], result: ModelRunnerOutput) -> None:
        """Compares what a step has computed."""
        self.step += 1
        for part in parts:
            if part.is_new:
                self._num_sampled[part.request_id] = 0
                self._lost.discard(part.request_id)
            sampled = result.sampled_token_ids.get(part.request_id, [])
            is_open = part.request_id not in self._lost
            if isinstance(runner, OpenRunner) and is_open:
                self._compare_kv(part, sampled, runner)
                if sampled and part.is_sampled:
                    self._compare_logits(part, sampled, runner)
            self._compare_tokens(part, sampled)

    def note(self, evidence: str, trace: str) -> None:
        """The run ended without an answer, of which no row is known."""
        if self.first is None:
            self.first = Difference("no answer", self.step + 1, None, -1, evidence, trace)

    # ---- KV --------------------------------------------------------------------------------------

    def _compare_kv(self, part: Part, sampled: list[int], runner: OpenRunner) -> None:
        """Compares all KV that the request has now, not only what this step has written."""
        name, kept = part.request_id, self.alone[part.request_id].kv
        assert kept is not None, "a runner that shows its KV showed it before"
        end = min(part.end - part.count_rejected(sampled), len(kept))
        if part.is_admitted:
            self._num_counted[name], self._wrong_kv[name] = 0, set()
        self.tally.num_rows += max(0, end - self._num_counted[name])
        self._num_counted[name] = max(end, self._num_counted[name])
        shown = show_kv(runner, part.block_ids, end, kept, self.limit_s)
        rows, expected = bits_of(shown), bits_of(kept[:end])
        if not torch.equal(rows, expected):
            self._enter_wrong_kv(part, (rows != expected).any(dim=1).nonzero().flatten().tolist())

    def _enter_wrong_kv(self, part: Part, positions: list[int]) -> None:
        for position in positions:
            if position not in self._wrong_kv[part.request_id]:
                self._wrong_kv[part.request_id].add(position)
                self.tally.num_differing_rows += 1
                self._find("KV", part, position, "another row than alone")

    # ---- logits and tokens -----------------------------------------------------------------------

    def _compare_logits(self, part: Part, sampled: list[int], runner: OpenRunner) -> None:
        alone = self.alone[part.request_id]
        assert alone.logits is not None, "a runner that shows its logits showed them before"
        first = self._num_sampled[part.request_id]
        rows = show_logits(runner, part.request_id, sampled, alone.logits, self.limit_s)
        expected = alone.logits[first : first + len(sampled)]
        self.tally.num_rows += len(expected)
        for number, (row, other) in enumerate(zip(rows, expected, strict=False)):
            if not torch.equal(bits_of(row), bits_of(other)):
                self.tally.num_differing_rows += 1
                position = alone.num_prompt_tokens - 1 + first + number
                self._find("logits", part, position, _describe_logits(row, other))

    def _compare_tokens(self, part: Part, sampled: list[int]) -> None:
        name = part.request_id
        alone = self.alone[name]
        first = alone.num_prompt_tokens + self._num_sampled[name]
        self._num_sampled[name] += len(sampled)
        if part.is_sampled and not sampled:
            self._lose(part, first, "none is sampled, and the prompt is complete")
        for position, (token_id, expected) in enumerate(
            zip(sampled, alone.token_ids[first:], strict=False), first
        ):
            self.tally.num_tokens += 1
            if not part.is_sampled:
                self._lose(part, position, f"{token_id} is sampled, and the prompt is not complete")
            elif token_id != expected:
                self._lose(part, position, f"{token_id}, alone {expected}")

    def _lose(self, part: Part, position: int, evidence: str) -> None:
        self._lost.add(part.request_id)
        self.tally.num_differing_tokens += 1
        self._find("token", part, position, evidence)

    def _find(self, kind: Kind, part: Part | None, position: int, evidence: str) -> None:
        if self.first is None:
            self.first = Difference(kind, self.step, part, position, evidence)


def _describe_logits(row: Tensor, other: Tensor) -> str:
    """How much two rows differ, beside what it takes to change the token."""
    row, other = row.double(), other.double()
    greatest = other.topk(min(2, len(other))).values
    gap, off = float(greatest[0] - greatest[-1]), float((row - other).abs().max())
    size = "NaN" if row.isnan().any() else f"off by up to {off:.1e}"
    return f"{size}, between the two greatest lie {gap:.1e}"
