"""The real pool in the place of an abstract one: what can be found in it, request by request.

Entry point: `FindablePool`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Never

from proofs.symbolic.pools import PublicationPool
from proofs.symbolic.values import UnsupportedError
from spec.block_pool import BlockPool, CacheHit, HoldsBlocks
from spec.request import Request


class FindablePool(PublicationPool):
    """The pool of identities, which also counts what `PublicationPool` counts.

    So a claim about publications can be asked of the blocks themselves: one that was handed out
    again is not found any more. Precondition: no two requests begin with the same tokens, or what
    one has published would be found for the other.
    """

    def __init__(self, pool: BlockPool, requests: Iterable[Request]) -> None:
        super().__init__(pool.num_blocks, pool.block_size, _choose_nothing, [])
        self.pool = pool
        self.requests = list(requests)
        self.left: list[Request] = []
        self._count()

    def __copy__(self) -> Never:
        """Raises: our engine stands on a copy whose blocks are counted, and here they have names.

        An error of any other kind would count as one of the engine, and the run as found.
        """
        raise UnsupportedError("our engine's blocks are counted; a pool of identities is none")

    def find_longest_cache_hit(self, request: Request) -> CacheHit:
        """As the pool of identities."""
        return self.pool.find_longest_cache_hit(request)

    def allocate(self, request: Request, hit: CacheHit, num_new_blocks: int) -> list[int]:
        """As the pool of identities."""
        new_block_ids = self.pool.allocate(request, hit, num_new_blocks)
        self._count()
        return new_block_ids

    def cache_full_blocks(self, request: Request, num_tokens: int) -> None:
        """As the pool of identities."""
        self.pool.cache_full_blocks(request, num_tokens)
        self._count()

    def free(self, request: HoldsBlocks) -> None:
        """As the pool of identities."""
        assert isinstance(request, Request), "proofs leave deferred frees out"
        self.pool.free(request)
        self.left.append(request)
        self._count()

    def take_new_block_ids(self) -> list[int]:
        """As the pool of identities."""
        return self.pool.take_new_block_ids()

    def _count(self) -> None:
        self.num_free_blocks = self.pool.num_free_blocks
        for request in self.requests:
            is_published = [block_id in self.pool.block_hash for block_id in request.block_ids]
            self.num_published_tokens[request.request_id] = sum(is_published) * self.block_size
        for request in self.left:
            self.num_left_tokens[request.request_id] = self._num_findable_tokens(request)

    def _num_findable_tokens(self, request: Request) -> int:
        num_tokens = 0
        for end in range(self.block_size, len(request.token_ids) + 1, self.block_size):
            if (request.cache_key, request.token_ids[:end]) not in self.pool.cached_blocks:
                break
            num_tokens = end
        return num_tokens


def _choose_nothing(name: str) -> int:
    """A real pool leaves nothing to be chosen."""
    return 0
