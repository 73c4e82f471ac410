"""The loop rule for a loop that carries a local variable.

Entry point: `cut_with_local`. A proof cannot forget a local variable of the code that it runs. But
it can give the symbol that the variable holds another meaning, and it can read the variable when
the iteration is over. So what is claimed of it is obliged like all that is claimed at the cut.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from proofs.symbolic.loops import Loop, cut_elements
from proofs.symbolic.prover import FrameError
from proofs.symbolic.values import SymInt, UnsupportedError, term

ValueAt = Callable[[Any], Any]
"""What a local variable holds before the iteration of a number."""


class _Earlier:
    """Stands in a list for all that earlier iterations have gathered; nobody may look at it."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise UnsupportedError("an iteration looks at what earlier ones have gathered")

    def __bool__(self) -> bool:
        raise UnsupportedError("an iteration looks at what earlier ones have gathered")


EARLIER = _Earlier()


def cut_with_local(
    loop: Loop, container: Any, carried: str, value_at: ValueAt, gathered: str | None = None
) -> Iterator[Any]:
    """Cuts `for element in container:` where the body carries one local variable, a number.

    If a local list is `gathered`, an iteration must append to it what the variable held before.
    Raises `FrameError` if the body carries another local variable.
    """
    frame = inspect.currentframe()
    assert frame is not None, "the interpreter has frames"
    assert frame.f_back is not None, "somebody loops"
    code, prover, memory = frame.f_back, loop.memory.prover, loop.memory
    local = _symbol_of(code.f_locals, carried, gathered)
    prover.oblige(f"{carried} at first", local == value_at(term(0)))
    for element in cut_elements(loop, "cursor", container):
        place = memory["cursor"]
        local.term = value_at(place)
        if gathered is not None:
            code.f_locals[gathered].append(EARLIER)
        before = dict(code.f_locals)
        yield element
        after = dict(code.f_locals)
        _check_frame(before, after, carried)
        prover.oblige(f"{carried} again", after[carried] == value_at(place + 1))
        if gathered is not None:
            earlier, *added = after[gathered]
            is_one = earlier is EARLIER and len(added) == 1
            prover.oblige("one is gathered", is_one and added[0] == value_at(place))
    local.term = value_at(term(container.symbolic_len()))
    if gathered is not None:
        code.f_locals[gathered].append(EARLIER)


def _symbol_of(names: Mapping[str, Any], carried: str, gathered: str | None) -> SymInt:
    """Returns the symbol that a local variable holds, if it alone holds it."""
    holders = [name for name, value in names.items() if value is names[carried]]
    # What arithmetic makes is remembered and may serve elsewhere; it is of no subclass.
    is_own = isinstance(names[carried], SymInt) and type(names[carried]) is not SymInt
    if holders != [carried] or not is_own:
        raise FrameError(f"{' and '.join(holders)} must hold a symbol, each one of its own")
    lists = [name for name, value in names.items() if isinstance(value, list | dict | set)]
    if lists != ([] if gathered is None else [gathered]) or any(names[name] for name in lists):
        raise FrameError(f"a loop may fill {', '.join(lists)}; say what it gathers, from nothing")
    symbol: SymInt = names[carried]
    return symbol


def _check_frame(before: Mapping[str, Any], after: Mapping[str, Any], carried: str) -> None:
    """Raises if an iteration has set another local variable, but for those that begin with it."""
    for name, value in before.items():
        if name != carried and after.get(name) is not value:
            raise FrameError(f"an iteration sets {name}, of which nothing is claimed")
