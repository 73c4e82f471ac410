"""The pool of identities: any number of blocks, any sharing, one table that is about to grow.

Entry point: `prove_allocate`. Each block is in the free queue or held; the ghost `others` counts
the tables that hold it beside the one at hand, so sharing is arbitrary. `allocate` is the real one,
its two loops cut. `BlockPool.free` gathers blocks in a list of its own, which no cut can see; it is
proved for bounded tables (tests/proofs).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import z3
from attrs import define

import spec.block_pool
from proofs.symbolic.heap import NOWHERE, Cell, Memory, Sink, SymList
from proofs.symbolic.loops import Loop, cut_elements
from proofs.symbolic.prover import Prover
from proofs.symbolic.values import SymInt, all_of, symbolic_len, term
from proofs.unbounded.state import lend
from spec.block_pool import BlockPool, CacheHit, CountedBlockPool

FREE, HELD = 1, 2
"""Lists: the free queue, and the table at hand. A block of other tables only is in neither."""
NUMBERS = ("num_free_blocks", "cursor", "free hits left")


class Block(SymInt):
    """A block id that a list can hold."""

    @property
    def key(self) -> Any:
        """Its term."""
        return self.term


class CountMap:
    """`ref_cnt`: a number for every block."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def __getitem__(self, block_id: Any) -> SymInt:
        return SymInt(self.memory.select("ref_cnt", block_id.term))

    def __setitem__(self, block_id: Any, value: Any) -> None:
        self.memory.store("ref_cnt", block_id.term, term(value))


class Table(SymList):
    """The block table at hand. It grows when a block is taken, so that sums find all in it."""

    def __add__(self, taken: Any) -> Table:
        return self


@define
class _Request:
    """A request, as a pool sees it."""

    block_ids: Any
    num_blocks: Any


class SymbolicBlockPool(BlockPool):
    """The pool in front of the spec's: keeps its state in memory, and the table beside it."""

    num_free_blocks = Cell()  # type: ignore[assignment]
    memory: Memory
    table: Table

    def _touch(self, block_id: Any) -> None:
        super()._touch(block_id)
        self.table.append(block_id)

    def _take_new_block(self) -> int:
        block_id: Any = super()._take_new_block()
        others = self.memory.select("others", block_id.key)
        self.memory.prover.oblige("a new block is in no table", others == 0)
        self.table.append(block_id)
        taken: int = block_id
        return taken

    def _evict(self, block_id: int) -> None:
        """Changes what is found, not who holds what."""


def prove_allocate(base: type[BlockPool] = BlockPool) -> Prover:
    """Shows that `allocate` uses no block twice, loses none, and counts as the counted pool."""
    prover = Prover()

    def body() -> None:
        pool = _make_pool(prover, base)
        hit, num_new = _any_hit(pool), prover.any_integer("new")
        prover.assume(
            *_invariant(pool).values(),
            pool.num_free_blocks == symbolic_len(pool.free_block_queue),
            all_of(num_new >= 0, hit.num_free_blocks + num_new <= pool.num_free_blocks),
        )
        make_counted: Any = CountedBlockPool
        counted = make_counted(pool.num_free_blocks)
        expected: Any = _Request(pool.table, symbolic_len(pool.table))
        counted.allocate(expected, hit, num_new)
        request: Any = _Request(pool.table, symbolic_len(pool.table))
        allocate: Any = pool.allocate
        with _injected(pool):
            allocate(request, hit, num_new)
        prover.place = "allocated"
        prover.oblige_all(lambda: _invariant(pool))
        prover.oblige("free as counted", pool.num_free_blocks == counted.num_free_blocks)
        prover.oblige("held as counted", request.num_blocks == expected.num_blocks)
        prover.oblige("the table is as long", symbolic_len(pool.table) == expected.num_blocks)

    prover.prove(body)
    return prover


def _any_hit(pool: SymbolicBlockPool) -> Any:
    prover = pool.memory.prover
    num_hit, num_free_hit = prover.any_integer("hit"), prover.any_integer("free hit")
    prover.assume(all_of(num_free_hit >= 0, num_free_hit <= num_hit))
    pool.memory["free hits left"] = num_free_hit.term
    make_hit: Any = CacheHit
    return make_hit(_Hits(pool, num_hit, num_free_hit), num_hit, num_free_hit)


def _make_pool(prover: Prover, base: type[BlockPool]) -> SymbolicBlockPool:
    kind: Any = type("Pool", (SymbolicBlockPool, base), {})
    pool: Any = kind.__new__(kind)
    memory = pool.memory = Memory(prover)
    memory.add_integers(*NUMBERS)
    memory.add_arrays("where", "pos", "ref_cnt", "others", "hit left")
    pool.num_blocks = prover.any_integer("num_blocks")
    pool.enable_caching = True
    pool.free_block_queue = SymList(memory, "free", FREE, Block)
    pool.table = Table(memory, "table", HELD, Block)
    pool.ref_cnt, pool.new_block_ids = CountMap(memory), Sink()
    made: SymbolicBlockPool = pool
    return made


