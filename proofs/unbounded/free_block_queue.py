"""The free-block queue of our engine, a ring over two arrays, is a list: any number of blocks.

Entry point: `prove_queue`. Beside the ring stands a list, a slice of an array with ghost places
(`proofs.symbolic.heap.SymList`). Each method of the real queue runs on symbolic arrays, then the
list does what it ought to do, and the ring must be that list still. The methods' loops are cut in
`proofs.unbounded.local_loops`, since they carry local variables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import z3
from attrs import define

import impl.free_block_queue
from impl.free_block_queue import FreeBlockQueue
from proofs.symbolic.heap import NOWHERE, Cell, Memory, SymList
from proofs.symbolic.lending import lend
from proofs.symbolic.loops import Loop
from proofs.symbolic.prover import FrameError, Prover
from proofs.symbolic.values import all_of, term
from proofs.unbounded.local_loops import EARLIER, cut_with_local
from proofs.unbounded.pool import Block

FREE, GIVEN = 1, 2
"""Lists: the free queue, and the blocks that are about to join it."""
NULL_BLOCK = 0
"""Closes the ring."""
WRITTEN = {"next", "prev", "num_free_blocks", "cursor"}
"""All that a method may write."""
Claims = dict[str, Any]


def prove_queue() -> Iterator[tuple[str, Prover]]:
    """Shows that each method does to the ring what the same operation does to a list."""
    for operation in (_remove, _popleft_n, _prepend_n, _append_n):
        prover = Prover()
        prover.prove(_body(prover, operation))
        yield operation.__name__.strip("_"), prover


def _body(prover: Prover, operation: Callable[[SymbolicQueue], None]) -> Callable[[], None]:
    def body() -> None:
        queue = SymbolicQueue(prover)
        listed, memory = queue.listed, queue.memory
        prover.assume(*listed.representation().values(), *queue.ring().values())
        before = memory.snapshot()
        operation(queue)
        prover.place = "afterwards"
        prover.oblige_all(listed.representation)
        prover.oblige_all(queue.ring)
        prover.oblige_all(lambda: _others_keep_their_links(memory, before))

    return body


def _remove(queue: SymbolicQueue) -> None:
    """Any block of the list leaves it."""
    prover = queue.memory.prover
    block: Any = Block(prover.any_integer("block").term)
    prover.assume(queue.memory.select("where", block.key) == FREE)
    with queue.watched():
        queue.remove(block)
    queue.listed.remove(block)


def _popleft_n(queue: SymbolicQueue) -> None:
    """The first blocks leave it, and are returned in order."""
    prover = queue.memory.prover
    num_blocks: Any = prover.any_integer("num_blocks")
    prover.assume(all_of(num_blocks >= 0, num_blocks <= queue.num_free_blocks))
    with queue.watched():
        block_ids: Any = queue.popleft_n(num_blocks)
    prover.oblige("what was gathered is returned", block_ids == [EARLIER])
    queue.listed.take_first(num_blocks)


def _prepend_n(queue: SymbolicQueue) -> None:
    """Blocks from elsewhere come to stand before its head, in order."""
    given: Any = queue.any_blocks()
    with queue.watched():
        queue.prepend_n(given)
    queue.listed.join(given, at_head=True)


def _append_n(queue: SymbolicQueue) -> None:
    """Blocks from elsewhere come to stand behind its tail, in order."""
    given: Any = queue.any_blocks()
    with queue.watched():
        queue.append_n(given)
    queue.listed.join(given, at_head=False)


def _others_keep_their_links(memory: Memory, before: dict[str, Any]) -> Claims:
    """Says that nothing was written to blocks which are in neither list."""
    block = z3.Int("block")
    is_elsewhere = z3.And(before["where"][block] == NOWHERE, block != NULL_BLOCK)
    return {
        f"{name} of others": z3.ForAll(
            [block],
            z3.Implies(is_elsewhere, memory[name][block] == before[name][block]),
            patterns=[memory[name][block]],
        )
        for name in ("next", "prev")
    }


# ---- the ring, and the list beside it ------------------------------------------------------------


class Links:
    """`_next` or `_prev`: a block for every block."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.memory = memory
        self.name = name

    def __getitem__(self, block_id: Any) -> Block:
        return Block(self.memory.select(self.name, term(block_id)))

    def __setitem__(self, block_id: Any, linked: Any) -> None:
        self.memory.store(self.name, term(block_id), term(linked))


