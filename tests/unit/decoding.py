"""Streams and records for tests that decode without Kafka or Spark."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from ingestion.decode import HEADERS_TYPE, Block, Records, StreamDecoder
from ingestion.formats import Payloads
from ingestion.formats.registry import Registry
from ingestion.formats.types import UTC_MICROSECONDS
from ingestion.stream import Stream
from ingestion.stream_file import load_stream

STAMP = datetime(2026, 1, 31, 10, tzinfo=UTC)
HEADERS = [{"key": "h", "value": b"1"}]


def column(name: str, kind: str, more: str = "") -> str:
    """A line of a stream file's columns."""
    return f"{name}: {{type: '{kind}', description: It.{', ' + more if more else ''}}}\n"


def make_stream(folder: Path, columns: str, value: str = "format: json", more: str = "") -> Stream:
    indented = "".join(f"  {line}\n" for line in columns.strip().splitlines())
    file = folder / "made.yml"
    file.write_text(
        f"description: Made.\ntopic: made\nvalue: {{{value}}}\n{more}\ncolumns:\n{indented}"
    )
    return load_stream(file)


def decode_block(
    stream: Stream,
    *values: bytes | None,
    keys: tuple[bytes | None, ...] = (),
    registry: Registry | None = None,
) -> Block:
    count = len(values)
    records = Records(
        pa.repeat("made", count),
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.array(range(count), pa.int64()),
        pa.repeat(pa.scalar(STAMP, UTC_MICROSECONDS), count),
        Payloads.of(list(keys or [None] * count)),
        Payloads.of(list(values)),
        pa.array([HEADERS] * count, HEADERS_TYPE) if stream.headers else None,
    )
    return StreamDecoder(stream, registry).decode(records, STAMP)


def decode_rows(stream: Stream, *values: bytes | None, **more: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode_block(stream, *values, **more).rows.to_pylist(
        maps_as_pydicts="strict"
    )
    return rows


def types(rows: list[dict[str, Any]]) -> list[str | None]:
    return [row["_error_type"] for row in rows]
