"""Payloads of every kind, from a real topic to the table and back, byte for byte."""

import json
import random
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import pytest

from ingestion.errors import ERROR_TYPES
from ingestion.kafka import (
    FIRST_RECORDS,
    MOST_BYTES,
    Range,
    committed_consumer,
    end_offsets,
    read_ranges,
)
from ingestion.settings import Settings
from ingestion.stream_file import load_stream
from tests.integration.outside import assert_table_is_topic, drop, land, read_table, send
from tests.unit.registry_server import registry_server
from tests.unit.test_avro import AVRO
from tests.unit.test_fuzz import STREAMS, payloads

PAYLOADS = 10_000
LARGE = 900_000


@pytest.fixture(scope="module")
def topic(settings: Settings) -> str:
    name = f"fuzz-{uuid4().hex[:8]}"
    send(settings, name, *payloads(random.Random(77), PAYLOADS))  # noqa: S311
    return name


@pytest.mark.parametrize("kind", list(STREAMS))
def test_every_payload_is_accounted_for(
    settings: Settings, topic: str, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "fuzz.avsc").write_text(json.dumps(AVRO))
    value, columns, rules = STREAMS[kind]
    name = f"fuzz_{kind}_{uuid4().hex[:6]}"
    file = tmp_path / f"{name}.yml"
    indented = "".join(f"  {line}\n" for line in columns.strip().splitlines())
    file.write_text(
        f"description: F.\ntopic: {topic}\nvalue: {{{value}}}\n{rules}\ncolumns:\n{indented}"
    )
    try:
        with registry_server() as server:
            server.register(1, AVRO)
            server.register(2, {"type": "string"})
            changed = settings.model_copy(update={"schema_registry_url": server.url})
            landed = land(changed, load_stream(file)).progress
        assert assert_table_is_topic(settings, f"bronze.{name}", topic) == PAYLOADS
        rows = read_table(settings, f"bronze.{name}", "_error_type", "_error_message").to_pylist()
        good = sum(row["_error_type"] is None for row in rows)
        assert 0 < good < PAYLOADS == landed.rows
        assert {row["_error_type"] for row in rows} <= {None, *ERROR_TYPES}
        assert all(bool(row["_error_message"]) == bool(row["_error_type"]) for row in rows)
        assert sum(landed.errors.values()) == PAYLOADS - good
    finally:
        drop(settings, f"bronze.{name}")


@pytest.mark.parametrize("ranges", [1, 4])
def test_what_is_read_at_once_is_bounded_by_bytes(settings: Settings, ranges: int) -> None:
    """Records of nearly a megabyte, in one range and in several that are read together if small."""
    name = f"large-{uuid4().hex[:8]}"
    values = [bytes(LARGE)] * (ranges * 100)
    send(settings, name, *values, keys=map(str.encode, cycle("abcdefgh")), partitions=ranges)
    ends = end_offsets(settings, {name: list(range(ranges))})
    consumer = committed_consumer(settings, "test")
    wanted = [Range(*partition, 0, end) for partition, end in ends.items()]
    sizes = [sum(len(one.value()) for one in block) for block in read_ranges(consumer, wanted)]
    consumer.close()
    assert sum(sizes) == sum(map(len, values))
    assert max(sizes) <= FIRST_RECORDS * LARGE
    assert sorted(sizes)[-ranges - 1] <= MOST_BYTES  # all but the first of each range
