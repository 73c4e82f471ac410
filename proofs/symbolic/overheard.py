"""The reference scheduler, overheard: it decides as its parent does and remembers its effects.

Entry point: `OverheardScheduler`. What a step's output does not tell (how many blocks were free at
an admission, who ran when a victim was chosen) is read here.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field, frozen

from spec.block_pool import CacheHit, CountedBlockPool
from spec.interface import SchedulerConfig, SchedulerOutput
from spec.request import Request
from spec.scheduler import ReferenceScheduler


@frozen
class Preemption:
    """A running request lost its place."""

    victim: Request
    running: tuple[Request, ...]
    """Who ran just before, the victim included."""
    num_computed_tokens: Any
    """Of the victim, just before."""


@frozen
class Admission:
    """A waiting request was admitted."""

    request: Request
    hit: CacheHit
    num_new_tokens: Any
    running: tuple[Request, ...]
    """Who ran just before."""
    num_free_blocks: Any
    """Just before."""


@define
class Heard:
    """What happened in one step, in order."""

    preemptions: list[Preemption] = field(factory=list)
    admissions: list[Admission] = field(factory=list)
    granted: list[str] = field(factory=list)
    """Running requests that were granted tokens, taken back or not."""


class OverheardScheduler(ReferenceScheduler):
    """The reference scheduler; `heard` tells what the last step did."""

    def __init__(self, config: SchedulerConfig, block_pool: CountedBlockPool) -> None:
        self.heard = Heard()
        super().__init__(config, block_pool)

    def schedule(self) -> SchedulerOutput:
        """As the parent."""
        self.heard = Heard()
        return super().schedule()

    def _preempt(self, victim: Request) -> None:
        self.heard.preemptions.append(
            Preemption(victim, tuple(self.running), victim.num_computed_tokens)
        )
        super()._preempt(victim)

    def _admit(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int, hit: CacheHit
    ) -> None:
        self.heard.admissions.append(
            Admission(
                request,
                hit,
                num_new_tokens,
                tuple(self.running),
                self.block_pool.num_free_blocks,
            )
        )
        super()._admit(request, num_computed_tokens, num_new_tokens, hit)

    def _grant_running(self, request: Request, num_new_tokens: int) -> None:
        self.heard.granted.append(request.request_id)
        super()._grant_running(request, num_new_tokens)
