"""A step's tokens by request, as numbers on the host: what a backend of loops plans with.

Entry point: `find_spans`.
"""

from __future__ import annotations

from itertools import pairwise

from attrs import frozen

from impl.runner.ops.interface import AttentionBatch


@frozen
class Span:
    """The tokens of one request in a step, which stand together."""

    row: int
    """Of the block tables."""
    first: int
    """The first of its tokens, among all of the step."""
    start: int
    """The position of that token."""
    num_tokens: int

    @property
    def stop(self) -> int:
        """The position after its last token; KV is there before it."""
        return self.start + self.num_tokens

    @property
    def tokens(self) -> slice:
        """Its tokens among all of the step."""
        return slice(self.first, self.first + self.num_tokens)


def find_spans(batch: AttentionBatch) -> list[Span]:
    """Returns one span per request, in order."""
    rows, positions = batch.request_of_token.tolist(), batch.positions.tolist()
    bounds = [n for n in range(len(rows)) if n == 0 or rows[n] != rows[n - 1]] + [len(rows)]
    return [
        Span(rows[first], first, positions[first], end - first) for first, end in pairwise(bounds)
    ]