def _invariant(pool: SymbolicBlockPool) -> dict[str, Any]:
    """Every block is in the free queue, once, or held; its ref_cnt counts its holders."""
    memory = pool.memory
    where, ref_cnt, others, left = (
        memory[name] for name in ("where", "ref_cnt", "others", "hit left")
    )
    queue: Any = pool.free_block_queue
    block = z3.Int("block")
    is_block = z3.And(block >= 1, block <= term(pool.num_blocks))
    num_holders = others[block] + z3.If(where[block] == HELD, 1, 0)
    is_counted = z3.And(others[block] >= 0, ref_cnt[block] == num_holders)
    is_free = (where[block] == FREE) == (ref_cnt[block] == 0)
    is_somewhere = z3.And(where[block] >= NOWHERE, where[block] <= HELD)
    about_where = {
        "ref_cnt counts holders": z3.Implies(is_block, is_counted),
        "who is not held is free": z3.Implies(is_block, is_free),
        "only blocks of the pool are anywhere": z3.And(
            is_somewhere, z3.Or(where[block] == NOWHERE, is_block)
        ),
    }
    said: dict[str, Any] = queue.representation() | pool.table.representation()
    # `others` never changes, so a block that a goal is about is looked up in every state.
    patterns = [where[block], others[block]]
    for name, fact in about_where.items():
        said[name] = z3.ForAll([block], fact, patterns=patterns)
    is_outside = z3.Implies(left[block] == 1, where[block] != HELD)
    said["hits left are outside of the table"] = z3.ForAll(
        [block], is_outside, patterns=[left[block]]
    )
    return said


@define
class _Hits:
    """The blocks of a hit: in the pool, distinct, not in the table; some of them held by nobody."""

    pool: SymbolicBlockPool
    num_blocks: Any
    num_free_blocks: Any

    def symbolic_len(self) -> Any:
        """Answers `len`."""
        return self.num_blocks

    def __iter__(self) -> Iterator[Any]:
        pool, memory = self.pool, self.pool.memory
        start = (symbolic_len(pool.table), symbolic_len(pool.free_block_queue))

        def obliged() -> dict[str, Any]:
            cursor, left = SymInt(memory["cursor"]), SymInt(memory["free hits left"])
            num_taken = self.num_free_blocks - left
            return _invariant(pool) | {
                "hits left are hits": all_of(left >= 0, left <= self.num_blocks - cursor),
                "each hit joins": symbolic_len(pool.table) == start[0] + cursor,
                "free hits leave": symbolic_len(pool.free_block_queue) == start[1] - num_taken,
            }

        yield from _cut(pool, "touching", obliged, self, "hit left", "free hits left")
        block, left = z3.Int("block"), memory["hit left"]
        # All have been looked at.
        memory.prover.assume(z3.ForAll([block], left[block] == 0, patterns=[left[block]]))

    def __getitem__(self, place: Any) -> Block:
        memory, prover = self.pool.memory, self.pool.memory.prover
        block = Block(prover.fresh("hit", z3.IntSort()))
        is_free = memory.select("where", block.key) == FREE
        left_after = memory["free hits left"] - z3.If(is_free, 1, 0)
        prover.assume(
            all_of(block >= 1, block <= self.pool.num_blocks),
            memory.select("hit left", block.key) == 1,
            left_after >= 0,
            left_after <= term(self.num_blocks - place - 1),
        )
        memory["free hits left"] = left_after
        memory.store("hit left", block.key, z3.IntVal(0))
        return block


@define
class _Range:
    """The numbers from 0 up to a symbol."""

    pool: SymbolicBlockPool
    num: Any

    def symbolic_len(self) -> Any:
        """Answers `len`."""
        return self.num

    def __iter__(self) -> Iterator[Any]:
        pool, memory = self.pool, self.pool.memory
        start = (symbolic_len(pool.table), symbolic_len(pool.free_block_queue))

        def obliged() -> dict[str, Any]:
            cursor = SymInt(memory["cursor"])
            return _invariant(pool) | {
                "each new block joins": symbolic_len(pool.table) == start[0] + cursor,
                "each new block leaves": symbolic_len(pool.free_block_queue) == start[1] - cursor,
            }

        return _cut(pool, "taking", obliged, self)

    def __getitem__(self, place: Any) -> Any:
        return place


def _cut(
    pool: SymbolicBlockPool, place: str, obliged: Any, container: Any, *writes: str
) -> Iterator[Any]:
    queue: Any = pool.free_block_queue
    written = [*writes, "cursor", "where", "pos", "ref_cnt", *queue.cells, *pool.table.cells]
    loop = Loop(place, pool.memory, obliged, dict, written, forgets=False)
    return cut_elements(loop, "cursor", container)


@contextlib.contextmanager
def _injected(pool: SymbolicBlockPool) -> Iterator[None]:
    lent = {"len": symbolic_len, "range": lambda num: _Range(pool, num)}
    with contextlib.ExitStack() as stack:
        for name, value in lent.items():
            stack.enter_context(lend(spec.block_pool, name, value))
        yield
