"""Pools without identities that stand for every pool with a prefix cache.

Entry points: `AnyHitsPool`, for what a cache may do to a decision, and `PublicationPool`, for what
may be found in it. Both are `spec.block_pool.CountedBlockPool` and little more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proofs.symbolic.values import symbolic_max, symbolic_min
from spec.block_pool import CacheHit, CountedBlockPool, HoldsBlocks
from spec.request import Request


class AnyHitsPool(CountedBlockPool):
    """A counted pool whose cache does all that a cache can: any hit, shared by anybody."""

    def __init__(self, num_blocks: Any, block_size: int, numbers: Callable[[str], Any]) -> None:
        super().__init__(num_blocks)
        self.block_size = block_size
        self.numbers = numbers
        self.num_choices = 0

    def find_longest_cache_hit(self, request: Request) -> CacheHit:
        """Finds any number of blocks that leaves a token to compute, any of them held by nobody."""
        num_blocks = self._choose((request.num_tokens - 1) // self.block_size)
        return CacheHit(
            [], num_blocks, self._choose(symbolic_min(num_blocks, self.num_free_blocks))
        )

    def free(self, request: HoldsBlocks) -> None:
        """Gives back any part of a request's blocks; others may hold the rest."""
        num_unfree_blocks = self.num_blocks - self.num_free_blocks
        self.num_free_blocks += self._choose(symbolic_min(request.num_blocks, num_unfree_blocks))
        request.num_blocks = 0

    def _choose(self, most: Any) -> Any:
        """Any number from 0 to `most`: one without a bound, clamped."""
        self.num_choices += 1
        choice = self.numbers(f"choice{self.num_choices}")
        return symbolic_max(0, symbolic_min(choice, most))


class PublicationPool(AnyHitsPool):
    """It also records how many of each request's tokens can be found in the cache."""

    def __init__(
        self,
        num_blocks: Any,
        block_size: int,
        numbers: Callable[[str], Any],
        request_ids: list[str],
    ) -> None:
        super().__init__(num_blocks, block_size, numbers)
        # Tokens in published blocks of a request's table, by request id.
        self.num_published_tokens: dict[str, Any] = {
            name: numbers(f"{name}.num_published_tokens") for name in request_ids
        }
        # The same for tables that were freed: their blocks stay findable.
        self.num_left_tokens: dict[str, Any] = {}

    def allocate(self, request: Request, hit: CacheHit, num_new_blocks: int) -> list[int]:
        """Counts the blocks over to the request; those of a hit are published already."""
        self._publish(request, hit.num_blocks * self.block_size)
        return super().allocate(request, hit, num_new_blocks)

    def cache_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Makes the full blocks of the first `num_tokens` tokens findable."""
        self._publish(request, num_tokens // self.block_size * self.block_size)

    def free(self, request: HoldsBlocks) -> None:
        """Gives back any part of a request's blocks; what they hold can still be found."""
        # Whoever frees is a request, of either side: proofs leave out what frees a table alone.
        owner: Any = request
        name = owner.request_id
        self.num_left_tokens[name] = self.num_published_tokens[name]
        self.num_published_tokens[name] = 0
        super().free(request)

    def _publish(self, request: Request, num_tokens: Any) -> None:
        name = request.request_id
        self.num_published_tokens[name] = symbolic_max(self.num_published_tokens[name], num_tokens)
