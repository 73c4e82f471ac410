"""A way to have requests computed: what arrives when, and how it is scheduled.

Entry point: `Way`. An axis changes one thing about it; what each request then computes must not
change. `make_way` is the plain one: all arrive at once, and nothing is cut, shared or preempted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attrs import define, frozen

from spec.interface import NewRequest, SchedulerConfig

BLOCK_SIZE = 16
"""Tokens of a KV block, as usual; the values of the axes lie around it."""
WHOLE = "whole"
"""The value of a limit that cuts nothing."""


@frozen
class Arrival:
    """A request, and the step before which it arrives, or as soon as its name is free."""

    request: NewRequest
    step: int = 0


@frozen(kw_only=True)
class Way:
    """How requests are scheduled, where their KV lies, and what computes beside them."""

    arrivals: tuple[Arrival, ...]
    config: SchedulerConfig
    engine: str = "fast"
    """The scheduler: a name or `module:attribute`."""
    recording: Path | None = None
    """A recorded run, whose steps are taken in place of an engine's."""
    aborts: tuple[tuple[int, str], ...] = ()
    """Who is aborted before which step, if it is still there."""
    max_in_flight: int = 1
    """Steps that are executed before the scheduler hears of the first of them."""
    placement: str = "as given"
    """Where blocks lie: a name in `gpu_conformance.renaming.PLACEMENTS`."""
    order_seed: int | None = None
    """Shuffles the requests within each step; None leaves them as scheduled."""
    num_drafts: int = 0
    """Drafts that each request is given after a step, if speculative decoding is on."""
    num_threads: int = 1
    """Of the CPU."""
    graph_bucket: int = 0
    """Steps of up to so many tokens are filled up to that many, and on CUDA played from a graph;
    0 is no graph."""

    @property
    def requests(self) -> tuple[NewRequest, ...]:
        """Who arrives."""
        return tuple(arrival.request for arrival in self.arrivals)


@define
class Sights:
    """What was seen to happen on the way, so that an axis can say whether its value was reached."""

    num_steps: int = 0
    num_partial_chunks: int = 0
    """Chunks after which known tokens of the request are left to compute."""
    longest_chunk: int = 0
    """The most tokens of one request in one step."""
    max_num_reqs: int = 0
    """In one step."""
    shortest_step: int = 0
    """The fewest tokens of a step, of those that have any."""
    num_hit_tokens: int = 0
    """Found in the prefix cache at an admission."""
    num_resumptions: int = 0
    """Preempted requests that came back."""
    num_shorter_tables: int = 0
    """Of these, those with fewer blocks than they had lost, and yet several."""
    num_resumed_hit_tokens: int = 0
    """Found in the prefix cache by requests that came back."""
    num_reused_ids: int = 0
    """New requests under the name of one before them."""
    num_reused_sampled_ids: int = 0
    """Of these, those after one of which tokens had been sampled."""
    num_reused_ended_ids: int = 0
    """Of these, those after one that had all its tokens."""
    num_wide_chunks: int = 0
    """Chunks that start within a block and reach into the second block after it, or further."""
    num_partial_output_chunks: int = 0
    """Chunks that end within the output of a request, so that it is computed again in pieces."""
    greatest_length: int = 0
    """The most tokens of a request that have been computed."""
    max_num_drafts: int = 0
    """Of one request in one step."""
    max_in_flight: int = 0
    """Steps that had run when the scheduler heard of the first of them."""


def make_way(requests: Iterable[NewRequest], engine: str = "fast") -> Way:
    """All arrive at once and are computed in one batch, in whole prompts, with room for all."""
    arrivals = tuple(Arrival(request) for request in requests)
    lengths = [len(a.request.prompt_token_ids) + a.request.max_tokens for a in arrivals]
    config = SchedulerConfig(
        max_num_batched_tokens=sum(lengths),
        max_num_seqs=len(arrivals),
        max_model_len=max(lengths) + 1,
        block_size=BLOCK_SIZE,
        num_blocks=sum(num_blocks_for(length) for length in lengths),
    )
    return Way(arrivals=arrivals, config=config, engine=engine)


def num_blocks_for(num_tokens: int, block_size: int = BLOCK_SIZE) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // block_size)
