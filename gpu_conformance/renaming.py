"""Other names for the same blocks, another order of the same requests.

Entry points: `Renaming` and `shuffle`. Block ids are names, and a step is a set of requests: what a
request computes may depend on neither.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from spec.interface import CachedRequestData, NewRequestData, SchedulerOutput

Placement = Callable[[int], list[int]]
"""Takes the number of blocks; returns where each lies, block 1 first."""


def _as_given(num_blocks: int) -> list[int]:
    return list(range(1, num_blocks + 1))


def _backwards(num_blocks: int) -> list[int]:
    return _as_given(num_blocks)[::-1]


def _shuffled(num_blocks: int) -> list[int]:
    return random.Random(num_blocks).sample(_as_given(num_blocks), num_blocks)


def _scattered(num_blocks: int) -> list[int]:
    """No two blocks lie beside each other."""
    return [3 * block_id - 1 for block_id in _shuffled(num_blocks)]


PLACEMENTS: dict[str, Placement] = {
    "as given": _as_given,
    "backwards": _backwards,
    "shuffled": _shuffled,
    "scattered": _scattered,
}


class Renaming:
    """Renames the blocks of steps on their way to the runner."""

    def __init__(self, placement: str, num_blocks: int) -> None:
        self._names = [0, *PLACEMENTS[placement](num_blocks)]

    @property
    def num_blocks(self) -> int:
        """How many blocks the runner needs."""
        return max(self._names)

    def rename(self, output: SchedulerOutput) -> SchedulerOutput:
        """The same step under other names of blocks."""
        to_zero = output.new_block_ids_to_zero
        return attrs.evolve(
            output,
            scheduled_new_reqs={
                name: self._rename_new(new) for name, new in output.scheduled_new_reqs.items()
            },
            scheduled_cached_reqs={
                name: self._rename_cached(cached)
                for name, cached in output.scheduled_cached_reqs.items()
            },
            new_block_ids_to_zero=None if to_zero is None else self._rename(to_zero),
        )

    def _rename(self, block_ids: list[int]) -> list[int]:
        return [self._names[block_id] for block_id in block_ids]

    def _rename_new(self, new: NewRequestData) -> NewRequestData:
        return attrs.evolve(new, block_ids=self._rename(new.block_ids))

    def _rename_cached(self, cached: CachedRequestData) -> CachedRequestData:
        return attrs.evolve(cached, new_block_ids=self._rename(cached.new_block_ids))


def shuffle(output: SchedulerOutput, rng: random.Random) -> SchedulerOutput:
    """The same step with its requests in another order."""
    names = list(output.num_scheduled_tokens)
    rng.shuffle(names)
    scheduled = {name: output.num_scheduled_tokens[name] for name in names}
    return attrs.evolve(output, num_scheduled_tokens=scheduled)
