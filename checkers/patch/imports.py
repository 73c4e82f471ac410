"""What an engine imports beside its own package: a change there is none of the package.

Entry points: `find_imported`, and `module_of` for a file. Imports are read in the sources, and
nothing is run; what is put together at run time is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def find_imported(package: Path, root: Path) -> set[str]:
    """The modules that a package, or one file, imports; those below `root` import others in turn.

    Their names, beside which are names that stand for no module.
    """
    found: set[str] = set()
    waiting = [package] if package.is_file() else sorted(package.rglob("*.py"))
    while waiting:
        for name in set(_find_names(waiting.pop())) - found:
            found.add(name)
            place = root / name.replace(".", "/")
            files = (place.parent / f"{place.name}.py", place / "__init__.py")
            waiting += [file for file in files if file.is_file()]
    return found


def module_of(path: Path) -> str:
    """The name of the module in a file, by its path below the folder it is imported from."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _find_names(file: Path) -> Iterator[str]:
    """Yields the modules that a file may import, and the packages that they are in."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # What is imported of a package may be a module.
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: end + 1]) for end in range(len(parts)))
