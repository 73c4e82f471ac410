"""Names for blocks that an engine only counts, for adapters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count


class BlockNames:
    """Block tables and a free queue that follow an engine's counts, right or wrong.

    An engine that gives out more blocks than there are is not stopped: it gets names past the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(1, num_blocks + 1))
        self.tables: dict[str, list[int]] = {}
        self._surplus = count(num_blocks + 1)

    def follow(self, num_blocks: Mapping[str, int]) -> dict[str, list[int]]:
        """Takes names back where a count has shrunk, then gives some where it has grown.

        `num_blocks` counts the blocks of every live request. Returns the new names of each.
        """
        for name, table in self.tables.items():
            self.free += table[num_blocks.get(name, 0) :]
        kept = {name: self.tables.get(name, [])[:num] for name, num in num_blocks.items()}
        taken = {
            name: [self._take() for _ in range(num - len(kept[name]))]
            for name, num in num_blocks.items()
        }
        self.tables = {name: kept[name] + taken[name] for name in num_blocks}
        return taken

    def _take(self) -> int:
        return self.free.pop(0) if self.free else next(self._surplus)
