"""One step as tensors: which tokens, where they stand, where their KV goes, who attends to what.

Entry point: `make_batch`.
"""

from __future__ import annotations

import torch
from attrs import frozen

from impl.runner.ops.interface import AttentionBatch
from impl.runner.requests import RunnerRequest

Tensor = torch.Tensor


@frozen(kw_only=True)
class SampledRequest:
    """A request that samples in a step, and the rows of logits that are its own."""

    request_id: str
    first_logits_row: int
    position: int
    """Of the first token that is sampled."""
    draft_token_ids: list[int]
    """What is verified; there is one row of logits more than drafts."""

    @property
    def logits_slice(self) -> slice:
        """Which rows of logits are its own."""
        end = self.first_logits_row + len(self.draft_token_ids) + 1
        return slice(self.first_logits_row, end)


@frozen(eq=False, kw_only=True)
class StepBatch:
    """One step, all requests packed one after another, n tokens in all."""

    request_ids: list[str]
    """By row of the block tables."""
    token_ids: Tensor
    """[n], int64"""
    slots: Tensor
    """[n], int64: block id * block_size + offset, where the KV of each token goes."""
    attention: AttentionBatch
    """Which request each token belongs to, its position, and the block tables."""
    sampled: list[SampledRequest]
    logits_rows: Tensor
    """[m], int64: the tokens whose logits are asked for."""


@frozen
class Part:
    """What one request computes in a step."""

    request: RunnerRequest
    num_tokens: int
    draft_token_ids: list[int]

    @property
    def positions(self) -> range:
        """Where its tokens stand."""
        start = self.request.num_computed_tokens
        return range(start, start + self.num_tokens)

    @property
    def samples(self) -> bool:
        """Whether the step reaches the last token that is known or drafted."""
        num_tokens = len(self.request.token_ids) + len(self.draft_token_ids)
        return self.positions.stop == num_tokens


def make_batch(parts: list[Part], block_size: int, device: torch.device | str) -> StepBatch:
    """Packs the parts of a step, in order."""
    positions = [position for part in parts for position in part.positions]
    owners = [row for row, part in enumerate(parts) for _ in part.positions]
    slots = [slot for part in parts for slot in compute_slots(part, block_size)]
    token_ids = [token_id for part in parts for token_id in get_input_token_ids(part)]
    sampled, logits_rows = find_sampled(parts)

    def place(numbers: list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=device)

    return StepBatch(
        request_ids=[part.request.request_id for part in parts],
        token_ids=place(token_ids, torch.int64),
        slots=place(slots, torch.int64),
        attention=AttentionBatch(
            block_tables=make_block_tables(parts).to(device),
            request_of_token=place(owners, torch.int32),
            positions=place(positions, torch.int32),
        ),
        sampled=sampled,
        logits_rows=place(logits_rows, torch.int64),
    )


def get_input_token_ids(part: Part) -> list[int]:
    """Returns the tokens that a request computes: those known, then drafts.

    A draft of -1 stands for what a drafter of the runner has guessed. This runner has none, so any
    token does: the draft equals nothing that is sampled, and is rejected.
    """
    drafts = [max(token_id, 0) for token_id in part.draft_token_ids]
    positions = part.positions
    return (part.request.token_ids + drafts)[positions.start : positions.stop]


def compute_slots(part: Part, block_size: int) -> list[int]:
    """Returns where the KV of each token goes."""
    block_ids = part.request.block_ids
    return [
        block_ids[position // block_size] * block_size + position % block_size
        for position in part.positions
    ]


def make_block_tables(parts: list[Part]) -> Tensor:
    """Returns the block tables, filled up with the null block: [num_reqs, max_blocks], int32."""
    tables = [part.request.block_ids for part in parts]
    max_blocks = max(map(len, tables))
    return torch.tensor(
        [table + [0] * (max_blocks - len(table)) for table in tables], dtype=torch.int32
    )


def find_sampled(parts: list[Part]) -> tuple[list[SampledRequest], list[int]]:
    """Returns who samples, and from which tokens' logits: the last, and with drafts those before.

    Each draft is compared with what the token before it samples.
    """
    sampled: list[SampledRequest] = []
    logits_rows: list[int] = []
    end = 0
    for part in parts:
        end += part.num_tokens
        if part.samples:
            num_rows = len(part.draft_token_ids) + 1
            request = part.request
            sampled.append(
                SampledRequest(
                    request_id=request.request_id,
                    first_logits_row=len(logits_rows),
                    position=len(request.token_ids),
                    draft_token_ids=part.draft_token_ids,
                )
            )
            logits_rows += range(end - num_rows, end)
    return sampled, logits_rows
