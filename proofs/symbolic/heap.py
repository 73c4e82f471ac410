"""Any number of requests: one array per field, queues as slices of arrays, ghosts for the rest.

Entry points: `Memory`, all that may change, by name, and the containers that the code of `spec`
finds in the place of its own: `View` (a request of unknown identity), `SymList`, `TokenMap`.

Two ghost arrays say where a request is: `where` names the one list that holds it (0 is none), `pos`
its place there. So each list holds a request once, no request is in two lists, and the solver needs
no induction to know it. A ghost sum of a field changes by what a write changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal

import z3
from attrs import define, field

from proofs.symbolic.prover import Prover
from proofs.symbolic.values import SymBool, SymInt, term
from spec.request import Request

INTS = z3.IntSort()
ARRAYS = z3.ArraySort(INTS, INTS)
NOWHERE = 0
"""The list of a request that is in none."""


@define
class Memory:
    """Every cell that a run may change: an integer or an array, by name."""

    prover: Prover
    cells: dict[str, Any] = field(factory=dict)
    sums: frozenset[str] = frozenset()
    """Fields whose sum over all requests is kept, in the cell `sum of FIELD`."""

    def add_integers(self, *names: str) -> None:
        """Adds integers of which nothing is known."""
        for name in names:
            self.cells[name] = self.prover.fresh(name, INTS)

    def add_arrays(self, *names: str) -> None:
        """Adds arrays of which nothing is known."""
        for name in names:
            self.cells[name] = self.prover.fresh(name, ARRAYS)

    def __getitem__(self, name: str) -> Any:
        return self.cells[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.cells[name] = self.prover.rename(name, value)

    def select(self, name: str, key: Any) -> Any:
        """Reads an array."""
        return z3.Select(self.cells[name], key)

    def store(self, name: str, key: Any, value: Any) -> None:
        """Writes an array, and keeps its sum."""
        if name in self.sums:
            total = sum_of(name)
            self.cells[total] = self.cells[total] + value - self.select(name, key)
        self[name] = z3.Store(self.cells[name], key, value)

    def clear(self, name: str) -> None:
        """Makes an array zero everywhere."""
        key = z3.Int("key")
        cleared = self.cells[name] = self.prover.fresh(name, ARRAYS)
        self.prover.assume(z3.ForAll([key], cleared[key] == 0, patterns=[cleared[key]]))
        if name in self.sums:
            self.cells[sum_of(name)] = z3.IntVal(0)

    def havoc(self, names: Collection[str]) -> None:
        """Forgets what some cells hold."""
        for name in names:
            self.cells[name] = self.prover.fresh(name, self.cells[name].sort())

    def snapshot(self) -> dict[str, Any]:
        """Returns what every cell holds."""
        return dict(self.cells)

    def changed_since(self, snapshot: dict[str, Any]) -> list[str]:
        """Names the cells that were written since a snapshot."""
        return [name for name, value in self.cells.items() if not value.eq(snapshot[name])]


def sum_of(name: str) -> str:
    """The cell that holds the sum of a field."""
    return f"sum of {name}"


def facts_of_sums(memory: Memory) -> Iterator[z3.BoolRef]:
    """Yields what is true of every sum of numbers that are not negative: it is at least each."""
    key = z3.Int("key")
    for name in sorted(memory.sums):
        total, numbers = memory[sum_of(name)], memory[name]
        yield total >= 0
        yield z3.ForAll([key], total >= numbers[key], patterns=[numbers[key]])


class View:
    """A request of unknown identity: its fields are in the memory, its methods are the real ones.

    What a proof leaves out (tokens, names of clients) is given by `opaque`, and forgotten if set.
    """

    num_tokens: Any = Request.num_tokens
    num_tokens_with_spec: Any = Request.num_tokens_with_spec
    append_output_token: Any = Request.append_output_token
    set_drafts: Any = Request.set_drafts
    _begin_counting: Any = Request._begin_counting  # noqa: SLF001  (it takes its place)

    def __init__(self, memory: Memory, key: Any, opaque: dict[str, Any]) -> None:
        vars(self).update(memory=memory, key=key, opaque=opaque)

    @property
    def request_id(self) -> SymInt:
        """The key, which is all that a name is good for."""
        return SymInt(self.key)

    def __getattr__(self, name: str) -> Any:
        if name in self.opaque:
            return self.opaque[name]
        return SymInt(self.memory.select(name, self.key))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "request_id":
            self.memory.prover.oblige("a request keeps its name", self.key == term(value))
        elif name not in self.opaque:
            self.memory.store(name, self.key, term(value))


class SymList:
    """The slice [lo, hi) of an array of requests; `see` shows a request by its key.

    The spec puts and takes anywhere; at both ends nobody else has to move.
    """

    def __init__(self, memory: Memory, name: str, code: int, see: Callable[[Any], Any]) -> None:
        self.memory = memory
        self.name = name
        self.code = code
        self.see = see
        # Who runs the body of `for request in list`; set by who cuts that loop.
        self.loop: Callable[[], Iterator[Any]] | None = None
        memory.add_integers(f"{name}.lo", f"{name}.hi")
        memory.add_arrays(f"{name}.arr")

    @property
    def lo(self) -> Any:
        """Where the slice begins."""
        return self.memory[f"{self.name}.lo"]

    @property
    def hi(self) -> Any:
        """Where the slice ends."""
        return self.memory[f"{self.name}.hi"]

    @property
    def arr(self) -> Any:
        """The array."""
        return self.memory[f"{self.name}.arr"]

    @property
    def cells(self) -> list[str]:
        """The names of its cells."""
        return [f"{self.name}.arr", f"{self.name}.lo", f"{self.name}.hi"]

    def symbolic_len(self) -> SymInt:
        """Answers `len`."""
        return SymInt(z3.simplify(self.hi - self.lo))

    def representation(self) -> dict[str, z3.BoolRef]:
        """Says that slice and ghosts are one list, which holds each of its own once."""
        where, pos = self.memory["where"], self.memory["pos"]
        key, place = z3.Int("key"), z3.Int("place")
        lo, hi, holder = self.lo, self.hi, self.arr[place]
        is_held = z3.And(where[holder] == self.code, pos[holder] == place)
        is_found = z3.And(lo <= pos[key], pos[key] < hi, self.arr[pos[key]] == key)
        return {
            f"{self.name} has a length": lo <= hi,
            f"{self.name} holds its own": z3.ForAll(
                [place], z3.Implies(z3.And(lo <= place, place < hi), is_held), patterns=[holder]
            ),
            f"{self.name} is complete": z3.ForAll(
                [key], z3.Implies(where[key] == self.code, is_found), patterns=[where[key]]
            ),
        }

    def empty(self) -> None:
        """Makes it an empty list."""
        self.memory[f"{self.name}.lo"] = self.memory[f"{self.name}.hi"] = z3.IntVal(0)

    def __iter__(self) -> Iterator[Any]:
        assert self.loop is not None, f"nobody cuts a loop over {self.name} here"
        return self.loop()

    def __getitem__(self, index: Any) -> Any:
        return self.see(self._key_at(self._place(index)))

    def __delitem__(self, index: Any) -> None:
        self._close_gap(self._place(index))

    def index(self, request: Any) -> SymInt:
        """Finds a request."""
        self._oblige_member(request)
        return SymInt(z3.simplify(self.memory.select("pos", request.key) - self.lo))

    def remove(self, request: Any) -> None:
        """Removes a request wherever it stands."""
        self._oblige_member(request)
        self._close_gap(self.memory.select("pos", request.key))

    def pop(self, index: Any = -1) -> Any:
        """Removes an element and returns it."""
        place = self._place(index)
        request = self.see(self._key_at(place))
        self._take(place)
        return request

    def append(self, request: Any) -> None:
        """Puts a request to the end."""
        self._put(self.hi, request)
        self.memory[f"{self.name}.hi"] = self.hi + 1

    def insert(self, index: Any, request: Any) -> None:
        """Puts a request to a place; everybody from there on moves one place down."""
        if isinstance(index, int) and index == 0:
            self.memory[f"{self.name}.lo"] = self.lo - 1
            self._put(self.lo, request)
            return
        place = z3.simplify(self.lo + term(index))
        inside = z3.And(self.lo <= place, place <= self.hi)
        self.memory.prover.oblige(f"a place to join {self.name} is inside", inside)
        self._move(place, 1)
        self._put(place, request)
        self.memory[f"{self.name}.hi"] = self.hi + 1

    def _place(self, index: Any) -> Any:
        is_from_end = isinstance(index, int) and index < 0
        place = z3.simplify((self.hi if is_from_end else self.lo) + term(index))
        inside = z3.And(self.lo <= place, place < self.hi)
        self.memory.prover.oblige(f"an index into {self.name} is inside", inside)
        return place

    def _key_at(self, place: Any) -> Any:
        return z3.simplify(z3.Select(self.arr, place))

    def _oblige_member(self, request: Any) -> None:
        is_member = self.memory.select("where", request.key) == self.code
        self.memory.prover.oblige(f"who is looked for is in {self.name}", is_member)

    def _put(self, place: Any, request: Any) -> None:
        memory = self.memory
        is_free = memory.select("where", request.key) == NOWHERE
        memory.prover.oblige(f"who joins {self.name} is in no list", is_free)
        memory[f"{self.name}.arr"] = z3.Store(self.arr, place, request.key)
        memory.store("where", request.key, z3.IntVal(self.code))
        memory.store("pos", request.key, place)

    def _take(self, place: Any) -> None:
        """Removes from an end if it can, since nobody has to move then."""
        key = self._key_at(place)
        if SymBool(place == self.lo):
            self.memory[f"{self.name}.lo"] = self.lo + 1
        elif SymBool(place == self.hi - 1):
            self.memory[f"{self.name}.hi"] = self.hi - 1
        else:
            self._close_gap(place)
            return
        self.memory.store("where", key, z3.IntVal(NOWHERE))

    def _close_gap(self, gap: Any) -> None:
        """Removes who stands at a place; everybody behind moves one place up."""
        gone = self._key_at(gap)
        self._move(gap + 1, -1)
        self.memory[f"{self.name}.hi"] = self.hi - 1
        self.memory.store("where", gone, z3.IntVal(NOWHERE))

    def _move(self, first: Any, by: Literal[1, -1]) -> None:
        """Moves everybody from a place on by one place; what is moved over is lost."""
        memory, arr, pos, where = self.memory, self.arr, self.memory["pos"], self.memory["where"]
        memory.havoc([f"{self.name}.arr", "pos"])
        new_arr, new_pos = self.arr, memory["pos"]
        place, key = z3.Int("place"), z3.Int("key")
        moved = z3.If(place < first + min(by, 0), arr[place], arr[place - by])
        is_behind = z3.And(where[key] == self.code, pos[key] >= first)
        memory.prover.assume(
            z3.ForAll([place], new_arr[place] == moved, patterns=[new_arr[place]]),
            z3.ForAll(
                [key],
                new_pos[key] == z3.If(is_behind, pos[key] + by, pos[key]),
                patterns=[new_pos[key]],
            ),
        )


class TokenMap:
    """A dictionary from requests to token counts, all positive: an array where 0 is absent."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.memory = memory
        self.name = name

    def get(self, key: Any, default: int) -> SymInt:
        """Reads; what is absent is 0, and nothing else is asked for."""
        assert default == 0, f"an absent entry is 0, not {default}"
        return SymInt(self.memory.select(self.name, term(key)))

    def __contains__(self, key: Any) -> bool:
        return bool(self.get(key, 0) > 0)

    def __getitem__(self, key: Any) -> SymInt:
        self._oblige_present(key)
        return self.get(key, 0)

    def __setitem__(self, key: Any, value: Any) -> None:
        prover = self.memory.prover
        prover.oblige(f"an entry of {self.name} is positive", term(value) >= 1)
        prover.oblige(f"an entry of {self.name} is written once", term(self.get(key, 0)) == 0)
        self.memory.store(self.name, term(key), term(value))

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

    def pop(self, key: Any) -> SymInt:
        """Removes an entry and returns it."""
        value = self[key]
        self.memory.store(self.name, term(key), z3.IntVal(0))
        return value

    def _oblige_present(self, key: Any) -> None:
        self.memory.prover.oblige(f"an entry of {self.name} is there", self.get(key, 0).term > 0)