class BlockList(SymList):
    """The list that the ring should be, or one that is to join it."""

    def at(self, place: Any) -> Any:
        """The block at a place; beyond both ends the null block, which closes the ring."""
        is_inside = z3.And(self.lo <= place, place < self.hi)
        return z3.If(is_inside, self.arr[place], z3.IntVal(NULL_BLOCK))

    def take_first(self, num_blocks: Any) -> None:
        """Takes blocks from the front."""
        memory = self.memory
        where, pos, lo = memory["where"], memory["pos"], self.lo + term(num_blocks)
        memory[f"{self.name}.lo"] = lo
        self._define(
            "where",
            lambda key: z3.If(z3.And(where[key] == self.code, pos[key] < lo), NOWHERE, where[key]),
        )

    def join(self, given: BlockList, *, at_head: bool) -> None:
        """Takes in a whole list, to its front or to its end."""
        memory, name, num_blocks = self.memory, self.name, given.hi - given.lo
        first = self.lo - num_blocks if at_head else self.hi
        arr, where, pos, shift = self.arr, memory["where"], memory["pos"], first - given.lo

        def joined(place: Any) -> Any:
            is_given = z3.And(first <= place, place < first + num_blocks)
            return z3.If(is_given, given.arr[place - shift], arr[place])

        def now_here(key: Any, here: Any, before: Any) -> Any:
            return z3.If(where[key] == given.code, here, before)

        self._define(f"{name}.arr", joined)
        self._define("pos", lambda key: now_here(key, pos[key] + shift, pos[key]))
        self._define("where", lambda key: now_here(key, z3.IntVal(self.code), where[key]))
        memory[f"{name}.lo" if at_head else f"{name}.hi"] = first if at_head else first + num_blocks

    def _define(self, name: str, value: Callable[[Any], Any]) -> None:
        """Gives an array other values."""
        self.memory.havoc([name])
        key, array = z3.Int("key"), self.memory[name]
        self.memory.prover.assume(z3.ForAll([key], array[key] == value(key), patterns=[array[key]]))


class SymbolicQueue(FreeBlockQueue):
    """The real queue, its arrays and its count in memory."""

    num_free_blocks = Cell()  # type: ignore[assignment]
    memory: Memory
    listed: BlockList

    def __init__(self, prover: Prover) -> None:
        memory = self.memory = Memory(prover)
        memory.add_integers("num_free_blocks", "cursor")
        memory.add_arrays("where", "pos", "next", "prev")
        links: Any = [Links(memory, name) for name in ("next", "prev")]
        self._next, self._prev = links
        self.listed = BlockList(memory, "free", FREE, Block)

    def any_blocks(self) -> BlockList:
        """Returns distinct blocks that are not in the queue, any number of them."""
        given = BlockList(self.memory, "given", GIVEN, Block)
        self.memory.prover.assume(*given.representation().values())
        return given

    def ring(self) -> Claims:
        """Says that the ring is the list."""
        memory, listed = self.memory, self.listed
        where, pos, after, before = (memory[name] for name in ("where", "pos", "next", "prev"))
        block = z3.Int("block")
        is_free = where[block] == FREE
        comes_after = z3.Implies(is_free, after[block] == listed.at(pos[block] + 1))
        comes_before = z3.Implies(is_free, before[block] == listed.at(pos[block] - 1))
        return {
            "the count is the length": memory["num_free_blocks"] == listed.hi - listed.lo,
            "the null block is in no list": where[NULL_BLOCK] == NOWHERE,
            "after the null block comes the head": after[NULL_BLOCK] == listed.at(listed.lo),
            "before it the tail": before[NULL_BLOCK] == listed.at(listed.hi - 1),
            "next is the block behind": z3.ForAll([block], comes_after, patterns=[after[block]]),
            "prev is the block before": z3.ForAll([block], comes_before, patterns=[before[block]]),
        }

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Lends the queue's module what takes symbols; checks that nothing else is written."""
        start, attributes = self.memory.snapshot(), set(vars(self))
        with lend(
            impl.free_block_queue,
            len=lambda container: container.symbolic_len(),
            range=lambda num: _Taking(self, num),
        ):
            try:
                yield
            finally:
                # Also if the path ends in a loop.
                written = {*self.memory.changed_since(start), *vars(self)} - WRITTEN - attributes
                if written:
                    raise FrameError(f"a method of the queue writes {', '.join(sorted(written))}")

    def _insert(self, left: Any, block_ids: Any) -> None:
        where = self.memory.select("where", term(left))
        self.memory.prover.oblige(
            "blocks join behind a free one, or at the head",
            z3.Or(term(left) == NULL_BLOCK, where == FREE),
        )
        left, joining = Block(term(left)), _Joining(self, block_ids, term(left))
        insert: Any = super()._insert
        insert(left, joining)


