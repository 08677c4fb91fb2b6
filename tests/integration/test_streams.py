"""What a stream file can say, from Kafka to the bronze table."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from demo.generators import GENERATORS, Shares
from demo.produce import produce
from headwater.rows.backfill import backfill, bound
from ingestion.catalog import open_catalog
from ingestion.errors import HeadwaterError, StreamFileError
from ingestion.kafka import end_offsets, topics
from ingestion.ledger import Ledger, read_position
from ingestion.run import Run
from ingestion.settings import Settings
from ingestion.stream import Stream
from ingestion.stream_file import load_stream, load_streams
from ingestion.table import ensure_table
from tests.conftest import HEADWATER, run
from tests.integration.outside import (
    assert_table_is_topic,
    drop,
    land,
    read_table,
    read_topic,
    send,
    wait_for,
)

Write = Callable[..., Stream]

WORDS = """\
description: Lines of text.
{topic}
value: {{format: text}}
{more}
columns:
  line: {{type: string, description: One line.}}
"""


@pytest.fixture
def name() -> str:
    return f"s_{uuid4().hex[:8]}"


@pytest.fixture
def write(tmp_path: Path, settings: Settings, name: str) -> Iterator[Write]:
    """Writes the stream file, as often as the test likes."""

    def made(more: str = "", topic: str | None = None, columns: str = "") -> Stream:
        file = tmp_path / f"{name}.yml"
        file.write_text(WORDS.format(topic=topic or f"topic: {name}", more=more) + columns)
        return load_stream(file)

    yield made
    drop(settings, f"bronze.{name}")


def lines(settings: Settings, stream: Stream) -> list[str]:
    return sorted(read_table(settings, stream.table, "line")["line"].to_pylist())


# --- the four streams ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", list(GENERATORS))
def test_a_generator_lands_exactly_as_it_says(settings: Settings, stream: str) -> None:
    shares = Shares(bad=0.1, late=0.05, duplicates=0.05)
    (declared,) = load_streams([stream])
    topic = GENERATORS[stream].topic
    if topics(settings, lambda name: name == topic):
        land(settings, declared)  # what other tests left in the topic
    made = produce(settings, stream, 20_000, None, 31, shares, lambda _: None)
    run = land(settings, declared)
    expected = {kind: count for kind, count in made.items() if kind.endswith("_error")}
    assert {kind: count for kind, count in run.progress.errors.items() if count} == expected
    assert run.progress.rows == 20_000
    assert len(expected) >= 3
    assert_table_is_topic(settings, declared.table, topic)
    assert run.progress.undeclared == set()


def test_sensors_are_partitioned_by_sensor(settings: Settings) -> None:
    produce(settings, "sensors", 2_000, None, 5, Shares(), lambda _: None)
    land(settings, load_streams(["sensors"])[0])
    table = open_catalog(settings).load_table("bronze.sensors")
    assert [field.name for field in table.spec().fields] == ["_ingested_at_day", "sensor_id"]
    files = table.inspect.files().to_pylist()
    assert len({file["partition"]["sensor_id"] for file in files}) >= 20


# --- topics and where to start -------------------------------------------------------------------


def test_several_topics_fill_one_table(settings: Settings, write: Write, name: str) -> None:
    stream = write(topic=f"topic: [{name}_a, {name}_b]")
    send(settings, f"{name}_a", b"a1", b"a2")
    send(settings, f"{name}_b", b"b1")
    land(settings, stream)
    send(settings, f"{name}_b", b"b2")
    assert land(settings, stream).progress.rows == 1
    assert lines(settings, stream) == ["a1", "a2", "b1", "b2"]
    land(settings, write(topic=f"topic: {name}_b"))  # one is left out for a while
    send(settings, f"{name}_b", b"b3")
    land(settings, write(topic=f"topic: {name}_b"))
    land(settings, stream)
    assert lines(settings, stream) == ["a1", "a2", "b1", "b2", "b3"]
    assert set(read_table(settings, stream.table)["_kafka_topic"].to_pylist()) == {
        f"{name}_a",
        f"{name}_b",
    }


def test_a_pattern_takes_up_topics_that_come_later(
    settings: Settings, write: Write, name: str
) -> None:
    stream = write(topic=f"topic_pattern: {name}-.*")
    send(settings, f"{name}-x", b"x")
    send(settings, f"{name}y", b"not mine")
    land(settings, stream)
    send(settings, f"{name}-z", b"z")
    land(settings, stream)
    assert lines(settings, stream) == ["x", "z"]


def test_a_declared_topic_that_is_missing_is_named(
    settings: Settings, write: Write, name: str
) -> None:
    with pytest.raises(HeadwaterError) as caught:
        land(settings, write())
    assert f"topic {name} of stream {name} does not exist" in caught.value.message


def test_start_at_a_time_or_at_offsets(settings: Settings, write: Write, name: str) -> None:
    send(settings, name, b"old 1", b"old 2", b"old 3", partitions=1)
    time.sleep(0.05)  # Kafka's timestamps have milliseconds
    now = datetime.now(UTC)
    send(settings, name, b"new 1", b"new 2")
    stream = write(f"start: {now.isoformat()}")
    land(settings, stream)
    assert lines(settings, stream) == ["new 1", "new 2"]
    drop(settings, f"bronze.{name}")
    stream = write(f"start: {{{name}: {{0: 2}}}}")
    land(settings, stream)
    assert lines(settings, stream) == ["new 1", "new 2", "old 3"]


# --- when records are committed ------------------------------------------------------------------


def test_a_flush_comes_at_so_many_records_or_after_so_many_seconds(
    spark: SparkSession, settings: Settings, write: Write, name: str
) -> None:
    stream = write("batch: {min_records: 10, max_seconds: 6}")
    send(settings, name, b"first")
    run = Run(spark, settings, stream)
    run.start(once=False)
    try:
        wait_for(lambda: run.progress.rows == 1)
        send(settings, name, *[b"few"] * 3)
        began = time.monotonic()
        wait_for(lambda: run.progress.rows == 4)  # no more came: the seconds decide
        waited = time.monotonic() - began
        commits = run.progress.commits
        send(settings, name, *[b"many"] * 25)
        wait_for(lambda: run.progress.rows == 29)
        assert run.progress.commits == commits + 1
    finally:
        run.stop()
    run.raise_failure()
    # The three records arrived at most 6 s after the last flush, and waited for the next one.
    assert waited > 0.5
    assert run.progress.commits == 3


def test_fields_that_are_not_declared_are_named_and_kept(
    settings: Settings, tmp_path: Path, name: str
) -> None:
    file = tmp_path / f"{name}.yml"
    file.write_text(
        f"description: D.\ntopic: {name}\nvalue: {{format: json}}\n"
        "columns:\n  a: {type: int, description: A.}\n"
    )
    send(settings, name, b'{"a": 1}', b'{"a": 2, "b": 3}', b'{"a": 4, "z": 5, "b": 6}', b"x", None)
    try:
        run = land(settings, load_stream(file))
        assert run.progress.undeclared == {"b", "z"}
        assert_table_is_topic(settings, f"bronze.{name}", name)
    finally:
        drop(settings, f"bronze.{name}")


# --- forward -------------------------------------------------------------------------------------


def test_valid_records_are_forwarded_with_key_and_headers(
    settings: Settings, write: Write, name: str
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    from ingestion.kafka import client_options

    stream = write(
        f"forward: {{topic: {name}-out}}\nheaders: true\nrules: {{short: length(line) < 5}}"
    )
    values = [b"good", b"much too long", None, b"\xff"]
    headers = [("trace", b"7")]
    send(settings, name, *values, keys=[b"k1", b"k2", b"k3", b"k4"], headers=headers)
    land(settings, stream)
    assert sorted(read_topic(settings, f"{name}-out").values(), key=str) == [None, b"good"]
    consumer = Consumer(client_options(settings) | {"group.id": "out"})
    ends = end_offsets(settings, topics(settings, lambda topic: topic == f"{name}-out"))
    consumer.assign([TopicPartition(*partition, 0) for partition in ends])
    found: dict[bytes, Any] = {}
    wait_for(lambda: _poll(consumer, found) == 2)
    consumer.close()
    assert found == {b"k1": headers, b"k3": headers}
    assert_table_is_topic(settings, stream.table, name)


def _poll(consumer: Any, found: dict[bytes, Any]) -> int:
    message = consumer.poll(0.2)
    if message is not None and not message.error():
        found[message.key()] = message.headers()
    return len(found)


def test_a_crash_between_forward_and_commit_loses_nothing(
    settings: Settings,
    write: Write,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The records go out again: at least once."""
    stream = write(f"forward: {{topic: {name}-out}}")
    send(settings, name, b"a", b"b")

    def crash(*_: Any) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "commit", crash)
        with pytest.raises(RuntimeError, match="power cut"):
            land(settings, stream)
    land(settings, stream)
    assert assert_table_is_topic(settings, stream.table, name) == 2
    assert sorted(map(str, read_topic(settings, f"{name}-out").values())) == [
        "b'a'", "b'a'", "b'b'", "b'b'"
    ]  # fmt: skip


