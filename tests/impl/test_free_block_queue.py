"""The free-block queue is a plain list, only faster."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from impl.free_block_queue import FreeBlockQueue

NUM_BLOCKS = 7


class Machine(RuleBasedStateMachine):
    """The queue beside a list that does what its docstrings say."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FreeBlockQueue(NUM_BLOCKS)
        self.model = list(range(1, NUM_BLOCKS + 1))
        self.held: list[int] = []

    @rule(data=st.data())
    def popleft_n(self, data: st.DataObject) -> None:
        """The first blocks come out, in order."""
        num_blocks = data.draw(st.integers(0, len(self.model)))
        expected, self.model = self.model[:num_blocks], self.model[num_blocks:]
        assert expected == self.queue.popleft_n(num_blocks)
        self.held += expected

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Any block may leave."""
        block_id = data.draw(st.sampled_from(self.model))
        self.model.remove(block_id)
        self.queue.remove(block_id)
        self.held.append(block_id)

    @rule(data=st.data())
    def append_n(self, data: st.DataObject) -> None:
        """Blocks join the tail in the order given."""
        block_ids = self._draw_held(data)
        self.model += block_ids
        self.queue.append_n(block_ids)

    @rule(data=st.data())
    def prepend_n(self, data: st.DataObject) -> None:
        """Blocks join the head, the first of them to the very front."""
        block_ids = self._draw_held(data)
        self.model = block_ids + self.model
        self.queue.prepend_n(block_ids)

    @rule()
    def copy(self) -> None:
        """A copy shares nothing with the original."""
        original = self.queue
        self.queue = deepcopy(original)
        original.popleft_n(original.num_free_blocks)

    @invariant()
    def agrees_with_the_list(self) -> None:
        """Order and count are those of the list."""
        assert self.model == list(self.queue)
        assert len(self.model) == self.queue.num_free_blocks

    def _draw_held(self, data: st.DataObject) -> list[int]:
        block_ids = (
            data.draw(st.lists(st.sampled_from(self.held), unique=True)) if self.held else []
        )
        self.held = [block_id for block_id in self.held if block_id not in block_ids]
        return block_ids


TestFreeBlockQueue = Machine.TestCase