# ---- the loops -----------------------------------------------------------------------------------


@define
class _Taking:
    """The numbers of the blocks to be taken."""

    queue: SymbolicQueue
    num_blocks: Any

    def symbolic_len(self) -> Any:
        """Answers `len`."""
        return self.num_blocks

    def __getitem__(self, place: Any) -> Any:
        return place

    def __iter__(self) -> Iterator[Any]:
        listed = self.queue.listed
        loop = Loop("taking", self.queue.memory, dict, dict, ("cursor",), forgets=False)
        return cut_with_local(
            loop, self, "block_id", lambda k: listed.at(listed.lo + k), gathered="block_ids"
        )


@define
class _Joining:
    """The blocks that are about to join, one by one behind `left`."""

    queue: SymbolicQueue
    given: BlockList
    left: Any

    def symbolic_len(self) -> Any:
        """Answers `len`."""
        return self.given.symbolic_len()

    def __getitem__(self, place: Any) -> Any:
        return self.given[place]

    def __iter__(self) -> Iterator[Any]:
        memory, start = self.queue.memory, self.queue.memory.snapshot()
        loop = Loop(
            "joining",
            memory,
            lambda: self._linked_so_far(start),
            dict,
            ("cursor", "next", "prev"),
            forgets=False,
        )
        return cut_with_local(loop, self, "left", self._block_before)

    def _block_before(self, place: Any) -> Any:
        given = self.given
        return z3.If(place > 0, given.arr[given.lo + place - 1], self.left)

    def _linked_so_far(self, start: dict[str, Any]) -> Claims:
        """Says what both arrays hold: links among the blocks that have joined, and as before."""
        memory, given, block = self.queue.memory, self.given, z3.Int("block")
        is_given, pos = memory["where"][block] == GIVEN, memory["pos"][block]
        after, before, num_joined = memory["next"], memory["prev"], memory["cursor"]
        last = given.lo + num_joined - 1
        expected_after = z3.If(
            z3.And(is_given, pos < last),
            given.arr[pos + 1],
            z3.If(
                z3.And(num_joined > 0, block == self.left),
                given.arr[given.lo],
                start["next"][block],
            ),
        )
        expected_before = z3.If(
            z3.And(is_given, pos <= last),
            self._block_before(pos - given.lo),
            start["prev"][block],
        )
        return {
            "next so far": z3.ForAll(
                [block], after[block] == expected_after, patterns=[after[block]]
            ),
            "prev so far": z3.ForAll(
                [block], before[block] == expected_before, patterns=[before[block]]
            ),
        }
