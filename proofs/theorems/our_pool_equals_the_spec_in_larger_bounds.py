"""More blocks, requests and tokens than `our_pool_equals_the_spec` looks at."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.pools_agree import PoolWorld
from proofs.side_by_side import exhaustive
from proofs.theorems.our_pool_equals_the_spec import our_pool_equals_the_spec


@exhaustive(
    mutants=our_pool_equals_the_spec.mutants,
    assumptions=our_pool_equals_the_spec.assumptions,
    is_slow=True,
)
def our_pool_equals_the_spec_in_larger_bounds() -> Iterator[PoolWorld]:
    """What our_pool_equals_the_spec says holds of more blocks, requests and tokens, too."""
    two, three = (None,) * 2, (None,) * 3
    yield PoolWorld(3, 1, (None, "salt", None), 2)
    yield PoolWorld(3, 2, (None, "salt"), 4)
    for is_first in (True, False):
        yield PoolWorld(4, 1, two, 2, num_letters=2, uncached_blocks_first=is_first)
        yield PoolWorld(3, 1, two, 3, num_letters=2, uncached_blocks_first=is_first)
        yield PoolWorld(3, 1, three, 2, num_letters=2, uncached_blocks_first=is_first)
        yield PoolWorld(4, 1, three, 2, uncached_blocks_first=is_first)
        yield PoolWorld(4, 2, three, 4, uncached_blocks_first=is_first)
