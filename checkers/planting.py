"""A wrong method in the place of a right one, for a while.

Entry point: `planted_at`. What plants bugs to be caught, and what plants them to be refuted, both
stand on it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

Method = Callable[..., Any]


@contextmanager
def planted_at(target: str, plant: Callable[[Method], Method]) -> Iterator[None]:
    """Puts what `plant` makes of a method in its place for as long as the block lasts.

    The method is named `module:Class.method`, or `module:function`. What a class only inherits, it
    inherits again afterwards.
    """
    module_name, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner: Any = reduce(getattr, owners, importlib.import_module(module_name))
    original, is_own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, plant(original))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