def test_a_stream_that_would_read_what_it_forwards_is_refused(write: Write, name: str) -> None:
    with pytest.raises(StreamFileError) as caught:
        write(f"forward: {{topic: {name}}}")
    assert "would read what it forwards" in caught.value.message


# --- backfill ------------------------------------------------------------------------------------


def fill(settings: Settings, stream: Stream, begin: str, end: str) -> int:
    bounds = [bound(settings, stream, text, "--x") for text in (begin, end)]
    added, _ = backfill(settings, stream, *bounds, lambda *_: None)
    return added.rows


def test_a_backfill_adds_what_is_missing_and_leaves_the_position(
    settings: Settings, write: Write, name: str
) -> None:
    stream = write("start: latest\nbatch: {max_records: 3}")
    send(settings, name, *(f"old {n}".encode() for n in range(8)), partitions=1)
    land(settings, stream)  # makes the table, at the end of the topic
    send(settings, name, b"new 1")
    land(settings, stream)
    send(settings, name, b"not yet")
    position = read_position(open_catalog(settings).load_table(stream.table)).offsets
    assert fill(settings, stream, "0:2", "0:5") == 3
    assert lines(settings, stream) == ["new 1", "old 2", "old 3", "old 4"]
    assert fill(settings, stream, "earliest", "latest") == 5  # in commits of 3 at most
    assert fill(settings, stream, "earliest", "latest") == 0
    assert "not yet" not in lines(settings, stream)
    assert read_position(open_catalog(settings).load_table(stream.table)).offsets == position
    land(settings, stream)
    assert assert_table_is_topic(settings, stream.table, name) == 10


