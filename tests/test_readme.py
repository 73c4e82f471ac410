"""The README shows what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkers.cli import main
from checkers.mutations import bugs  # noqa: F401, importing it registers the bugs
from checkers.mutations.registry import MUTATIONS

README = (Path(__file__).parents[1] / "README.md").read_text()


def shown_runs() -> list[str]:
    """The counterexamples in the README, without the columns it leaves out for want of space."""
    return [block for block in re.findall(r"```\n(.*?)```", README, re.DOTALL) if "error[" in block]


@pytest.mark.parametrize(
    ("shown", "setting"), list(zip(shown_runs(), ["thrash", "publish-at-grant"], strict=True))
)
def test_the_readme_shows_what_explore_prints(shown: str, setting: str, tmp_path: Path) -> None:
    """Both findings of the README come out by themselves, in the words and the length it shows."""
    result = CliRunner().invoke(main, ["explore", "--config", setting, "--out", str(tmp_path)])
    printed = [" ".join(line.split()) for line in result.output.splitlines()]
    rows = [line for line in shown.splitlines() if not line.startswith("  -->")]
    missing = [row for row in rows if not any(is_shown(row, line) for line in printed)]
    assert (1, []) == (result.exit_code, missing)


def test_the_readme_counts_the_planted_bugs() -> None:
    """As many bugs are planted as the README says."""
    assert f"`schedcheck mutate` plants {len(MUTATIONS)} in our engine" in " ".join(README.split())


def is_shown(row: str, printed: str) -> bool:
    """Whether a printed line has all the cells of a row, in their order."""
    position = 0
    for cell in re.split(r"\s{2,}", row.strip()):
        found = printed.find(" ".join(cell.split()), position)
        if found < 0:
            return False
        position = found + len(cell)
    return True
