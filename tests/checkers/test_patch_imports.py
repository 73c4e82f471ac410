from __future__ import annotations

from pathlib import Path

import pytest

from checkers.patch.imports import find_imported, module_of


def write(folder, files):
    """Writes files by their paths."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def test_what_is_imported_is_found_in_turn(tmp_path):
    """Modules of packages, what those import, and packages; not what only looks like an import."""
    write(
        tmp_path,
        {
            "toy/a.py": "import one\nfrom two.parts import three, name\nfrom . import b\n",
            "toy/b.py": "text = 'import never'\ndef f():\n    import lazily\n",
            "two/__init__.py": "import four.five\n",
            "two/parts/three.py": "import six\n",
            "four/five.py": "broken (",
            "nobody.py": "import seven\n",
        },
    )
    found = find_imported(tmp_path / "toy", tmp_path)
    assert {"one", "two", "two.parts.three", "four.five", "six", "lazily"} <= found
    assert found.isdisjoint({"never", "seven", "b", "nobody"})


@pytest.mark.parametrize(
    ("path", "expected"), [("a.py", "a"), ("a/b.py", "a.b"), ("a/__init__.py", "a")]
)
def test_a_file_holds_a_module(path, expected):
    """A package is in the file that is run when it is imported."""
    assert expected == module_of(Path(path))
