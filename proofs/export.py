"""Every obligation as a file of its own, for any solver that reads SMT-LIB 2.

Entry point: `open_export`. A folder for each theorem holds its obligations, numbered; a solver
confirms one by answering `unsat`. `index.json` says what each of them is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import z3
from attrs import define, field

from proofs.theorem import Obligation, Part


class ExportError(ValueError):
    """A place that cannot be exported to; the message says why, and what to do."""


@define
class Export:
    """Writes each obligation once for each theorem that it is a part of."""

    folder: Path
    entries: list[dict[str, Any]] = field(factory=list)
    """What the index says of each file."""
    is_whole: bool = True
    """Whether nothing is missing; whoever ends the proofs early says so."""
    _num_files: Counter[str] = field(factory=Counter)

    def __call__(self, obligation: Obligation) -> None:
        """Writes what each theorem claims in an obligation."""
        for part in obligation.parts:
            self._write(obligation, part)

    def _write(self, obligation: Obligation, part: Part) -> None:
        self._num_files[part.theorem] += 1
        name = f"{part.theorem}/{self._num_files[part.theorem]:05}.smt2"
        own = Obligation(obligation.name, obligation.hypotheses, part.goal)
        _write_whole(self.folder / name, own.to_smt2())
        self.entries.append(
            {
                "file": name,
                "theorem": part.theorem,
                "place": obligation.name,
                "claims": list(part.claims),
                "expected": "unsat",
            }
        )


@contextmanager
def open_export(folder: Path) -> Iterator[Export]:
    """Opens a new or empty folder; closing it, for whatever reason, writes the index.

    Raises `ExportError` if there is something in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise ExportError(f"{folder} is no place to export to ({error}); name a folder") from error
    if not is_empty:
        raise ExportError(f"{folder} is not empty; name a new folder, or empty it")
    export = Export(folder)
    is_complete = False
    try:
        yield export
        is_complete = export.is_whole
    finally:
        index = {
            "complete": is_complete,
            "written_by": f"z3 {z3.get_version_string()}",
            "obligations": export.entries,
        }
        _write_whole(folder / "index.json", json.dumps(index, indent=2) + "\n")


def _write_whole(path: Path, text: str) -> None:
    """Writes a file that is there as a whole, or not at all."""
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
