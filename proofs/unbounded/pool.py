"""The pool of identities: any number of blocks, any sharing, one table that grows or is freed.

Entry points: `prove_allocate` and `prove_free`. Each block is in the free queue or held; the ghost
`others` counts the tables that hold it beside the one at hand, so sharing is arbitrary. Both are
the real methods, their loops cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import z3
from attrs import define

import spec.block_pool
from proofs.symbolic.heap import (
    NOWHERE,
    Cell,
    Memory,
    Sink,
    SymList,
    facts_of_sums,
    sum_of,
)
from proofs.symbolic.lending import lend
from proofs.symbolic.loops import Loop, cut_elements
from proofs.symbolic.pools import AnyHitsPool
from proofs.symbolic.prover import Prover
from proofs.symbolic.values import SymBool, SymInt, all_of, implies, symbolic_len, term
from proofs.unbounded.state import AnySet
from spec.block_pool import BlockPool, CacheHit, CountedBlockPool

FREE, HELD = 1, 2
"""Lists: the free queue, and the table at hand. A block of other tables only is in neither."""
NUMBERS = ("num_free_blocks", "num_put_first", "cursor", "free hits left", sum_of("is held"))


class Block(SymInt):
    """A block id that a list can hold."""

    @property
    def key(self) -> Any:
        """Its term."""
        return self.term


class CountMap:
    """`ref_cnt`: a number for every block; the ghost `is held` says whether it is above 0."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def __getitem__(self, block_id: Any) -> SymInt:
        return SymInt(self.memory.select("ref_cnt", block_id.term))

    def __setitem__(self, block_id: Any, value: Any) -> None:
        self.memory.store("ref_cnt", block_id.term, term(value))
        self.memory.store(
            "is held", block_id.term, z3.If(term(value) > 0, z3.IntVal(1), z3.IntVal(0))
        )


class Table(SymList):
    """The block table at hand. It grows when a block is taken, so that sums find all in it."""

    def __add__(self, taken: Any) -> Table:
        return self

    def take_last(self) -> Block:
        """Removes the last block and returns it."""
        block: Block = self[-1]
        self.memory[f"{self.name}.hi"] = self.hi - 1
        self.memory.store("where", block.key, z3.IntVal(NOWHERE))
        return block


@define
class _Request:
    """A request, as a pool sees it."""

    block_ids: Any
    num_blocks: Any


class SymbolicBlockPool(BlockPool):
    """The pool in front of the spec's: keeps its state in memory, and the table beside it."""

    num_free_blocks = Cell()  # type: ignore[assignment]
    num_put_first = Cell()  # type: ignore[assignment]
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


def prove_free(base: type[BlockPool] = BlockPool) -> Prover:
    """Shows that `free` gives back, once, what nobody else holds, and moves nothing else."""
    prover = Prover()

    def body() -> None:
        pool = _make_pool(prover, base)
        memory, table = pool.memory, pool.table
        num_free_blocks = pool.num_free_blocks
        prover.assume(
            *_invariant(pool).values(),
            num_free_blocks == symbolic_len(pool.free_block_queue),
            *facts_of_sums(memory),
        )
        start, blocks = memory.snapshot(), _Reversed(pool, table.lo, table.hi)
        request: Any = _Request(table, blocks.symbolic_len())
        with _injected(pool):
            pool.free(request)
        prover.place = "freed"
        prover.assume(*facts_of_sums(memory))
        prover.oblige_all(lambda: _invariant(pool) | _is_moved(pool, start))
        prover.oblige("the table is empty", request.block_ids == [] and request.num_blocks == 0)
        num_unshared = blocks.num_unshared(table.lo)
        prover.oblige(
            "what nobody else holds is free", pool.num_free_blocks == num_free_blocks + num_unshared
        )
        for name, goal in _refines(pool, num_free_blocks, blocks).items():
            prover.oblige(name, goal)

    prover.prove(body)
    return prover


def _is_moved(pool: SymbolicBlockPool, start: dict[str, Any]) -> dict[str, Any]:
    """Each block of the table has a holder less, and no other block is touched."""
    memory, block = pool.memory, z3.Int("block")
    where, ref_cnt = memory["where"], memory["ref_cnt"]
    is_block = z3.And(block >= 1, block <= term(pool.num_blocks))
    was_held = start["where"][block] == HELD
    goes = z3.And(where[block] != HELD, ref_cnt[block] == start["ref_cnt"][block] - 1)
    stays = z3.And(where[block] == start["where"][block], ref_cnt[block] == start["ref_cnt"][block])
    return {
        "who was in the table has a holder less": z3.ForAll(
            [block], z3.Implies(z3.And(is_block, was_held), goes), patterns=[where[block]]
        ),
        "who was not in the table is not touched": z3.ForAll(
            [block], z3.Implies(z3.And(is_block, z3.Not(was_held)), stays), patterns=[where[block]]
        ),
    }


