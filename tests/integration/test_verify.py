"""The verifier finds what is wrong, and only that."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from headwater.rows.verify import Verified, spans, verify
from ingestion.catalog import open_catalog
from ingestion.kafka import admin, client_options
from ingestion.settings import Settings
from ingestion.stream import Stream
from ingestion.stream_file import load_stream
from tests.conftest import HEADWATER, run
from tests.integration.conftest import new_stream
from tests.integration.outside import VALUE, land, send, verified, wait_for


def look(settings: Settings, stream: Stream) -> Verified:
    table = open_catalog(settings).load_table(stream.table)
    return verify(settings, stream, table, lambda *_: None)


def problems(settings: Settings, stream: Stream) -> dict[str, list[tuple[int, int]]]:
    (check,) = look(settings, stream).partitions
    return check.problems


def test_offsets_are_told_as_ranges() -> None:
    assert spans([7, 1, 2, 3, 9, 8, 20]) == [(1, 3), (7, 9), (20, 20)]


@pytest.fixture(scope="module")
def whole(settings: Settings) -> Stream:
    """Twenty records of one partition, in the table."""
    stream = new_stream()
    keys = [b"key %d" % number for number in range(20)]
    send(settings, stream.topics[0], *[VALUE] * 20, keys=keys, partitions=1)
    land(settings, stream)
    return stream


@pytest.fixture
def landed(spark: SparkSession, settings: Settings, whole: Stream) -> Iterator[Stream]:
    """The same for each test, whatever it does to the table."""
    assert verified(settings, whole) == 20
    snapshot = open_catalog(settings).load_table(whole.table).current_snapshot()
    assert snapshot is not None
    yield whole
    spark.sql(f"call lake.system.rollback_to_snapshot('{whole.table}', {snapshot.snapshot_id})")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            "delete from {table} where _kafka_offset between 3 and 5 or _kafka_offset = 19",
            {"missing in the table": [(3, 5), (19, 19)]},
        ),
        (
            "insert into {table} select * from {table} where _kafka_offset in (0, 7)",
            {"in the table more than once": [(0, 0), (7, 7)]},
        ),
        (
            "update {table} set _kafka_value = X'00' where _kafka_offset = 4",
            {"not as it was sent": [(4, 4)]},
        ),
        (
            "update {table} set _kafka_key = null where _kafka_offset = 4",
            {"not as it was sent": [(4, 4)]},
        ),
        (
            "update {table} set _kafka_timestamp = _kafka_timestamp + interval 1 second "
            "where _kafka_offset = 4",
            {"not as it was sent": [(4, 4)]},
        ),
        (
            "update {table} set _kafka_offset = 25 where _kafka_offset = 4",
            {
                "missing in the table": [(4, 4)],
                "not a committed record of the topic": [(25, 25)],
            },
        ),
    ],
    ids=["missing", "doubled", "value", "key", "time", "invented"],
)
def test_damage_is_found_with_its_offsets(
    spark: SparkSession, settings: Settings, landed: Stream, damage: str, expected: dict[str, Any]
) -> None:
    spark.sql(damage.format(table=f"lake.{landed.table}"))
    assert problems(settings, landed) == expected


def test_rows_of_an_unknown_topic_are_found(
    spark: SparkSession, settings: Settings, landed: Stream
) -> None:
    spark.sql(f"update lake.{landed.table} set _kafka_topic = 'other' where _kafka_offset = 4")
    found = look(settings, landed)
    assert found.strangers == 1
    assert not found.is_exact


def test_the_command_exits_with_1_and_names_the_offsets(
    stack: dict[str, str], spark: SparkSession, landed: Stream, tmp_path: Path
) -> None:
    text = f"description: d\ntopic: {landed.topics[0]}\nvalue: {{format: text}}\n"
    text += "columns: {line: {type: string, description: d}}\n"
    (tmp_path / f"{landed.name}.yml").write_text(text)
    env = {**stack, "HEADWATER_STREAMS": str(tmp_path)}
    good = run(HEADWATER, "verify", landed.name, env=env)
    assert good.returncode == 0, good.stderr
    assert "exactly once" in good.stdout
    spark.sql(f"delete from lake.{landed.table} where _kafka_offset between 3 and 5")
    bad = run(HEADWATER, "verify", landed.name, env=env)
    assert bad.returncode == 1
    assert f"{landed.topics[0]} partition 0: offsets 3-5: missing in the table" in bad.stderr
    assert "Traceback" not in bad.stderr


def transactions(settings: Settings, topic: str, size: int, *outcomes: bool) -> None:
    """Transactions of so many records, committed where the outcome is true, aborted otherwise."""
    producer = Producer(client_options(settings) | {"transactional.id": topic})
    producer.init_transactions(30)
    for is_good in outcomes:
        producer.begin_transaction()
        for _ in range(size):
            producer.produce(topic, VALUE)
        producer.flush(30)
        if is_good:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def test_records_of_aborted_transactions_never_land(settings: Settings, stream: Stream) -> None:
    """Aborted, committed, aborted again: the topic ends with records that nobody shall see."""
    topic = stream.topics[0]
    send(settings, topic, VALUE, partitions=1)
    transactions(settings, topic, 5, False, True, False)
    land(settings, stream)
    assert verified(settings, stream) == 6
    assert land(settings, stream).progress.rows == 0  # nothing left, nothing doubled
    assert verified(settings, stream) == 6


def test_a_row_of_an_aborted_transaction_would_be_found(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    topic = stream.topics[0]
    send(settings, topic, VALUE, partitions=1)
    transactions(settings, topic, 1, False)
    send(settings, topic, VALUE)
    land(settings, stream)
    # Offset 1 was aborted.
    spark.sql(f"update lake.{stream.table} set _kafka_offset = 1 where _kafka_offset > 1")
    found = problems(settings, stream)
    assert found["not a committed record of the topic"] == [(1, 1)]


@pytest.mark.slow  # the broker's cleaner looks every 15 s
def test_a_compacted_topic_may_lack_what_the_table_holds(
    settings: Settings, stream: Stream
) -> None:
    from confluent_kafka.admin import NewTopic

    topic = stream.topics[0]
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    made = admin(settings).create_topics([NewTopic(topic, num_partitions=1, config=config)])
    made[topic].result(30)
    for _ in range(3):
        send(settings, topic, *[VALUE] * 5, keys=[b"one key"] * 5)
    land(settings, stream)
    assert verified(settings, stream) == 15

    def compacted() -> bool:
        send(settings, topic, VALUE, keys=[b"another key"])  # a new segment, so that old ones close
        return sum(one.gone for one in look(settings, stream).partitions) > 0

    wait_for(compacted, 60)
    assert look(settings, stream).is_exact


def test_headers_are_compared(
    spark: SparkSession, settings: Settings, stream: Stream, tmp_path: Path
) -> None:
    (tmp_path / f"{stream.name}.yml").write_text(
        f"description: d\ntopic: {stream.topics[0]}\nvalue: {{format: text}}\nheaders: true\n"
        "columns: {line: {type: string, description: d}}\n"
    )
    kept = load_stream(tmp_path / f"{stream.name}.yml")
    send(settings, stream.topics[0], b"a", headers=[("one", b"1"), ("two", b"")], partitions=1)
    send(settings, stream.topics[0], b"b")
    land(settings, kept)
    assert verified(settings, kept) == 2
    other = "array(named_struct('key', 'one', 'value', X'00'))"
    spark.sql(f"update lake.{stream.table} set _kafka_headers = {other} where _kafka_offset = 0")
    assert problems(settings, kept) == {"not as it was sent": [(0, 0)]}
