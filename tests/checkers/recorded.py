"""What the tests of recordings share: committed ones, and changed ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checkers.recording import Recording, read_recording

RECORDINGS = Path(__file__).parents[1] / "recordings"
ACCEPTED = sorted(path.name.removesuffix(".jsonl.gz") for path in RECORDINGS.glob("*.jsonl.gz"))


def path_of(name: str) -> Path:
    """A committed recording; those of faults lie in rejected/."""
    return RECORDINGS / f"{name}.jsonl.gz"


def load(name: str) -> list[Any]:
    """The header and the events of a committed recording."""
    return [json.loads(line) for line in gzip.decompress(path_of(name).read_bytes()).splitlines()]


def dump(documents: list[Any]) -> list[bytes]:
    """The lines of a recording."""
    return [json.dumps(document).encode() + b"\n" for document in documents]


def reread(documents: list[Any], dialect: str | None = None) -> Recording:
    """A changed recording."""
    return read_recording(dump(documents), "run.jsonl", dialect)


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value inside a document that holds no others, with its place."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, (*place, key))
    else:
        yield place, value


def container_of(document: Any, place: tuple[Any, ...]) -> Any:
    """What holds the value at a place."""
    for key in place[:-1]:
        document = document[key]
    return document
