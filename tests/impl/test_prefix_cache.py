"""The prefix cache is a dict from whole contents to lists of blocks, only smaller."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from impl.prefix_cache import Parent, PrefixCache
from spec.interface import BlockContent

NUM_BLOCKS = 8
BLOCKS_OF_TOKENS = st.tuples(st.integers(0, 1), st.integers(0, 1))
SALTS = st.sampled_from((None, "salt"))


class Machine(RuleBasedStateMachine):
    """The cache beside a dict of what each block holds, in the order of publication."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()
        self.model: dict[int, BlockContent] = {}

    @precondition(lambda self: len(self.model) < NUM_BLOCKS)
    @rule(data=st.data(), salt=SALTS, token_ids=BLOCKS_OF_TOKENS)
    def publish(self, data: st.DataObject, salt: str | None, token_ids: tuple[int, ...]) -> None:
        """A block is published behind a published one, or as a first block."""
        free = [block_id for block_id in range(1, NUM_BLOCKS + 1) if block_id not in self.model]
        block_id = data.draw(st.sampled_from(free))
        parent: Parent = salt
        content: BlockContent = (salt, token_ids)
        before = data.draw(st.sampled_from([None, *self.model]))
        if before is not None:
            parent = self.cache.get_chain(before)
            content = (self.model[before][0], self.model[before][1] + token_ids)
        chain = self.cache.publish(parent, token_ids, block_id)
        assert chain == self.cache.get_chain(block_id)
        self.model[block_id] = content

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Any published block may go, the head of a longer content included."""
        block_id = data.draw(st.sampled_from(list(self.model)))
        del self.model[block_id]
        self.cache.evict(block_id)

    @rule(salt=SALTS, blocks=st.lists(BLOCKS_OF_TOKENS, min_size=1, max_size=3))
    def find(self, salt: str | None, blocks: list[tuple[int, ...]]) -> None:
        """The oldest block of every prefix is found, up to the first that is missing."""
        parent: Parent = salt
        text: tuple[int, ...] = ()
        for token_ids in blocks:
            text += token_ids
            published = [name for name, content in self.model.items() if content == (salt, text)]
            expected = published[0] if published else None
            assert expected == self.cache.find(parent, token_ids)
            if expected is None:
                break
            parent = self.cache.get_chain(expected)

    @rule()
    def copy(self) -> None:
        """A copy shares nothing with the original."""
        original = self.cache
        self.cache = deepcopy(original)
        for block_id in self.model:
            original.evict(block_id)

    @invariant()
    def holds_what_was_published(self) -> None:
        """Published blocks and their contents are those of the dict."""
        assert sorted(self.model) == self.cache.get_block_ids()
        for block_id in range(1, NUM_BLOCKS + 1):
            assert (block_id in self.model) == (block_id in self.cache)
        for block_id, content in self.model.items():
            assert content == self.cache.get_content(block_id)

    @invariant()
    def remembers_no_more_than_it_needs(self) -> None:
        """A chain is kept only while a published content begins with it."""
        size = 2
        needed = {
            (salt, text[:end])
            for salt, text in self.model.values()
            for end in range(size, len(text) + 1, size)
        }
        assert len(needed) == len(self.cache._chains) == len(self.cache._numbers)


TestPrefixCache = Machine.TestCase
