"""One strict converter between our data and JSON or TOML: nothing unknown, nothing coerced."""

from __future__ import annotations

from typing import Any

import cattrs


def make_converter() -> cattrs.Converter:
    """A converter that refuses unknown keys, and coerces nothing."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(int, structure_int)
    converter.register_structure_hook(bool, _structure_bool)
    converter.register_structure_hook(str, _structure_str)
    return converter


def structure_int(value: Any, kind: Any) -> int:
    """A whole number. Raises `ValueError` for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _structure_bool(value: Any, kind: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _structure_str(value: Any, kind: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def explain(error: Exception) -> str:
    """What a converter objects to, in one line: the faults and their places."""
    faults = cattrs.transform_error(error)
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    return "; ".join(faults[:3]) + more