def _refines(pool: SymbolicBlockPool, num_free_blocks: Any, blocks: _Reversed) -> dict[str, Any]:
    """The abstractions do the same: the one of any hits by some choice, the counted one alone."""
    num_held = blocks.symbolic_len()
    counted: Any = CountedBlockPool(pool.num_blocks)
    any_hits: Any = AnyHitsPool(
        pool.num_blocks, 1, lambda _: pool.num_free_blocks - num_free_blocks
    )
    for each in (counted, any_hits):
        each.num_free_blocks = num_free_blocks
        expected: Any = _Request(pool.table, num_held)
        each.free(expected)
    is_counted = pool.num_free_blocks == counted.num_free_blocks
    return {
        "free as in a pool of any hits": pool.num_free_blocks == any_hits.num_free_blocks,
        "free as counted, where nothing is shared": implies(blocks.is_unshared(), is_counted),
    }


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
    memory = pool.memory = Memory(prover, sums=frozenset({"is held"}))
    memory.add_integers(*NUMBERS)
    memory.add_arrays("where", "pos", "ref_cnt", "is held", "others", "hit left")
    pool.num_blocks = prover.any_integer("num_blocks")
    pool.enable_caching = True
    pool.uncached_blocks_first = SymBool(prover.fresh("uncached_blocks_first", z3.BoolSort()))
    pool.block_hash = AnySet(prover)
    pool.free_block_queue = SymList(memory, "free", FREE, Block)
    pool.table = Table(memory, "table", HELD, Block)
    pool.ref_cnt, pool.new_block_ids = CountMap(memory), Sink()
    made: SymbolicBlockPool = pool
    return made


def _invariant(pool: SymbolicBlockPool) -> dict[str, Any]:
    """Every block is in the free queue, once, or held; its ref_cnt counts its holders."""
    memory = pool.memory
    where, ref_cnt, is_held, others, left = (
        memory[name] for name in ("where", "ref_cnt", "is held", "others", "hit left")
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
        "held blocks are told": is_held[block]
        == z3.If(z3.And(is_block, ref_cnt[block] > 0), z3.IntVal(1), z3.IntVal(0)),
    }
    said: dict[str, Any] = queue.representation() | pool.table.representation()
    # `others` never changes, so a block that a goal is about is looked up in every state.
    patterns = [where[block], others[block], is_held[block]]
    for name, fact in about_where.items():
        said[name] = z3.ForAll([block], fact, patterns=patterns)
    is_outside = z3.Implies(left[block] == 1, where[block] != HELD)
    said["hits left are outside of the table"] = z3.ForAll(
        [block], is_outside, patterns=[left[block]]
    )
    num_held = SymInt(memory[sum_of("is held")])
    said["free and held blocks are all blocks"] = symbolic_len(queue) + num_held == pool.num_blocks
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

        written = ("hit left", "free hits left", *pool.table.cells)
        yield from _cut(pool, "touching", obliged, self, *written)
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

        return _cut(pool, "taking", obliged, self, *pool.table.cells)

    def __getitem__(self, place: Any) -> Any:
        return place


@define
class _Reversed:
    """The table at hand, its last block first; a block that is looked at has left it."""

    pool: SymbolicBlockPool
    lo: Any
    hi: Any

    def symbolic_len(self) -> Any:
        """Answers `len`."""
        return SymInt(self.hi - self.lo)

    def num_unshared(self, place: Any) -> SymInt:
        """How many blocks of the table, from a place on, nobody else holds."""
        count = z3.Function("unshared blocks from", z3.IntSort(), z3.IntSort())
        return SymInt(count(place))

    def is_unshared(self) -> SymBool:
        """Whether nobody else holds any block."""
        block, others = z3.Int("block"), self.pool.memory["others"]
        return SymBool(z3.ForAll([block], others[block] == 0, patterns=[others[block]]))

    def __iter__(self) -> Iterator[Any]:
        pool, memory = self.pool, self.pool.memory
        queue: Any = pool.free_block_queue
        start, num_free = memory.snapshot(), symbolic_len(queue)
        memory.prover.assume(self.num_unshared(self.hi) == 0)

        def obliged() -> dict[str, Any]:
            cursor, num_put_first = SymInt(memory["cursor"]), pool.num_put_first
            end = self.hi - memory["cursor"]
            num_unshared = self.num_unshared(end)
            return _invariant(pool) | {
                "each block leaves": pool.table.hi == end,
                "who was not in the table stays": _others_stay(pool, start),
                "unshared blocks are free": symbolic_len(queue) == num_free + num_unshared,
                "no more are": all_of(num_unshared >= 0, num_unshared <= cursor),
                "all are, if none is shared": implies(self.is_unshared(), num_unshared == cursor),
                "those put first are in the queue": all_of(
                    num_put_first >= 0, num_put_first <= symbolic_len(queue)
                ),
            }

        yield from _cut(pool, "releasing", obliged, self, "num_put_first", "table.hi")

    def __getitem__(self, place: Any) -> Block:
        end = self.pool.table.hi
        block = self.pool.table.take_last()
        others = self.pool.memory.select("others", block.key)
        is_unshared = z3.If(others == 0, z3.IntVal(1), z3.IntVal(0))
        # What the count is, place by place.
        self.pool.memory.prover.assume(
            self.num_unshared(end - 1) == self.num_unshared(end) + SymInt(is_unshared)
        )
        return block


def _others_stay(pool: SymbolicBlockPool, start: dict[str, Any]) -> z3.BoolRef:
    block, where, was = z3.Int("block"), pool.memory["where"], start["where"]
    stays = z3.Implies(was[block] != HELD, where[block] == was[block])
    return z3.ForAll([block], stays, patterns=[where[block]])


def _cut(
    pool: SymbolicBlockPool, place: str, obliged: Any, container: Any, *writes: str
) -> Iterator[Any]:
    queue: Any = pool.free_block_queue
    ghosts = ("cursor", "where", "pos", "is held", sum_of("is held"))
    written = [*writes, *ghosts, "ref_cnt", *queue.cells]
    loop = Loop(place, pool.memory, obliged, dict, written, forgets=False)
    return cut_elements(loop, "cursor", container)


def _injected(pool: SymbolicBlockPool) -> contextlib.AbstractContextManager[None]:
    return lend(
        spec.block_pool,
        len=symbolic_len,
        range=lambda num: _Range(pool, num),
        reversed=lambda table: _Reversed(pool, table.lo, table.hi),
    )
