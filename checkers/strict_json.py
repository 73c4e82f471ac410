"""JSON read strictly: every value has the type that is asked for, and every key is asked for.

Entry points: `parse` for a text, `Fields` for an object. Whatever is not as it should be raises
`Malformed`, whose sentence names the place in the document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Read = Callable[[Any, str], T]
"""Takes a value and its place; returns it with its type, or raises `Malformed`."""
MAX_SHOWN = 60
"""Characters of a value that a message shows."""


class Malformed(Exception):  # noqa: N818  (caught where the file and the line are known)
    """A document is not what it should be; the sentence says what, and the way out."""


def parse(text: bytes) -> Any:
    """Reads a JSON document. A key that stands twice in an object is refused."""
    try:
        return json.loads(
            text.decode(), object_pairs_hook=_make_object, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError:
        raise Malformed("is not UTF-8 text; name a recording in JSON lines") from None
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not JSON ({error}); each line is one JSON object") from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Malformed(f"has {twice!r} twice in one object; keep one of them")
    return made


def _refuse_constant(name: str) -> None:
    raise Malformed(f"holds {name}, which JSON does not know; write a number")


class Fields:
    """The fields of an object, each taken once by name and type."""

    __slots__ = ("_place", "_raw", "_taken")

    def __init__(self, raw: Any, place: str = "") -> None:
        if type(raw) is not dict:
            raise _unexpected(raw, place, "an object")
        self._raw: dict[str, Any] = raw
        self._place = f"{place}." if place else ""
        self._taken: set[str] = set()

    def take(self, name: str, read: Read[T]) -> T:
        """Returns a field's value."""
        if name not in self._raw:
            raise Malformed(f"{self._place}{name} is missing; mend what writes the file")
        self._taken.add(name)
        return read(self._raw[name], f"{self._place}{name}")

    def has(self, name: str) -> bool:
        """Whether a field is there."""
        return name in self._raw

    def take_if_there(self, name: str, read: Read[T]) -> T | None:
        """Returns a field's value; None if it is not there."""
        return self.take(name, read) if self.has(name) else None

    def end(self) -> None:
        """Refuses the fields that nobody took."""
        unknown = [name for name in self._raw if name not in self._taken]
        if unknown:
            known = ", ".join(sorted(self._taken))
            raise Malformed(
                f"{self._place}{unknown[0]} is unknown; remove it, or spell it as one of {known}"
            )


def whole(value: Any, place: str) -> int:
    """A whole number."""
    if type(value) is not int:
        raise _unexpected(value, place, "a whole number")
    return value


def count(value: Any, place: str) -> int:
    """A whole number that is not negative."""
    if whole(value, place) < 0:
        raise _unexpected(value, place, "a number from 0 up")
    return int(value)


def number(value: Any, place: str) -> float:
    """A finite number."""
    if type(value) not in {int, float} or not abs(value) <= sys.float_info.max:
        raise _unexpected(value, place, "a number")
    return float(value)


def flag(value: Any, place: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise _unexpected(value, place, "true or false")
    return value


def text(value: Any, place: str) -> str:
    """A text."""
    if type(value) is not str:
        raise _unexpected(value, place, "a text")
    return value


def optional(read: Read[T]) -> Read[T | None]:
    """Null, or what `read` takes."""

    def read_optional(value: Any, place: str) -> T | None:
        return None if value is None else read(value, place)

    return read_optional


def list_of(read: Read[T]) -> Read[list[T]]:
    """A list of what `read` takes."""

    def read_list(value: Any, place: str) -> list[T]:
        if type(value) is not list:
            raise _unexpected(value, place, "a list")
        return [read(item, f"{place}[{index}]") for index, item in enumerate(value)]

    return read_list


def dict_of(read: Read[T]) -> Read[dict[str, T]]:
    """An object with any keys, whose values `read` takes."""

    def read_dict(value: Any, place: str) -> dict[str, T]:
        if type(value) is not dict:
            raise _unexpected(value, place, "an object")
        return {key: read(item, f"{place}.{key}") for key, item in value.items()}

    return read_dict


def _unexpected(value: Any, place: str, expected: str) -> Malformed:
    subject = place or "the document"
    return Malformed(f"{subject} is {_show(value)}, expected {expected}; mend what writes the file")


def _show(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    shown = json.dumps(value)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
