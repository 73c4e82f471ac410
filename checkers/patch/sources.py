"""The two source trees of a change: the engine before it, and after it.

Entry points: `take_diff` and `take_revisions`. A tree holds nothing but the engine's package, in a
temporary folder; the user's checkout is only read.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import attrs
from attrs import frozen

from checkers.engines import ENGINES
from checkers.errors import HarnessError
from checkers.patch.imports import find_imported, module_of

INSTALLED = Path(__file__).parents[2]
"""Where the specification and the checkers are, and our own engine."""
LAYOUTS = ("", "src/")
"""Where a checkout may keep its packages."""
NOT_OURS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""What git tells its hooks, which would lead it to another repository than the one named."""


@frozen(kw_only=True)
class Sources:
    """An engine's package, twice."""

    name: str
    """What the change is called in a report."""
    package: str
    """The package's place in the checkout: `impl`, `src/toy` or `toy.py`."""
    root: Path
    """The checkout, for what the engine imports beside its package."""
    base: Path
    """A folder that holds the package as it was, at the same place."""
    head: Path
    """The same with the change."""
    outside: tuple[str, ...]
    """Files that the change touches and the package does not hold."""
    imported: tuple[str, ...] = ()
    """Those of them that the package imports."""

    @property
    def import_folder(self) -> str:
        """Where in a tree the package is imported from."""
        return str(Path(self.package).parent)


class _GitFault(Exception):  # noqa: N818  (becomes a HarnessError where the input is known)
    """What git says that is wrong."""


def take_diff(diff: str, engine: str, repo: Path | None, folder: Path) -> Sources:
    """The working tree's sources, and the same with a diff applied.

    `diff` names a file; `-` is standard input. Raises `HarnessError` if it does not apply.
    """
    text = _read_diff(diff)
    root, package = _find_in_working_tree(repo, _top_of(engine))
    sources = _make_sources(diff, package, root, folder)
    for tree in (sources.base, sources.head):
        _copy(root, package, tree)
    strip, paths = _list_files(diff, text, root)
    inside = [path for path in paths if _is_in(package, path)]
    if inside:
        _apply(diff, text, strip, sources)
    return _look_outside(sources, [path for path in paths if path not in inside])


def take_revisions(
    base: str, head: str | None, engine: str, repo: Path | None, folder: Path
) -> Sources:
    """The sources of two revisions; without `head`, those of one and of the working tree."""
    root, inside = _find_checkout(repo or Path.cwd())
    for revision in filter(None, (base, head)):
        _expect_revision(root, revision)
    package = _find_in_revision(root, base, _places_of(_top_of(engine), inside))
    sources = _make_sources(f"{base}..{head or 'working tree'}", package, root, folder)
    _extract(root, base, package, sources.base)
    if head is None:
        _copy(root, package, sources.head)
    else:
        _extract(root, head, package, sources.head)
    between = [base] if head is None else [base, head]
    changed = _git(root, "diff", "--name-only", "-z", "--no-renames", *between, "--").split("\0")
    return _look_outside(sources, [path for path in changed if path and not _is_in(package, path)])


def _make_sources(name: str, package: str, root: Path, folder: Path) -> Sources:
    base, head = folder / "base", folder / "head"
    for tree in (base, head):
        (tree / package).parent.mkdir(parents=True)
    return Sources(name=name, package=package, root=root, base=base, head=head, outside=())


def _look_outside(sources: Sources, outside: list[str]) -> Sources:
    """The sources, with what else changes."""
    folder = Path(sources.import_folder)
    names = find_imported(sources.head / sources.package, sources.root / folder)
    imported = [
        path
        for path in outside
        if path.endswith(".py")
        and Path(path).is_relative_to(folder)
        and module_of(Path(path).relative_to(folder)) in names
    ]
    return attrs.evolve(sources, outside=tuple(outside), imported=tuple(imported))


def _top_of(engine: str) -> str:
    """The top-level package of an engine."""
    if engine == "spec":
        raise HarnessError("engine 'spec' is what changes are held against; name another engine")
    module, colon, _ = ENGINES.get(engine, engine).partition(":")
    if not colon:
        known = ", ".join(sorted(set(ENGINES) - {"spec"}))
        raise HarnessError(f"engine {engine!r} is unknown; name {known}, or module:attribute")
    return module.partition(".")[0]


def _is_in(package: str, path: str) -> bool:
    return path == package or path.startswith(f"{package}/")


# ---- where the package is ------------------------------------------------------------------------


def _find_in_working_tree(repo: Path | None, top: str) -> tuple[Path, str]:
    """The checkout that holds a package, and where; our own engine is also found where it lives."""
    for folder in [repo] if repo else [Path.cwd(), INSTALLED]:
        root, inside = _find_checkout(folder, is_needed=False)
        for place in _places_of(top, inside):
            if (root / place).exists():
                return root, place
    raise HarnessError(f"{repo or Path.cwd()} holds no package {top!r}; name its checkout: --repo")


