"""Two implementations side by side: every pair of states that any operations lead to.

Entry point: `explore`. It is breadth first, so a difference comes with a shortest run, and it ends
when no pair is new. If a pair's `key` is all that its future depends on, then what was found to
hold of all pairs holds in every run, of any length.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import z3
from attrs import define, field, frozen

from proofs.theorem import (
    Failure,
    ObligationSink,
    Proof,
    Say,
    Theorem,
    be_quiet,
    first_line,
    register,
)

Pair = TypeVar("Pair")
Comparison = tuple[str, object, object]
"""What is compared, what is expected, and what is there."""
MAX_NUM_STATES = 1_000_000
"""Against code that is so wrong that its states have no end."""


@frozen
class Operation(Generic[Pair]):
    """Something that may be done to a pair, both its preconditions met."""

    name: str
    do: Callable[[Pair], Iterator[Comparison]]
    """Does it to both and compares their answers."""


class World(Protocol[Pair]):
    """Which pairs there are, and what they are asked."""

    @property
    def label(self) -> str:
        """What it is called in a report."""

    def start(self) -> Pair:
        """Builds both as they are at first."""

    def operations(self, pair: Pair) -> Iterator[Operation[Pair]]:
        """Yields all that may happen next; each is done to a copy of the pair."""

    def compare(self, pair: Pair) -> Iterator[Comparison]:
        """Compares what both are after an operation."""

    def key(self, pair: Pair) -> Hashable:
        """Returns all that the future of a pair depends on, but for names."""


@define
class Exploration(Generic[Pair]):
    """What was looked at, and the first difference."""

    world: World[Pair]
    num_states: int = 0
    num_operations: int = 0
    num_comparisons: int = 0
    difference: str | None = None
    run: tuple[str, ...] = ()
    """The operations that lead to the difference; no shorter run does."""
    is_complete: bool = True
    """Whether no pair is left that has not been looked at."""
    _came_by: dict[Hashable, tuple[Hashable, str]] = field(factory=dict)
    """How a pair was reached: from which one, by which operation."""
    _todo: deque[tuple[Hashable, bytes]] = field(factory=deque)

    @property
    def label(self) -> str:
        """The world, and how much of it was looked at."""
        return (
            f"{self.world.label}: {self.num_states:,} pairs of states, "
            f"{self.num_operations:,} operations"
        )

    def run_all(self) -> None:
        """Looks at every pair, or stops at the first difference."""
        start = self.world.start()
        if self._is_alike(self.world.compare(start)):
            self._add(self.world.key(start), start, (None, "start"))
        while self._todo and self.difference is None:
            if self.num_states > MAX_NUM_STATES:
                self.is_complete = False
                return
            self._expand(*self._todo.popleft())

    def _expand(self, key: Hashable, saved: bytes) -> None:
        for operation in self.world.operations(_load(saved)):
            pair: Pair = _load(saved)
            self.num_operations += 1
            if not self._is_alike(self._answers(operation, pair)):
                self.run = (*self._run_to(key), operation.name)
                return
            self._add(self.world.key(pair), pair, (key, operation.name))

    def _answers(self, operation: Operation[Pair], pair: Pair) -> Iterator[Comparison]:
        try:
            yield from operation.do(pair)
            yield from self.world.compare(pair)
        except Exception as error:  # noqa: BLE001  (an operation that its precondition allows raises)
            yield "no error", "", repr(error)

    def _is_alike(self, comparisons: Iterator[Comparison]) -> bool:
        for what, expected, actual in comparisons:
            self.num_comparisons += 1
            if expected != actual:
                self.difference = f"{what}: expected {expected}, found {actual}"
                return False
        return True

    def _add(self, key: Hashable, pair: Pair, came_by: tuple[Hashable, str]) -> None:
        if key not in self._came_by:
            self._came_by[key] = came_by
            self._todo.append((key, pickle.dumps(pair, pickle.HIGHEST_PROTOCOL)))
            self.num_states += 1

    def _run_to(self, key: Hashable) -> list[str]:
        names = []
        while key is not None:
            key, name = self._came_by[key]
            names.append(name)
        return names[::-1]


def _load(saved: bytes) -> Pair:  # type: ignore[type-var]
    pair: Pair = pickle.loads(saved)  # noqa: S301  (what was pickled above)
    return pair


def explore(world: World[Pair]) -> Exploration[Pair]:
    """Looks at every pair of states that operations lead to, or stops at the first difference."""
    exploration = Exploration(world)
    exploration.run_all()
    return exploration


def exhaustive(
    *, mutants: tuple[str, ...], assumptions: tuple[str, ...] = (), is_slow: bool = False
) -> Callable[[Callable[[], Iterator[World[Any]]]], Theorem]:
    """Registers a theorem: in the worlds that the decorated function yields, both are alike.

    Its name and the first line of its docstring are the theorem's.
    """

    def decorate(worlds: Callable[[], Iterator[World[Any]]]) -> Theorem:
        name = worlds.__name__

        def prove(export: ObligationSink, say: Say = be_quiet) -> Proof:
            return prove_alike(name, worlds(), say)

        return register(
            Theorem(
                name=name,
                statement=first_line(worlds.__doc__),
                scope="bounded",
                assumptions=assumptions,
                bounds="; ".join(world.label for world in worlds()),
                prove=prove,
                mutants=mutants,
                is_slow=is_slow,
            )
        )

    return decorate


def prove_alike(name: str, worlds: Iterator[World[Any]], say: Say = be_quiet) -> Proof:
    """Explores worlds up to the first difference; a path is a pair of states, and is looked at."""
    proof = Proof(name)
    for world in worlds:
        say(f"{name}: {world.label}")
        exploration = explore(world)
        proof.num_paths += exploration.num_states
        proof.num_claims += exploration.num_comparisons
        if exploration.difference is not None:
            proof.failure = failure_of(exploration)
            break
        if exploration.is_complete:
            proof.looked_at.append(exploration.label)
        else:
            proof.undecided.append(f"{world.label}: more than {MAX_NUM_STATES:,} pairs of states")
    return proof


def failure_of(exploration: Exploration[Any]) -> Failure:
    """The first difference, and a shortest run to it."""
    assert exploration.difference is not None, "there is a difference"
    solver = z3.Solver()
    solver.check()
    lines = (exploration.world.label, *exploration.run, exploration.difference)
    return Failure(exploration.difference, solver.model(), lines)
