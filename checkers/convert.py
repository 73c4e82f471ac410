"""One strict converter between our data and JSON or TOML: nothing unknown, nothing coerced.

Entry points: `make_converter`, and `explain` for what it objects to; `name_known` for a name that
is unknown.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import list_structure_factory
from cattrs.gen import make_dict_structure_fn, make_mapping_structure_fn

Hook = Callable[[Any, Any], Any]
"""Takes a value and the type that it should have; returns it, or raises `ValueError`."""

MAX_SHOWN = 60
"""Characters of a value in a message."""


def make_converter() -> cattrs.Converter:
    """A converter that refuses unknown keys, and coerces nothing."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(int, structure_int)
    converter.register_structure_hook(float, _structure_float)
    converter.register_structure_hook(bool, _structure_bool)
    converter.register_structure_hook(str, _structure_str)
    converter.register_structure_hook_func(_is_a(Literal), _structure_literal)
    converter.register_structure_hook_factory(attrs.has, _make_object_hook)
    converter.register_structure_hook_factory(_is_a(dict), _make_dict_hook)
    converter.register_structure_hook_factory(_is_a(list), _make_list_hook)
    converter.register_structure_hook_factory(_is_a_row, _make_tuple_hook)
    return converter


def _is_a(origin: Any) -> Callable[[Any], bool]:
    return lambda kind: get_origin(kind) is origin


def _is_a_row(kind: Any) -> bool:
    return get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis


def structure_int(value: Any, kind: Any) -> int:
    """A whole number. Raises `ValueError` for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a whole number; give one")
    return value


def _structure_float(value: Any, kind: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{shown(value)} is not a number; give one")
    return float(value)


def _structure_bool(value: Any, kind: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false; say one of them")
    return value


def _structure_str(value: Any, kind: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a text; put it in quotes")
    return value


def _structure_literal(value: Any, kind: Any) -> Any:
    choices = get_args(kind)
    if value not in choices:
        known = " or ".join(map(str, choices))
        raise ValueError(f"{shown(value)} is unknown; choose {known}")
    return value


def _make_object_hook(kind: Any, converter: cattrs.Converter) -> Hook:
    return _only(dict, "an object with fields", make_dict_structure_fn(kind, converter))


def _make_dict_hook(kind: Any, converter: cattrs.Converter) -> Hook:
    return _only(dict, "an object with fields", make_mapping_structure_fn(kind, converter))


def _make_list_hook(kind: Any, converter: cattrs.Converter) -> Hook:
    return _only(list, "a list", list_structure_factory(kind, converter))


def _make_tuple_hook(kind: Any, converter: cattrs.Converter) -> Hook:
    as_list: Any = list.__class_getitem__(get_args(kind)[0])
    structure_list = _make_list_hook(as_list, converter)
    return lambda value, _: tuple(structure_list(value, as_list))


def _only(expected: type, words: str, structure: Callable[..., Any]) -> Hook:
    """A hook that takes values of one type alone: a text is a row of letters only to Python."""

    def structure_only(value: Any, kind: Any) -> Any:
        if not isinstance(value, expected):
            raise ValueError(f"{shown(value)} is not {words}; give one")
        return structure(value, kind)

    return structure_only


def shown(value: Any) -> str:
    """A value as a message names it: in full if it is short."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def name_known(unknown: Iterable[str], known: Iterable[str]) -> str:
    """What somebody may have meant by a name, and all that there are."""
    known = list(known)
    meant = [name for each in unknown for name in difflib.get_close_matches(each, known, n=1)]
    question = f"did you mean {' and '.join(meant)}? " if meant else ""
    return f"{question}known are {', '.join(known)}"


def explain(error: Exception) -> str:
    """What a converter objects to, in one line: the place of the first fault, and the way out."""
    first, *others = cattrs.transform_error(error, "$", _describe)
    text, _, place = first.rpartition(" @ $")
    sentence = f"{place.removeprefix('.')}: {text}" if place else text
    return f"{sentence} (and {len(others)} more)" if others else sentence


def _describe(error: BaseException, kind: Any) -> str:
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [field.name for field in attrs.fields(error.cl)]
        unknown = sorted(error.extra_fields)
        return f"{', '.join(unknown)} is unknown; {name_known(unknown, known)}"
    if isinstance(error, KeyError):
        return "this field is missing; give it a value"
    return str(error)
