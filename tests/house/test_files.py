from __future__ import annotations

import ast
import re

import pytest

from tests.house.source import PACKAGES, ROOT, files, functions, parse, python_files

MAX_FILE_LINES = 600
MAX_BODY_LINES = 40

# File and function, and why it is long all the same.
LONG_FUNCTIONS: dict[tuple[str, str], str] = {}


def num_body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines from the first statement after the docstring to the end."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return function.end_lineno - body[0].lineno + 1 if body else 0


def test_a_file_can_be_read_in_one_sitting():
    """No Python file has more than 600 lines."""
    num_lines = {path: len((ROOT / path).read_text().splitlines()) for path in python_files()}
    assert {path: num for path, num in num_lines.items() if num > MAX_FILE_LINES} == {}


def test_a_function_does_one_thing():
    """No function body has more than 40 lines, but for those that have a reason above."""
    long = {
        (path.as_posix(), name)
        for path in python_files()
        for name, function in functions(parse(path))
        if num_body_lines(function) > MAX_BODY_LINES
    }
    assert long == set(LONG_FUNCTIONS)


def test_a_body_is_counted_without_its_docstring():
    """The limit on functions can be exceeded: lines of code count, those of a docstring do not."""
    source = 'class A:\n    def f(self):\n        """One.\n\n        Two.\n        """\n'
    ((name, function),) = functions(ast.parse(source + "        x = 1\n" * 41))
    assert (name, num_body_lines(function)) == ("A.f", 41)


def undocumented(tree: ast.Module) -> list[str]:
    """Names what is public in a file and has no docstring."""
    missing = [] if ast.get_docstring(tree) else ["the module"]
    return missing + _undocumented_inside(tree, "")


def _undocumented_inside(owner: ast.Module | ast.ClassDef, prefix: str) -> list[str]:
    missing = []
    for node in owner.body:
        is_class = isinstance(node, ast.ClassDef)
        if not is_class and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            missing.append(prefix + node.name)
        if is_class:
            missing += _undocumented_inside(node, f"{prefix}{node.name}.")
    return missing


def test_what_is_public_is_documented():
    """Every module, public class, method and function of the packages has a docstring."""
    missing = {
        path: undocumented(parse(path))
        for path in python_files(*PACKAGES, "examples", "benchmarks")
    }
    assert {path: names for path, names in missing.items() if names} == {}


def test_a_missing_docstring_is_found():
    """The test above can fail: for a module, a function, a class and a method."""
    source = "def f(): pass\nclass A:\n    def g(self): pass\n    def _h(self): pass"
    assert undocumented(ast.parse(source)) == ["the module", "f", "A", "A.g"]


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")


def relative_links(text: str) -> list[str]:
    """Returns the files that a Markdown text links to."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = [target.partition("#")[0] for target in LINK.findall(prose)]
    return [target for target in targets if target and "://" not in target]


def test_links_lead_somewhere():
    """Every relative link of a Markdown file leads to a file or a folder of the repository."""
    dangling = [
        f"{path}: {target}"
        for path in files()
        if path.suffix == ".md"
        for target in relative_links((ROOT / path).read_text())
        if not (ROOT / path.parent / target).exists()
    ]
    assert dangling == []


def test_relative_links_are_found():
    """Links to files are found, links to the web and to headings are not, nor what is in code."""
    text = "[a](docs/a.md#b) [c](https://example.org) [d](#e) ![f](g.png)\n```\n[h](i)\n```\n"
    assert relative_links(text) == ["docs/a.md", "g.png"]


# The groups keep this file itself from holding what it looks for.
MACHINE = re.compile(
    r"(?<![\w.~-])/(?:work|root|opt|home/\w+)/"
    r"|\b(?:pypi|pythonhosted|download\.pytorch)\.org\b"
)


def test_no_file_names_a_machine():
    """No file holds a path of the machine where it was made, or the host of a package registry."""
    named = {
        path: MACHINE.findall((ROOT / path).read_bytes().decode(errors="replace"))
        for path in files()
    }
    assert {path: names for path, names in named.items() if names} == {}


@pytest.mark.parametrize(
    "text", ["/wo" + "rk/main", '"/ro' + 'ot/.cache"', "see py" + "pi.org", "(/op" + "t/wheels/x)"]
)
def test_the_name_of_a_machine_is_found(text):
    """The test above can fail: for paths, and for registries."""
    assert len(MACHINE.findall(text)) == 1


@pytest.mark.parametrize("text", ["docs/work/plan.md", "a/root/b", "~/work/x", "pip install torch"])
def test_other_paths_are_left_alone(text):
    """A relative path with such a folder in it is no path of a machine."""
    assert MACHINE.findall(text) == []
