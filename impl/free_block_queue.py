"""The free blocks, in the order in which they are handed out."""

from __future__ import annotations

from collections.abc import Iterator


class FreeBlockQueue:
    """A doubly linked list over two arrays: any block leaves it in constant time.

    The list is a ring through 0, which is no usable block (vLLM's null block): after 0 comes the
    head, before it the tail.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_free_blocks = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._prev = [num_blocks, *range(num_blocks)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.to_list())

    def to_list(self) -> list[int]:
        """All free blocks in order."""
        block_ids, block_id = [], self._next[0]
        while block_id:
            block_ids.append(block_id)
            block_id = self._next[block_id]
        return block_ids

    def popleft_n(self, num_blocks: int) -> list[int]:
        """Removes the first `num_blocks` blocks and returns them. Precondition: they exist."""
        block_ids: list[int] = []
        block_id = self._next[0]
        for _ in range(num_blocks):
            block_ids.append(block_id)
            block_id = self._next[block_id]
        self._link(0, block_id)
        self.num_free_blocks -= num_blocks
        return block_ids

    def remove(self, block_id: int) -> None:
        """Removes a block wherever it stands."""
        self._link(self._prev[block_id], self._next[block_id])
        self.num_free_blocks -= 1

    def prepend_n(self, block_ids: list[int]) -> None:
        """Puts blocks before the head, the first of them to the very front."""
        self._insert(0, block_ids)

    def append_n(self, block_ids: list[int]) -> None:
        """Puts blocks behind the tail, the last of them to the very end."""
        self._insert(self._prev[0], block_ids)

    def _insert(self, left: int, block_ids: list[int]) -> None:
        right = self._next[left]
        for block_id in block_ids:
            self._link(left, block_id)
            left = block_id
        self._link(left, right)
        self.num_free_blocks += len(block_ids)

    def _link(self, left: int, right: int) -> None:
        self._next[left] = right
        self._prev[right] = left