def test_a_backfill_by_time(settings: Settings, write: Write, name: str) -> None:
    stream = write("start: latest")
    send(settings, name, b"too old")
    time.sleep(0.05)
    begin = datetime.now(UTC)
    send(settings, name, b"wanted")
    time.sleep(0.05)
    end = datetime.now(UTC)
    send(settings, name, b"too new")
    land(settings, stream)
    assert fill(settings, stream, begin.isoformat(), end.isoformat()) == 1
    assert lines(settings, stream) == ["wanted"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("soon", "neither a time nor offsets"), ("9:5", "has no partition 9")],
)
def test_a_place_that_makes_no_sense_is_refused(
    settings: Settings, write: Write, name: str, text: str, words: str
) -> None:
    send(settings, name, b"a")
    with pytest.raises(HeadwaterError) as caught:
        bound(settings, write(), text, "--from")
    assert words in caught.value.message


# --- schema evolution ----------------------------------------------------------------------------

ONE = "  n: {{type: {}, description: {}, from: value}}\n"


def test_columns_are_added_and_widened_and_comments_follow(
    settings: Settings, write: Write, name: str
) -> None:
    send(settings, name, b"1")
    old = "  f: {type: float, description: F., from: value}\n"
    old += "  d: {type: 'decimal(5,2)', description: D., from: value}\n"
    land(settings, write(columns=ONE.format("int", "Old.") + old))
    new = old.replace("float", "double").replace("5,2", "9,2")
    new += "  more: {type: string, description: More., from: value}\n"
    stream = write(
        "headers: true\ntable: {compression: snappy, properties: {write.format.default: parquet}}",
        columns=ONE.format("bigint", "New.") + new,
    )
    send(settings, name, b"3000000000")
    land(settings, stream)
    rows = read_table(settings, stream.table, "n", "more", "f").to_pylist()
    assert sorted((row["n"], row["more"], row["f"]) for row in rows) == [
        (1, None, 1.0), (3_000_000_000, "3000000000", 3e9)
    ]  # fmt: skip
    schema = open_catalog(settings).load_table(stream.table).schema()
    kinds = {field.name: (str(field.field_type), field.doc) for field in schema.fields}
    assert kinds["n"] == ("long", "New.")
    assert kinds["f"][0] == "double"
    assert kinds["d"][0] == "decimal(9, 2)"
    assert "_kafka_headers" in kinds
    properties = open_catalog(settings).load_table(stream.table).properties
    assert properties["write.parquet.compression-codec"] == "snappy"
    assert properties["write.target-file-size-bytes"] == str(256 * 2**20)
    assert properties["commit.retry.num-retries"] == "3"


