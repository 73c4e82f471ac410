from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import PurePath

import pytest

from tests.house.imports import breaches
from tests.house.source import PACKAGES, ROOT, parse, python_files


def test_every_file_keeps_the_import_directions():
    """A file imports only what its folder may import."""
    paths = python_files(*PACKAGES, "examples", "benchmarks")
    assert [breach for path in paths for breach in breaches(path, parse(path))] == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("spec/a.py", "import impl.scheduler"),
        ("spec/a.py", "from checkers import trace"),
        ("spec/a.py", "import z3"),
        ("spec/a.py", "def f():\n    import torch"),
        ("impl/a.py", "import spec"),
        ("impl/a.py", "from spec import scheduler"),
        ("impl/a.py", "from spec.scheduler import ReferenceScheduler"),
        ("impl/a.py", "import torch"),
        ("impl/adapters/a.py", "import vllm"),
        ("impl/adapters/a.py", "def f():\n    from spec.scheduler import ReferenceScheduler"),
        ("impl/runner/a.py", "import z3"),
        ("checkers/a.py", "from impl.scheduler import FastScheduler"),
        ("checkers/a.py", "def f():\n    import proofs"),
        ("checkers/a.py", "import torch"),
        ("proofs/a.py", "import checkers"),
        ("proofs/a.py", "from tests import conftest"),
        ("gpu_conformance/a.py", "import proofs"),
        ("gpu_conformance/a.py", "def f():\n    import vllm"),
        ("gpu_conformance/adapters/a.py", "import vllm"),
        ("gpu_conformance/a.py", "import tests.conftest"),
        ("examples/a.py", "from impl.scheduler import FastScheduler"),
        ("benchmarks/a.py", "import tests"),
    ],
)
def test_an_import_in_the_wrong_direction_is_found(path, line):
    """Each of these imports is a breach."""
    assert len(breaches(PurePath(path), ast.parse(line))) == 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("spec/a.py", "from collections.abc import Iterator\nfrom spec.interface import Scheduler"),
        ("impl/a.py", "from spec.interface import Scheduler\nfrom spec import interface"),
        ("impl/adapters/a.py", "def f():\n    from vllm.v1.request import Request"),
        ("impl/runner/kernels/a.py", "import torch\nimport triton"),
        ("checkers/a.py", "import spec\nimport rich.table"),
        ("proofs/a.py", "import z3\nfrom spec.scheduler import ReferenceScheduler"),
        ("gpu_conformance/a.py", "import torch\nimport impl.runner\nimport checkers.report"),
        ("gpu_conformance/adapters/a.py", "def f():\n    import vllm"),
        ("tests/a.py", "import impl, proofs, z3"),
    ],
)
def test_an_import_in_the_right_direction_is_allowed(path, line):
    """None of these imports is a breach."""
    assert breaches(PurePath(path), ast.parse(line)) == []


def loaded_modules(code: str) -> set[str]:
    """Runs code in a fresh interpreter and returns the top-level modules that it has loaded."""
    script = f"import sys\n{code}\nprint()\nprint(*sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


def test_import_spec_loads_neither_torch_nor_z3():
    """The specification, all of it, is light enough for everyone to import."""
    modules = [".".join(path.with_suffix("").parts) for path in python_files("spec")]
    loaded = loaded_modules("import " + ", ".join(sorted(modules)))
    assert "spec" in loaded
    assert loaded & {"torch", "z3", "impl", "checkers", "proofs"} == set()


def test_the_help_of_the_command_line_loads_neither_torch_nor_z3():
    """Nobody waits for a prover or for a tensor library to read `schedcheck --help`."""
    loaded = loaded_modules(
        "import checkers.cli\ncheckers.cli.main(['--help'], standalone_mode=False)"
    )
    assert "checkers" in loaded
    assert loaded & {"torch", "z3", "impl", "proofs"} == set()


def test_loaded_modules_sees_what_is_loaded():
    """The two tests above can fail: an import that happens is seen."""
    assert "z3" in loaded_modules("import z3")
