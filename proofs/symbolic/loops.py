"""The loop rule: one arbitrary iteration of a loop stands for all of them.

Entry points: `cut_rule`, for `while self._rule(): pass`, and `cut_elements`, for
`for element in container:`. The claim is obliged before the loop; then everything that an iteration
may write is forgotten and the claim assumed; the real body runs once; then the claim is obliged
again, with a smaller variant, and the path ends. The code behind the loop goes on from the claim
and the failed test.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from attrs import frozen

from proofs.symbolic.heap import Memory
from proofs.symbolic.prover import FrameError, PathDoneError
from proofs.symbolic.values import SymInt, all_of, term

Claims = Mapping[str, Any]
"""What is claimed, by name."""


@frozen
class Loop:
    """What has to be known of a loop to cut it."""

    place: str
    memory: Memory
    obliged: Callable[[], Claims]
    """What this proof shows before the loop and after each iteration."""
    assumed: Callable[[], Claims]
    """What holds there, too, and is shown elsewhere or is true of every sum."""
    writes: Collection[str]
    """The cells that an iteration may write; it is an error if it writes another."""
    about: tuple[Any, ...] = ()
    """The terms that the claim asks for beside the cells."""
    forgets: bool = True
    """Whether the path up to here is forgotten."""

    def enter(self) -> dict[str, Any]:
        """Obliges the claim, and moves to an arbitrary later state of which only it is known."""
        prover = self.memory.prover
        prover.place = f"{self.place} before"
        prover.oblige_all(self.obliged)
        if self.forgets:
            prover.forget(self.place, (*self._kept_terms(), *self.about))
        self.memory.havoc(self.writes)
        prover.assume(*self.obliged().values(), *self.assumed().values())
        prover.place = f"{self.place} body"
        return self.memory.snapshot()

    def _kept_terms(self) -> list[Any]:
        return [value for name, value in self.memory.cells.items() if name not in self.writes]

    def close(self, start: dict[str, Any]) -> None:
        """Checks that an iteration wrote only what it may."""
        written = [name for name in self.memory.changed_since(start) if name not in self.writes]
        if written:
            raise FrameError(
                f"an iteration of {self.place} writes {', '.join(written)}, which the loop rule "
                "keeps; add it to what the loop writes"
            )

    def end(self, variant: tuple[Any, Any]) -> None:
        """Obliges the claim and a smaller, bounded variant, and ends the path."""
        prover = self.memory.prover
        prover.place = f"{self.place} again"
        prover.oblige_all(self.obliged)
        before, after = variant
        prover.oblige("the loop ends", all_of(before >= 1, after < before))
        raise PathDoneError


def cut_rule(loop: Loop, variant: Callable[[], Any], body: Callable[[], bool]) -> bool:
    """Cuts `while self._rule(): pass` inside the rule; returns False, so that the loop is left."""
    start = loop.enter()
    before = variant()
    goes_on = bool(body())
    loop.close(start)
    if goes_on:
        loop.end((before, variant()))
    loop.memory.prover.place = f"{loop.place} after"
    return False


def cut_elements(loop: Loop, cursor: str, container: Any) -> Iterator[Any]:
    """Cuts `for element in container:`; the claim may ask the cell `cursor` how far it has come."""
    memory = loop.memory
    memory[cursor] = term(0)
    start = loop.enter()
    place = SymInt(memory[cursor])
    num_elements = container.symbolic_len()
    memory.prover.assume(all_of(place >= 0, place <= num_elements))
    if place < num_elements:
        yield container[place]
        loop.close(start)
        memory[cursor] = term(place + 1)
        loop.end((num_elements - place, num_elements - place - 1))
    memory.prover.place = f"{loop.place} after"