@pytest.mark.parametrize(
    ("old", "new"),
    [("bigint", "int"), ("int", "string"), ("decimal(9,2)", "decimal(9,3)"), ("double", "float")],
)
def test_any_other_change_of_type_is_refused_with_both_types_and_a_way_out(
    settings: Settings, write: Write, old: str, new: str
) -> None:
    ensure_table(settings, write(columns=ONE.format(f"'{old}'", "N.")))
    changed = write(columns=ONE.format(f"'{new}'", "N."))
    with pytest.raises(StreamFileError) as caught:
        ensure_table(settings, changed)
    assert f"n as {new}" in caught.value.message
    assert f"as {old}" in caught.value.message
    assert "another name" in caught.value.hint


def test_a_column_that_is_gone_from_the_file_is_refused(settings: Settings, write: Write) -> None:
    ensure_table(settings, write(columns=ONE.format("int", "N.")))
    with pytest.raises(StreamFileError) as caught:
        ensure_table(settings, write())
    assert "has the column n" in caught.value.message
    assert "drop column `n`" in caught.value.hint


def test_other_partitions_are_refused(settings: Settings, write: Write) -> None:
    ensure_table(settings, write("partition_by: ['bucket(4, line)']"))
    with pytest.raises(StreamFileError) as caught:
        ensure_table(settings, write())
    assert "bucket[4](line)" in caught.value.message


# --- a new stream from YAML alone ----------------------------------------------------------------


def test_a_new_topic_needs_one_file_and_no_python(
    stack: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    name = f"words_{uuid4().hex[:6]}"
    (tmp_path / f"{name}.yml").write_text(
        f"description: Lines of a book.\ntopic: {name}\nvalue: {{format: text}}\ncolumns:\n"
        "  line: {type: string, description: The line.}\n"
        "  words: {type: int, description: Words in it., "
        "expression: \"len(regexp_split_to_array(trim(line), ' +'))\"}\n"
        "rules: {line_is_not_empty: length(line) > 0}\n"
    )
    env = {**stack, "HEADWATER_STREAMS": str(tmp_path), "COLUMNS": "200"}
    send(settings, name, b"the quick brown fox", b"", b"jumps over")
    try:
        made = run(HEADWATER, "init", env=env)
        assert made.returncode == 0, made.stderr
        assert f"bronze.{name}" in made.stdout
        done = run(HEADWATER, "ingest", "--once", env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = read_table(settings, f"bronze.{name}", "line", "words", "_error_message").to_pylist()
        assert sorted((row["line"], row["words"]) for row in rows) == [
            ("", 1), ("jumps over", 2), ("the quick brown fox", 4)
        ]  # fmt: skip
        status = json.loads(run(HEADWATER, "status", "--json", env=env).stdout)
        assert status["streams"][name]["errors"] == 1
        assert status["streams"][name]["lag"] == 0
        seen = run(HEADWATER, "tail", name, "--no-follow", env=env)
        assert seen.returncode == 0, seen.stderr
        assert "the quick brown fox" in seen.stdout
        failed = run(HEADWATER, "errors", env=env)
        assert "rules not met: line_is_not_empty" in failed.stdout
    finally:
        drop(settings, f"bronze.{name}")


def test_tail_shows_avro_as_json(stack: dict[str, str], settings: Settings) -> None:
    produce(settings, "health", 20, None, 3, Shares(), lambda _: None)
    done = run(HEADWATER, "tail", "health", "-n", "2", "--no-follow", env=stack)
    assert done.returncode == 0, done.stderr
    assert '"data_type": ' in done.stdout
    assert len(done.stdout.splitlines()) <= 8