def _find_in_revision(root: Path, revision: str, places: list[str]) -> str:
    found = _git(root, "ls-tree", "--name-only", "-z", revision, "--", *places).split("\0")
    for place in places:
        if place in found:
            return place
    raise HarnessError(
        f"revision {revision} of {root} holds neither of {', '.join(places)}; "
        "name another checkout with --repo, or another engine with --engine"
    )


def _places_of(top: str, inside: str) -> list[str]:
    """Where a package may be, in the order of preference; `inside` is a folder of the checkout."""
    folders = dict.fromkeys(f"{inside}{layout}" for layout in LAYOUTS)
    folders |= dict.fromkeys(LAYOUTS)
    return [f"{folder}{name}" for folder in folders for name in (top, f"{top}.py")]


def _find_checkout(folder: Path, *, is_needed: bool = True) -> tuple[Path, str]:
    """The top folder of a checkout, and where in it `folder` is, with a slash at its end.

    Where no checkout is needed, any folder will do.
    """
    if not folder.is_dir():
        raise HarnessError(f"--repo {folder} is no folder; name a checkout")
    try:
        top, inside, *_ = _git(folder, "rev-parse", "--show-toplevel", "--show-prefix").split("\n")
        return Path(top), inside
    except _GitFault as fault:
        if not is_needed:
            return folder.resolve(), ""
        raise HarnessError(f"{folder} is no git checkout: {fault}; name one with --repo") from None


# ---- trees ---------------------------------------------------------------------------------------


def _copy(root: Path, package: str, tree: Path) -> None:
    source = root / package
    if source.is_file():
        shutil.copy(source, tree / package)
    elif source.is_dir():
        no_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, tree / package, ignore=no_caches, symlinks=True)


def _extract(root: Path, revision: str, package: str, tree: Path) -> None:
    """Writes a revision of the package; a revision that has none leaves the tree empty."""
    if not _git(root, "ls-tree", "--name-only", revision, "--", package):
        return
    archive = _run_git(root, "archive", "--format=tar", revision, "--", package)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(tree, filter="data")


def _expect_revision(root: Path, revision: str) -> None:
    try:
        _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except _GitFault:
        raise HarnessError(
            f"{root} has no revision {revision!r}; name a commit, a branch or a tag"
        ) from None


# ---- diffs ---------------------------------------------------------------------------------------


def _read_diff(diff: str) -> bytes:
    try:
        text = sys.stdin.buffer.read() if diff == "-" else Path(diff).read_bytes()
    except OSError as error:
        raise HarnessError(
            f"{diff} cannot be read: {error.strerror}; name a file that holds a diff"
        ) from error
    if not text.strip():
        raise HarnessError(f"{diff} is empty; make a diff with `git diff`")
    return text


def _list_files(diff: str, text: bytes, root: Path) -> tuple[int, list[str]]:
    """How many leading folders the paths of a diff have too many, and the files that it changes."""
    with_prefix, fault = _try_to_list(text, root, 1)
    without, _ = _try_to_list(text, root, 0)
    if not with_prefix and not without:
        raise HarnessError(f"{diff} is no diff: {fault}; make one with `git diff`")
    if any((root / path).exists() for path in with_prefix):
        return 1, with_prefix
    is_without = not with_prefix or any((root / path).exists() for path in without)
    return (0, without) if is_without else (1, with_prefix)


def _try_to_list(text: bytes, root: Path, strip: int) -> tuple[list[str], str]:
    """The files of a diff; if git cannot read it, none, and why."""
    try:
        listed = _git(root, "apply", "--numstat", "-z", f"-p{strip}", data=text)
    except _GitFault as fault:
        return [], str(fault)
    return [line.rpartition("\t")[2] for line in listed.split("\0") if line], ""


def _apply(diff: str, text: bytes, strip: int, sources: Sources) -> None:
    arguments = ["apply", "--whitespace=nowarn", f"-p{strip}"]
    arguments += [f"--include={sources.package}", f"--include={sources.package}/*"]
    try:
        _git(sources.head, *arguments, data=text)
        return
    except _GitFault as fault:
        sentence = f"{diff} does not apply to {sources.root}: {fault}"
    try:
        _git(sources.head, *arguments, "--check", "--reverse", data=text)
    except _GitFault:
        raise HarnessError(
            f"{sentence}; bring it up to date, or name revisions with --base and --head"
        ) from None
    raise HarnessError(f"{diff} is applied already; compare with what was there: --base HEAD")


# ---- git -----------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str, data: bytes = b"") -> str:
    return _run_git(folder, *arguments, data=data).decode(errors="surrogateescape")


def _run_git(folder: Path, *arguments: str, data: bytes = b"") -> bytes:
    """What git prints. Raises `_GitFault` if it objects."""
    program = shutil.which("git")
    if program is None:
        raise HarnessError("git is not installed; a change cannot be read without it")
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    if arguments[0] == "apply":
        # In a repository, git would leave out what lies beside the folder.
        environment["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    done = subprocess.run(  # noqa: S603  (git, with arguments of ours)
        [program, *arguments],
        cwd=folder,
        input=data,
        capture_output=True,
        env={**environment, "LC_ALL": "C"},
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise _GitFault(lines[0].removeprefix("error: ").removeprefix("fatal: "))
    return done.stdout
