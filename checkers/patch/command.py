"""The command `schedcheck patch`: takes both sides of a change, and lets them be compared.

Entry point: `check_patch`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
from attrs import frozen

from checkers.errors import HarnessError
from checkers.patch.changed_lines import ChangedFile, find_changed_files
from checkers.patch.comparison import Comparison, Found, TimeBudget
from checkers.patch.findings import Findings, report_nothing, report_same_code
from checkers.patch.protocol import Job
from checkers.patch.side import Side
from checkers.patch.sources import Sources, take_diff, take_revisions
from checkers.progress import Progress
from checkers.report import Check


@frozen(kw_only=True)
class Change:
    """What is to be compared: a diff, or two revisions."""

    diff: str | None
    base: str | None
    head: str | None
    repo: Path | None

    def take(self, engine: str, folder: Path) -> Sources:
        """Both source trees. Raises `HarnessError` if there are none."""
        if self.diff is not None and self.base is None and self.head is None:
            return take_diff(self.diff, engine, self.repo, folder)
        if self.diff is None and self.base is not None:
            return take_revisions(self.base, self.head, engine, self.repo, folder)
        raise HarnessError("name a diff, or --base (and --head; without it, the working tree)")


def check_patch(
    change: Change, job: Job, budget: TimeBudget, progress: Progress, out: Path
) -> Iterator[Check]:
    """Compares both sides of a change; yields what was looked at, then each thing found."""
    with tempfile.TemporaryDirectory(prefix="schedcheck-patch-") as name:
        sources = change.take(job.engine, Path(name).resolve())
        files = find_changed_files(sources.base, sources.head)
        if not files:
            yield report_nothing(sources, job)
            return
        if all(file.is_same_code for file in files):
            yield report_same_code(sources, files, job)
            return
        found = _compare(sources, files, job, budget, progress)
    yield from Findings(sources, files, job, found).report(out)


def _compare(
    sources: Sources, files: list[ChangedFile], job: Job, budget: TimeBudget, progress: Progress
) -> Found:
    wanted = {
        sources.base: [
            (file.old_path, file.old_texts, file.old_operands, file.old_conditions)
            for file in files
        ],
        sources.head: [(file.path, file.texts, file.operands, file.conditions) for file in files],
    }
    base, head = (
        Side(
            tree.name,
            attrs.evolve(
                job,
                folder=str(tree / sources.import_folder),
                root=str(sources.root / sources.import_folder),
                lines={str(tree / path): [*lines] for path, lines, _, _ in rows if lines},
                operands={str(tree / path): [*found] for path, _, found, _ in rows if found},
                conditions={str(tree / path): [*found] for path, *_, found in rows if found},
            ),
        )
        for tree, rows in wanted.items()
    )
    for side in (base, head):
        side.start()
    comparison = Comparison(base, head, budget, progress.say)
    try:
        return comparison.run()
    finally:
        comparison.close()
