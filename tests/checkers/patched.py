"""A scheduler in a package of its own, and changes to it: what the tests of `patch` check."""

from __future__ import annotations

import difflib
import json
import subprocess

from click.testing import CliRunner

from checkers.cli import main

ENGINE = "toy.engine:Toy"
ADD = "        super().add_request(new)\n"
SCHEDULE = "        return super().schedule()\n"
FINISH = "        super().finish_requests(request_ids, finished_status)\n"
TOY = f'''"""A scheduler to be changed."""

import attrs

from spec.scheduler import ReferenceScheduler


class Toy(ReferenceScheduler):
    """As the specification."""

    def __init__(self, config):
        super().__init__(config)

    def add_request(self, new):
{ADD}
    def schedule(self):
{SCHEDULE}
    def finish_requests(self, request_ids, finished_status):
{FINISH}'''
# More than one request runs in every walk of the setting `tiny`.
WHEN_TWO_RUN = "        if len(self.running) > 1:\n            "
FORGETS = (ADD, "        pass\n")
"""An arrival is lost: shown by one action."""
IGNORES_ABORTS = (FINISH, "        pass\n")
"""An abort is not heard: shown by an arrival and an abort."""


def changed(*changes, text=TOY):
    """The toy with texts replaced, each of which stands in it once."""
    for old, new in changes:
        assert 1 == text.count(old)
        text = text.replace(old, new)
    return text


def diff_of(before, after, path="toy/engine.py", prefixes=("a/", "b/")):
    """A diff between two texts of a file."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, *(f"{prefix}{path}" for prefix in prefixes)))


def write_toy(folder, text=TOY):
    """Writes the package; returns the folder."""
    (folder / "toy").mkdir(parents=True, exist_ok=True)
    (folder / "toy" / "__init__.py").write_text("")
    (folder / "toy" / "engine.py").write_text(text)
    return folder


def git(folder, *arguments):
    """Calls git in a folder."""
    who = ("-c", "user.name=toy", "-c", "user.email=toy@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)  # noqa: S607


def commit(folder, text, message):
    """Commits a version of the toy."""
    write_toy(folder, text)
    git(folder, "add", "toy")
    git(folder, "commit", "-qm", message)


def patch(folder, *arguments, form="json", engine=ENGINE):
    """Calls the command on the toy of a folder, for a few walks in the setting `tiny`."""
    return CliRunner().invoke(
        main,
        [
            "patch",
            *("--engine", engine, "--repo", str(folder), "--out", str(folder / "out")),
            *("--walks", "3", "--length", "60", "--format", form),
            *(() if "--config" in arguments else ("--config", "tiny")),
            *map(str, arguments),
        ],
    )


def patch_with(folder, *changes, before=TOY, options=(), **more):
    """Calls the command with a diff that makes changes to the toy; returns the JSON report."""
    write_toy(folder, before)
    (folder / "change.diff").write_text(diff_of(before, changed(*changes, text=before)))
    result = patch(folder, folder / "change.diff", *options, **more)
    assert result.stdout, result.output
    document = json.loads(result.stdout)
    assert document["exit_code"] == result.exit_code
    return document


def kinds_of(document):
    """What a report has found: (kind, first rule) of each finding."""
    return [
        (check["facts"]["kind"], check["facts"].get("rules", [None])[0])
        for check in document["checks"][1:]
    ]
