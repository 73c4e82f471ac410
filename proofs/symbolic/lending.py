"""Names of a module, lent for a while: what takes symbols in the place of what does not.

Entry points: `lend`, for one module, and `lend_all`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def lend(module: ModuleType, **lent: Any) -> Iterator[None]:
    """Puts values in the place of names of a module, builtins included; takes them back."""
    names = vars(module)
    kept = {name: names[name] for name in lent if name in names}
    names.update(lent)
    try:
        yield
    finally:
        for name in lent:
            del names[name]
        names.update(kept)


@contextlib.contextmanager
def lend_all(lent: Mapping[ModuleType, Mapping[str, Any]]) -> Iterator[None]:
    """The same for several modules."""
    with contextlib.ExitStack() as stack:
        for module, names in lent.items():
            stack.enter_context(lend(module, **names))
        yield
