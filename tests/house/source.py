"""The files of the repository, as the house tests read them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("spec", "impl", "checkers", "proofs", "gpu_conformance")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
LEFT_BY_TOOLS = {"__pycache__", "build", "dist", "counterexamples"}


def files() -> Iterator[Path]:
    """Yields every file that is part of the repository, relative to its root."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if _is_ours(name))
        # In a work tree of git's, `.git` is a file.
        for name in sorted({*names} - {".git"}):
            yield Path(folder, name).relative_to(ROOT)


def _is_ours(folder: str) -> bool:
    if folder.startswith("."):
        return folder == ".ci"
    return folder not in LEFT_BY_TOOLS and not folder.endswith(".egg-info")


def python_files(*folders: str) -> list[Path]:
    """Returns the Python files under the given top-level folders, or all of them."""
    return [
        path
        for path in files()
        if path.suffix == ".py" and (not folders or path.parts[0] in folders)
    ]


@cache
def parse(path: Path) -> ast.Module:
    """Parses a file of the repository."""
    return ast.parse((ROOT / path).read_text(), str(path))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Yields functions and methods by qualified name; what is nested belongs to its owner."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from functions(node, prefix)
