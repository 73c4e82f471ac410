"""Whether what an engine answers has the types that `spec.interface` declares.

Entry point: `find_faults`. What judges and compares answers relies on it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

WORDS: dict[type, str] = {
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    types.NoneType: "None",
    list: "a list",
    tuple: "a tuple",
    dict: "a dict",
}
"""What a message calls a value of a type."""
MAX_INT = 2**63
"""A number beyond it counts nothing, and names nothing."""
MAX_SHOWN = 60
"""Characters of a value in a message."""


def find_faults(value: Any, kind: Any, place: str) -> Iterator[str]:
    """Yields each place where a value departs from the type it is declared with."""
    origin = get_origin(kind)
    if attrs.has(kind):
        yield from _find_in_object(value, kind, place)
    elif origin is Union or origin is types.UnionType:
        faults = [list(find_faults(value, option, place)) for option in get_args(kind)]
        yield from [] if [] in faults else faults[0]
    elif not is_a(value, origin or kind):
        yield f"{place} is {describe(value)}, expected {WORDS[origin or kind]}"
    elif kind is int and abs(value) > MAX_INT:
        yield f"{place} has {value.bit_length()} bits, expected {WORDS[int]} of at most 64"
    elif origin is dict:
        yield from _find_in_dict(value, get_args(kind), place)
    elif origin is not None:
        yield from _find_in_row(value, get_args(kind), place)


def _find_in_object(value: Any, kind: Any, place: str) -> Iterator[str]:
    if not isinstance(value, kind):
        yield f"{place} is {describe(value)}, expected {kind.__name__}"
        return
    for name, field_kind in fields_of(kind):
        yield from find_faults(getattr(value, name), field_kind, f"{place}.{name}")


def _find_in_dict(value: dict[Any, Any], kinds: tuple[Any, ...], place: str) -> Iterator[str]:
    key_kind, item_kind = kinds
    for key, item in value.items():
        yield from find_faults(key, key_kind, f"a key of {place}")
        yield from find_faults(item, item_kind, f"{place}[{key!r}]")


def _find_in_row(value: Any, kinds: tuple[Any, ...], place: str) -> Iterator[str]:
    if len(kinds) == 1 or kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        yield f"{place} has {len(value)} items, expected {len(kinds)}"
    for index, (item, kind) in enumerate(zip(value, kinds, strict=False)):
        yield from find_faults(item, kind, f"{place}[{index}]")


@functools.cache
def fields_of(kind: type) -> tuple[tuple[str, Any], ...]:
    """The fields of a class, with their types."""
    # Not with `attrs.resolve_types`, which changes the class for everybody else.
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in attrs.fields(kind))


def is_a(value: Any, kind: type) -> bool:
    """As `isinstance`, but true and false are no numbers."""
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def describe(value: Any) -> str:
    """A value in a message: short, and the same in every run, which a memory address is not."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return f"of type {type(value).__name__}"
