"""The table says where its stream stands, and refuses a writer who has not seen all of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from ingestion import ingest
from ingestion.catalog import open_catalog
from ingestion.errors import TableMovedError
from ingestion.ledger import next_stamp, position_of_rows, read_position
from ingestion.run import Ingestion
from ingestion.settings import Settings
from ingestion.stream import Stream
from tests.integration.outside import (
    VALUE,
    assert_table_is_topic,
    compact,
    expire,
    land,
    read_table,
    send,
)


def load(settings: Settings, stream: Stream) -> Table:
    return open_catalog(settings).load_table(stream.table)


def end(run: Ingestion) -> BaseException | None:
    while run.is_running:
        pass
    run.stop()
    return run.failure


def test_a_writer_that_was_overtaken_is_refused(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    send(settings, stream.topics[0], *[VALUE] * 10)
    land(spark, settings, stream)
    send(settings, stream.topics[0], *[VALUE] * 10)
    zombie = Ingestion(spark, settings, stream)  # has looked at the table, then sleeps
    land(spark, settings, stream)  # another one takes over
    zombie.start(once=True)
    assert isinstance(end(zombie), TableMovedError)
    assert assert_table_is_topic(settings, stream.table, stream.topics[0]) == 20


def test_a_writer_that_is_overtaken_right_after_its_commit_is_refused(
    spark: SparkSession, settings: Settings, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not take the other's commit for its own and then write the same records again."""
    small = stream.model_copy(update={"batch": stream.batch.model_copy(update={"max_records": 8})})
    send(settings, stream.topics[0], *[VALUE] * 40)
    first = Ingestion(spark, settings, small)
    commit = ingest.commit

    def commit_and_be_overtaken(*arguments: Any) -> datetime:
        stamp = commit(*arguments)
        monkeypatch.setattr(ingest, "commit", commit)
        land(spark.newSession(), settings, stream)
        return stamp

    monkeypatch.setattr(ingest, "commit", commit_and_be_overtaken)
    first.start(once=True)
    assert isinstance(end(first), TableMovedError)
    assert assert_table_is_topic(settings, stream.table, stream.topics[0]) == 40


def test_two_first_writers_cannot_both_win(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    send(settings, stream.topics[0], *[VALUE] * 10)
    late = Ingestion(spark, settings, stream)  # made the table; it has no snapshot yet
    land(spark, settings, stream)
    late.start(once=True)
    assert isinstance(end(late), TableMovedError)
    assert assert_table_is_topic(settings, stream.table, stream.topics[0]) == 10


def test_a_compaction_in_between_is_no_conflict(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    for _ in range(3):
        send(settings, stream.topics[0], *[VALUE] * 10)
        land(spark, settings, stream)
    writer = Ingestion(spark, settings, stream)
    send(settings, stream.topics[0], *[VALUE] * 10)
    compact(spark, stream)
    writer.start(once=True)
    assert end(writer) is None
    assert assert_table_is_topic(settings, stream.table, stream.topics[0]) == 40


def test_a_rollback_in_between_is_refused_and_the_next_run_reads_again(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    send(settings, stream.topics[0], *[VALUE] * 10)
    land(spark, settings, stream)
    first = load(settings, stream).current_snapshot()
    assert first is not None
    send(settings, stream.topics[0], *[VALUE] * 10)
    land(spark, settings, stream)
    writer = Ingestion(spark, settings, stream)
    send(settings, stream.topics[0], *[VALUE] * 10)
    spark.sql(f"call lake.system.rollback_to_snapshot('{stream.table}', {first.snapshot_id})")
    writer.start(once=True)
    assert isinstance(end(writer), TableMovedError)
    land(spark, settings, stream)
    assert assert_table_is_topic(settings, stream.table, stream.topics[0]) == 30


def test_rows_and_marks_give_the_same_position(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    for _ in range(3):
        send(settings, stream.topics[0], *[VALUE] * 50)
        land(spark, settings, stream)
    table = load(settings, stream)
    marked = read_position(table)
    assert position_of_rows(table) == (marked.offsets, marked.newest_stamp)
    # Compaction mixes the partitions in one file, so that its bounds say nothing any more.
    compact(spark, stream)
    assert position_of_rows(load(settings, stream)) == (marked.offsets, marked.newest_stamp)


def test_without_any_mark_the_rows_decide(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    send(settings, stream.topics[0], *[VALUE] * 20)
    land(spark, settings, stream)
    rows = spark.table(f"lake.{stream.table}").collect()
    schema = spark.table(f"lake.{stream.table}").schema
    spark.createDataFrame(rows, schema).writeTo(f"lake.{stream.table}").overwritePartitions()
    expire(spark, stream)
    send(settings, stream.topics[0], *[VALUE] * 20)
    land(spark, settings, stream)
    assert assert_table_is_topic(settings, stream.table, stream.topics[0]) == 40


def test_a_dropped_table_is_filled_again_from_the_start(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    send(settings, stream.topics[0], *[VALUE] * 10)
    land(spark, settings, stream)
    spark.sql(f"drop table lake.{stream.table} purge")
    land(spark, settings, stream)
    assert assert_table_is_topic(settings, stream.table, stream.topics[0]) == 10


def test_start_latest_is_settled_when_the_table_is_made(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    stream = stream.model_copy(update={"start": "latest"})
    send(settings, stream.topics[0], *[VALUE] * 10)
    assert land(spark, settings, stream).progress.rows == 0
    send(settings, stream.topics[0], *[VALUE] * 5)
    assert land(spark, settings, stream).progress.rows == 5


def test_a_run_with_nothing_new_commits_nothing(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    send(settings, stream.topics[0], VALUE)
    land(spark, settings, stream)
    before = load(settings, stream).current_snapshot()
    assert land(spark, settings, stream).progress.commits == 0
    assert load(settings, stream).current_snapshot() == before


def test_each_commit_has_one_stamp_and_stamps_grow(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    stream = stream.model_copy(
        update={"batch": stream.batch.model_copy(update={"max_records": 20})}
    )
    send(settings, stream.topics[0], *[VALUE] * 60)
    run = land(spark, settings, stream)
    stamps = read_table(settings, stream.table, "_ingested_at")["_ingested_at"].unique()
    assert run.progress.commits == len(stamps) >= 3
    assert next_stamp(datetime.now(UTC) + timedelta(hours=1)) > datetime.now(UTC) + timedelta(
        minutes=59
    )
