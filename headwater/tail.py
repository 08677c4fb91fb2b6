"""Records as they come to the topics of a stream, straight from Kafka."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from headwater.rows.readable import Readable, headers
from ingestion.errors import HeadwaterError
from ingestion.kafka import begin_offsets, committed_consumer, end_offsets
from ingestion.origin import stream_partitions
from ingestion.settings import Settings
from ingestion.stream import Stream


@dataclass(frozen=True)
class Seen:
    """One record, for a person's eyes."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: str
    value: str
    headers: str


def tail(
    settings: Settings, stream: Stream, last: int, follow: bool, stop: Callable[[], bool]
) -> Iterator[Seen]:
    """The last records of each partition, then new ones until a stop is asked for."""
    partitions = stream_partitions(settings, stream)
    begin, end = begin_offsets(settings, partitions), end_offsets(settings, partitions)
    consumer = committed_consumer(settings, "tail")
    consumer.assign(
        [TopicPartition(*one, max(begin[one], offset - last)) for one, offset in end.items()]
    )
    unread = set(end)
    readable = Readable(settings, stream)
    try:
        while not stop() and (follow or unread):
            message: Any = consumer.poll(0.2)
            if message is None:
                continue
            if error := message.error():
                if error.code() != KafkaError._PARTITION_EOF:
                    raise HeadwaterError(f"{stream.topic_text}: {error.str()}", "try again")
                unread.discard((message.topic(), message.partition()))
                continue
            yield Seen(
                message.topic(),
                message.partition(),
                message.offset(),
                datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC),
                readable.text("key", message.key()),
                readable.text("value", message.value()),
                headers(message.headers()),
            )
    finally:
        consumer.close()
