"""Recorded runs of a real engine, read as typed events.

Entry points: `open_recording` for a file of JSON lines, plain or gzip, and `read_recording` for
lines from anywhere. Both stream: one event is in memory at a time. tests/recordings/README.md
describes the format. What is not a recording raises `HarnessError` with file, line, and the way
out; what an engine got wrong is not judged here.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field, frozen

from checkers.configs import make_scheduler_config
from checkers.errors import HarnessError
from checkers.recorded_events import EventReader, RecordedEvent
from checkers.strict_json import (
    Fields,
    Malformed,
    count,
    flag,
    number,
    optional,
    parse,
    text,
    whole,
)
from spec.dialects import DIALECTS
from spec.interface import ConfigError, SchedulerConfig

SCHEMA = "schedcheck.recording/1"
MAX_LINE_BYTES = 64 * 2**20
"""A longer line is no event; the limit keeps a file without line ends out of memory."""
MAX_NUM_BLOCKS = MAX_LINE_BYTES // 8
"""An event lists all free blocks, which a line must have room for."""


@define
class Recording:
    """A recorded run: what its header says, and its events one after the other."""

    name: str
    """The file, as errors and reports name it."""
    engine: str
    """Engine and version."""
    dialect: str
    config: SchedulerConfig
    null_block_id: int
    """The block that the engine never hands out."""
    events: Iterator[RecordedEvent] = field(repr=False)
    """Can be read once."""
    reader: EventReader = field(repr=False)
    """What has been learnt from the events read so far."""


def open_recording(path: str | Path, dialect: str | None = None) -> Recording:
    """Opens a recording. `dialect` overrides the one that engine and version name."""
    return read_recording(read_lines(Path(path)), str(path), dialect)


def read_recording(lines: Iterable[bytes], name: str, dialect: str | None = None) -> Recording:
    """Reads the header of a recording; its events are read as they are asked for."""
    numbered = enumerate(lines, 1)
    first = next(numbered, None)
    if first is None:
        raise HarnessError(f"{name}:1: the file is empty; name a recording in JSON lines")
    with _errors_at(name, 1):
        header = _Header.read(parse(first[1]))
        config = _make_config(header, dialect)
    reader = EventReader(config, header.engine, header.in_flight_depth)
    return Recording(
        name,
        header.engine,
        dialect or _dialect_of(header.engine),
        config,
        header.null_block_id,
        _read_events(name, numbered, reader),
        reader,
    )


def _read_events(
    name: str, numbered: Iterable[tuple[int, bytes]], reader: EventReader
) -> Iterator[RecordedEvent]:
    line = 1
    for line, content in numbered:
        with _errors_at(name, line):
            event = reader.read(line, _parse_event(content))
        yield event
    if line == 1:
        raise HarnessError(f"{name}:1: no event follows the header; record a run of the engine")


# ---- lines ---------------------------------------------------------------------------------------


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, unpacked if it is gzip."""
    line = 1
    try:
        with path.open("rb") as file:
            is_packed = file.peek(2)[:2] == b"\x1f\x8b"
            unpacked = gzip.GzipFile(fileobj=file) if is_packed else file
            while content := unpacked.readline(MAX_LINE_BYTES + 1):
                if len(content) > MAX_LINE_BYTES:
                    raise HarnessError(
                        f"{path}:{line}: the line is longer than {MAX_LINE_BYTES} bytes, "
                        "which no event is; name a recording in JSON lines"
                    )
                yield content
                line += 1
    except FileNotFoundError:
        raise HarnessError(f"{path} does not exist; name a .jsonl or .jsonl.gz file") from None
    except IsADirectoryError:
        raise HarnessError(f"{path} is a folder; name the recordings in it") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise HarnessError(
            f"{path}:{line}: the packed data ends or breaks here ({error}); copy the file again"
        ) from error
    except OSError as error:
        raise HarnessError(f"{path} cannot be read ({error.strerror}); mend that first") from error


def _parse_event(content: bytes) -> Any:
    try:
        return parse(content)
    except Malformed:
        if content.endswith(b"\n"):
            raise
        raise Malformed("the last line is cut off; record again, or remove that line") from None


@contextmanager
def _errors_at(name: str, line: int) -> Iterator[None]:
    """Names file and line in whatever is wrong inside the block."""
    try:
        yield
    except (Malformed, ConfigError) as error:
        raise HarnessError(f"{name}:{line}: {error}") from error


# ---- the header ----------------------------------------------------------------------------------


@frozen
class _Header:
    engine: str
    config: dict[str, Any]
    null_block_id: int
    in_flight_depth: int

    @classmethod
    def read(cls, raw: Any) -> _Header:
        schema = raw.get("schema") if isinstance(raw, dict) else None
        if schema != SCHEMA:
            raise Malformed(
                f"the schema is {schema!r}, not {SCHEMA!r}; name a recording of that schema"
            )
        fields = Fields(raw)
        fields.take("schema", text)
        fields.take("seed", optional(whole))
        header = cls(
            f"{fields.take('engine', text)} {fields.take('engine_version', text)}",
            _read_config(fields.take("config", Fields)),
            fields.take("null_block_id", count),
            fields.take("in_flight_depth", count),
        )
        fields.end()
        return header


def _read_config(fields: Fields) -> dict[str, Any]:
    """The fields of `SchedulerConfig` that a header names, under our names.

    What it leaves out is as the dialect says.
    """
    config: dict[str, Any] = {
        name: fields.take(name, read)
        for name, read in (
            ("max_num_batched_tokens", count),
            ("max_num_seqs", count),
            ("block_size", count),
            ("max_model_len", count),
            ("long_prefill_token_threshold", count),
            ("policy", text),
            ("enable_prefix_caching", flag),
            ("async_scheduling", flag),
            ("scheduler_reserve_full_isl", flag),
        )
    }
    config |= {
        name: fields.take(name, _anything)
        for name in (option.name for option in attrs.fields(SchedulerConfig))
        if fields.has(name) and name not in {*config, "num_blocks", "num_watermark_blocks"}
    }
    num_blocks = fields.take("num_usable_blocks", count)
    if num_blocks > MAX_NUM_BLOCKS:
        raise Malformed(
            f"config.num_usable_blocks={num_blocks} is above {MAX_NUM_BLOCKS}, more than an event "
            "can list; record a smaller pool"
        )
    watermark = fields.take("watermark", number)
    if not 0 <= watermark <= 1:
        raise Malformed(f"config.watermark={watermark} is no fraction; write a number from 0 to 1")
    fields.end()
    # vLLM takes the fraction of all blocks, its null block included.
    num_watermark_blocks = int(watermark * (num_blocks + 1))
    return {**config, "num_blocks": num_blocks, "num_watermark_blocks": num_watermark_blocks}


def _anything(value: Any, place: str) -> Any:
    """Whatever a field holds; the configuration refuses what makes no sense."""
    return value


def _make_config(header: _Header, dialect: str | None) -> SchedulerConfig:
    name = dialect or _dialect_of(header.engine)
    if dialect is None and name not in DIALECTS:
        raise Malformed(
            f"no dialect is known for {header.engine}; known are {', '.join(DIALECTS)}: "
            "choose the one it speaks with --dialect"
        )
    return make_scheduler_config(name, header.config)


def _dialect_of(engine: str) -> str:
    return engine.replace(" ", "-")
