"""Who holds which block, which come next, and what is found, in our engine and in the spec."""

from __future__ import annotations

from collections.abc import Iterator

import proofs.pool_mutants  # noqa: F401  (registers them)
from proofs.pools_agree import PoolWorld
from proofs.side_by_side import exhaustive


@exhaustive(
    mutants=(
        "our_hit_block_stays_free",
        "our_new_blocks_are_taken_before_hits",
        "our_blocks_are_freed_first_block_first",
        "a_freed_request_of_ours_seems_published",
        "our_cached_blocks_go_first",
        "our_block_is_found_after_it_is_taken",
        "our_salts_are_ignored",
        "our_taken_blocks_are_told_twice",
        "our_decode_runs_past_a_publication",
        "our_decode_leaves_no_place_to_sample",
        "our_newest_publication_is_hit",
        "our_duplicates_are_forgotten_together",
    ),
    assumptions=(
        "a request is admitted while it holds no blocks, and takes a new one then",
        "there is room for the free blocks of a hit and the new ones (every caller asks first)",
        "only tokens that the table has room for are published",
        "no code looks at more of a name (of a block, a request, a chain) than whose it is",
    ),
)
def our_pool_equals_the_spec() -> Iterator[PoolWorld]:
    """Our engine's pool answers as the spec's does, block ids included, whatever happens to it.

    It counts as the counted pool does, and its `decode_until` means what our scheduler relies on.
    """
    two, three = (None,) * 2, (None,) * 3
    yield PoolWorld(3, 1, two, 2, num_letters=2)
    yield PoolWorld(3, 2, two, 4)
    yield PoolWorld(3, 1, (None, "salt"), 3)
    yield PoolWorld(3, 1, three, 2, uncached_blocks_first=False)
    yield PoolWorld(4, 1, two, 2, uncached_blocks_first=False)
    for is_first in (True, False):
        yield PoolWorld(4, 2, three, 4, enable_caching=False, uncached_blocks_first=is_first)