class KeySet(TokenMap):
    """A dictionary of which only the keys matter."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, 1)


class RequestMap(KeySet):
    """`requests`: who is alive, by name."""

    def __init__(self, memory: Memory, name: str, see: Callable[[Any], Any]) -> None:
        super().__init__(memory, name)
        self.see = see

    def __getitem__(self, key: Any) -> Any:
        self._oblige_present(key)
        return self.see(term(key))

    def pop(self, key: Any) -> Any:
        """Removes an entry and returns it."""
        request = self[key]
        self.memory.store(self.name, term(key), z3.IntVal(0))
        return request


class Counter:
    """A list of which only the length matters."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.memory = memory
        self.name = name

    def symbolic_len(self) -> SymInt:
        """Answers `len`."""
        return SymInt(self.memory[self.name])

    def append(self, element: Any) -> None:
        """Counts an element."""
        self.memory[self.name] = self.memory[self.name] + 1


class Sink:
    """Takes whatever it is given and forgets it."""

    def append(self, element: Any) -> None:
        """Forgets an element."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Forgets an entry."""

    def get(self, key: Any) -> None:
        """Knows nothing."""

    def setdefault(self, key: Any, default: Any) -> Any:
        """Hands the default out, and forgets it."""
        return default


class Cell:
    """A plain number of an object, kept in its `memory`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> SymInt:
        return SymInt(instance.memory[self.name])

    def __set__(self, instance: Any, value: Any) -> None:
        instance.memory[self.name] = term(value)


class RequestCell:
    """A request that an object names, kept by its key in its `memory`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return instance.see(instance.memory[self.name])

    def __set__(self, instance: Any, request: Any) -> None:
        instance.memory[self.name] = request.key


class Emptied:
    """A list in memory that the spec only ever sets to a new, empty one."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return instance.lists[self.name]

    def __set__(self, instance: Any, value: list[Any]) -> None:
        assert value == [], f"{self.name} is set to a list that is not empty"
        instance.lists[self.name].empty()
