"""Which folder may import what, and which imports break that."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import PurePath

from attrs import frozen

from tests.house.source import PACKAGES, FunctionNode

OURS = (*PACKAGES, "examples", "benchmarks", "tests")


@frozen
class Rule:
    """What the files of a folder may import beside the standard library."""

    ours: tuple[str, ...]
    """Modules or packages of this repository."""
    others: tuple[str, ...] = ("attr", "attrs")
    """Packages of others."""
    any_inside_functions: bool = False
    """Whether functions may import any package of others; loading the file then needs none."""


# The longest folder that fits counts.
RULES = {
    "spec": Rule(("spec",)),
    "impl": Rule(("impl", "spec.interface")),
    # What reads a file of weights is imported when one is read.
    "impl/runner": Rule(
        ("impl", "spec.interface"), ("attr", "attrs", "torch", "triton"), any_inside_functions=True
    ),
    # An engine is imported when it is asked for, not when its adapter is listed.
    "impl/adapters": Rule(("impl", "spec.interface"), any_inside_functions=True),
    "checkers": Rule(
        ("checkers", "spec"),
        ("attr", "attrs", "cattrs", "click", "hypothesis", "pytest", "rich"),
    ),
    "proofs": Rule(
        # Theorems about the spec need no engine; that ours is equal to it needs ours.
        (
            "proofs",
            "spec",
            "impl",
            "checkers.configs",
            "checkers.explain",
            "checkers.explore",
            "checkers.planting",
            "checkers.progress",
            "checkers.table",
        ),
        ("attr", "attrs", "click", "cvc5", "rich", "z3"),
    ),
    "gpu_conformance": Rule(
        ("gpu_conformance", "spec", "impl", "checkers"),
        ("attr", "attrs", "cattrs", "click", "hypothesis", "pytest", "rich", "torch"),
    ),
    "examples": Rule(("examples", "spec", "checkers"), ("attr", "attrs", "hypothesis", "pytest")),
    "benchmarks": Rule(
        ("benchmarks", "spec", "impl", "checkers"), ("attr", "attrs", "click", "rich", "torch")
    ),
}


def rule_for(path: PurePath) -> Rule | None:
    """Returns the rule of the longest folder of `RULES` that holds a file; None for tests."""
    for folder in path.parents:
        if folder.as_posix() in RULES:
            return RULES[folder.as_posix()]
    return None


def breaches(path: PurePath, tree: ast.Module) -> list[str]:
    """Names each import of a file that the rule of its folder forbids."""
    rule = rule_for(path)
    if rule is None:
        return []
    return [
        f"{path}:{line} imports {name}"
        for name, line, is_inside in _imports(tree)
        if not _may_import(rule, name, is_inside=is_inside)
    ]


def _may_import(rule: Rule, name: str, *, is_inside: bool) -> bool:
    top = name.partition(".")[0]
    if top in OURS:
        return any(name == module or name.startswith(f"{module}.") for module in rule.ours)
    if top in sys.stdlib_module_names or top in rule.others:
        return True
    return is_inside and rule.any_inside_functions


def _imports(node: ast.AST, *, is_inside: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Yields what is imported, where, and whether inside a function."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, node.lineno, is_inside
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        # `from spec import scheduler` imports spec.scheduler; a relative import stays at home.
        for alias in node.names:
            yield f"{node.module}.{alias.name}", node.lineno, is_inside
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, is_inside=is_inside or isinstance(node, FunctionNode))
