"""What an outsider sees: the topic through a Kafka consumer, the tables through pyiceberg."""

import time
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from headwater.catalog import open_catalog
from headwater.kafka import client_options, end_offsets, ensure_topic, topics
from headwater.settings import Settings
from ingestion.ingest import Ingestion
from ingestion.stream import Stream


def read_topic(settings: Settings, topic: str) -> dict[tuple[int, int], bytes | None]:
    """Every committed record of the topic: (partition, offset) to value."""
    ends = end_offsets(settings, topics(settings, lambda name: name == topic))[topic]
    consumer = Consumer(
        client_options(settings)
        | {
            "group.id": "outside",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, int(partition), 0) for partition in ends])
    found: dict[tuple[int, int], bytes | None] = {}
    open_partitions = {int(partition) for partition in ends}
    while open_partitions:
        message = consumer.poll(10)
        assert message is not None, "the topic could not be read to its end"
        if message.error():
            open_partitions.discard(message.partition())
        else:
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


def send(
    settings: Settings,
    topic: str,
    *values: bytes | None,
    keys: Iterable[bytes | None] = repeat(None),
    headers: list[tuple[str, bytes]] | None = None,
    partitions: int = 4,
) -> None:
    ensure_topic(settings, topic, partitions)
    producer = Producer(client_options(settings) | {"queue.buffering.max.messages": 1_000_000})
    for value, key in zip(values, keys, strict=False):
        producer.produce(topic, value, key, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0


def read_table(settings: Settings, name: str, *columns: str) -> pa.Table:
    table = open_catalog(settings).load_table(name)
    return table.scan(selected_fields=columns or ("*",)).to_arrow()


def land(spark: Any, settings: Settings, stream: Stream) -> Ingestion:
    """Ingest what the topic holds now, in this process."""
    run = Ingestion(spark, settings, stream)
    run.start(once=True)
    wait_for(lambda: not run.is_running)
    run.stop()
    run.raise_failure()
    return run


def processes_of(state: Path | str) -> list[dict[str, Any]]:
    """Every server and Spark process names its state folder in its arguments."""
    found = [process.info for process in psutil.process_iter(["pid", "cmdline"])]
    return [one for one in found if str(state) in " ".join(one["cmdline"] or ())]


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def assert_table_is_topic(settings: Settings, table: str, topic: str) -> int:
    """Each record of the topic is in the table once, byte for byte, and nothing else is."""
    expected = read_topic(settings, topic)
    rows = read_table(settings, table, "_kafka_partition", "_kafka_offset", "_kafka_value")
    coordinates = list(
        zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True)
    )
    assert len(coordinates) == len(set(coordinates)), "a record is in the table twice"
    assert set(coordinates) == set(expected)
    assert dict(zip(coordinates, rows["_kafka_value"].to_pylist(), strict=True)) == expected
    return len(expected)
