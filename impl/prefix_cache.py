"""Which blocks can be found by their content.

A content, all tokens from the first to the block's last, is a *chain* of blocks. A chain has a
number, and is known by the number of the chain that it extends and by the tokens of its last block.
So a look-up compares a number and one block of tokens, however long the content, and two contents
never collide.
"""

from __future__ import annotations

from attrs import define, field

from spec.interface import BlockContent

Parent = int | str | None
"""What a chain extends: a chain, by its number, or nothing; then the request's key stands here."""
ChainKey = tuple[Parent, tuple[int, ...]]


@define
class Chain:
    """A content that some published block has, or that the content of one extends."""

    key: ChainKey
    block_ids: dict[int, None] = field(factory=dict)
    """The blocks published under it are the keys, oldest first. Content is not de-duplicated."""
    num_children: int = 0
    """How many chains extend it by one block."""


class PrefixCache:
    """Published blocks by content, and content by published block."""

    def __init__(self) -> None:
        self._numbers: dict[ChainKey, int] = {}
        self._chains: dict[int, Chain] = {}
        self._chain_of_block: dict[int, int] = {}
        self._next_number = 1

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._chain_of_block

    def get_block_ids(self) -> list[int]:
        """Returns the published blocks, sorted."""
        return sorted(self._chain_of_block)

    def get_chain(self, block_id: int) -> int:
        """Returns the number of a published block's chain."""
        return self._chain_of_block[block_id]

    def find(self, parent: Parent, token_ids: tuple[int, ...]) -> int | None:
        """Returns the oldest block whose chain extends `parent` by one block of tokens."""
        number = self._numbers.get((parent, token_ids))
        if number is None:
            return None
        return next(iter(self._chains[number].block_ids), None)

    def publish(self, parent: Parent, token_ids: tuple[int, ...], block_id: int) -> int:
        """Makes a block findable under the chain that extends `parent`; returns that chain.

        Precondition: if `parent` is a chain, some block is published under it.
        """
        key = (parent, token_ids)
        number = self._numbers.get(key)
        if number is None:
            number = self._add_chain(key)
        self._chains[number].block_ids[block_id] = None
        self._chain_of_block[block_id] = number
        return number

    def evict(self, block_id: int) -> None:
        """Makes a published block unfindable; forgets the chains that only it needed."""
        number = self._chain_of_block.pop(block_id)
        del self._chains[number].block_ids[block_id]
        self._prune(number)

    def get_content(self, block_id: int) -> BlockContent:
        """Returns what a published block is found by."""
        blocks: list[tuple[int, ...]] = []
        parent: Parent = self._chain_of_block[block_id]
        while isinstance(parent, int):
            parent, token_ids = self._chains[parent].key
            blocks.append(token_ids)
        return parent, tuple([token_id for block in reversed(blocks) for token_id in block])

    def _add_chain(self, key: ChainKey) -> int:
        number = self._next_number
        self._next_number += 1
        self._numbers[key] = number
        self._chains[number] = Chain(key)
        parent, _ = key
        if isinstance(parent, int):
            self._chains[parent].num_children += 1
        return number

    def _prune(self, number: Parent) -> None:
        while isinstance(number, int):
            chain = self._chains[number]
            if chain.block_ids or chain.num_children:
                return
            del self._chains[number], self._numbers[chain.key]
            number, _ = chain.key
            if isinstance(number, int):
                self._chains[number].num_children -= 1
