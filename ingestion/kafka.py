"""The Kafka client: brokers, topics, offsets and records."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from ingestion.broker_trouble import Trouble, explain
from ingestion.errors import HeadwaterError
from ingestion.offsets import Offsets
from ingestion.security import librdkafka_options
from ingestion.settings import Settings

TIMEOUT_SECONDS = 10
OFFSET_ATTEMPTS = 5
PAUSE_SECONDS = 0.5
QUIET_SECONDS = 60
CHECK_HINT = "check the broker: headwater status"

# Messages to take at once: enough that calls cost little, few enough that they stay in the
# processor's cache until they are Arrow.
MOST_RECORDS = 4_000
MOST_BYTES = 4 << 20
MOST_SECONDS = 0.5
FIRST_RECORDS = 16  # from a range whose records may be of any size
# The connection comes back by itself, or the range ends for want of records.
PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
}


def client_options(settings: Settings) -> dict[str, Any]:
    """Options of every librdkafka client here."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "log_level": 0,  # errors reach people as messages, not as library lines
        "socket.timeout.ms": TIMEOUT_SECONDS * 1000,
        **librdkafka_options(settings),
    }


def admin(settings: Settings) -> AdminClient:
    client, _ = _admin(settings)
    client.poll(0)  # deliver pending callbacks, which would pile up otherwise
    return client


@cache
def _admin(settings: Settings) -> tuple[AdminClient, deque[Any]]:
    """A client and the newest errors of its connections; its calls only time out."""
    errors: deque[Any] = deque(maxlen=20)
    return AdminClient(client_options(settings) | {"error_cb": errors.appendleft}), errors


def broker_problem(settings: Settings, timeout: float = 2) -> str | None:
    """Why the broker does not answer, or None when it does."""
    trouble = broker_trouble(settings, timeout)
    if trouble and settings.kafka_bootstrap_servers:
        return f"{trouble.problem}; {trouble.hint}"
    return trouble.problem if trouble else None


def broker_trouble(settings: Settings, timeout: float = 2) -> Trouble | None:
    """Why the broker does not answer, and the next step. A refusal is reported at once."""
    end = time.monotonic() + timeout
    try:
        client, errors = _admin(settings)
    except HeadwaterError as error:
        return Trouble(error.message, error.hint)
    except KafkaException as error:  # a certificate or key that cannot be used
        return explain(settings, [error.args[0].str()], error.args[0].str())
    while True:
        try:
            client.list_topics(timeout=max(0.1, min(0.5, end - time.monotonic())))
            errors.clear()
            return None
        except KafkaException as error:
            client.poll(0)
            refused = any(
                reported.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL)
                or "SSL alert" in reported.str()
                for reported in errors
            )
            if refused or time.monotonic() >= end:
                texts = [reported.str() for reported in errors]
                return explain(settings, texts, error.args[0].str())


def require_broker(settings: Settings) -> None:
    if trouble := broker_trouble(settings, timeout=5):
        raise HeadwaterError(*trouble)


def ensure_topic(settings: Settings, topic: str, partitions: int = 4) -> None:
    """Create the topic unless it is there; the replication factor is the cluster's default."""
    made = admin(settings).create_topics([NewTopic(topic, num_partitions=partitions)])
    try:
        made[topic].result(TIMEOUT_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise HeadwaterError(
                f"topic {topic} could not be created: {error.args[0].str()}",
                "check the broker's log, and that this user may create topics",
            ) from error


def topics(settings: Settings, wanted: Callable[[str], bool]) -> dict[str, list[int]]:
    """The topics that are wanted and there, with their partitions."""
    found = admin(settings).list_topics(timeout=TIMEOUT_SECONDS).topics
    return {
        name: sorted(metadata.partitions)
        for name, metadata in sorted(found.items())
        if wanted(name) and not metadata.error
    }


def topic_ids(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Kafka's own ids of topics: another one means that the topic was deleted and made again."""
    wanted = list(names)
    if not wanted:
        return {}
    described = admin(settings).describe_topics(
        TopicCollection(wanted), request_timeout=TIMEOUT_SECONDS
    )
    try:
        return {
            name: str(answer.result(2 * TIMEOUT_SECONDS).topic_id)
            for name, answer in described.items()
        }
    except KafkaException as error:
        raise HeadwaterError(
            f"topic {', '.join(wanted)} at {settings.bootstrap_servers} could not be described: "
            f"{error.args[0].str()}",
            CHECK_HINT,
        ) from error


Partitions = dict[str, list[int]]  # topic -> its partitions


def list_offsets(settings: Settings, partitions: Partitions, spec: Any) -> Offsets:
    """Offsets for an OffsetSpec, as a committed read sees them."""
    request = {
        TopicPartition(topic, number): spec for topic in partitions for number in partitions[topic]
    }
    if not request:
        return Offsets()
    problem: KafkaException | None = None
    for _ in range(OFFSET_ATTEMPTS):
        answers = admin(settings).list_offsets(
            request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_SECONDS
        )
        try:
            return Offsets(
                {
                    (where.topic, where.partition): answer.result(2 * TIMEOUT_SECONDS).offset
                    for where, answer in answers.items()
                }
            )
        except KafkaException as error:
            # A partition that is new, or whose broker just came back, has no leader for a moment;
            # and the client looks for a new one only when it lists the topics.
            problem = error
            time.sleep(PAUSE_SECONDS)
            with suppress(KafkaException):
                admin(settings).list_topics(timeout=TIMEOUT_SECONDS)
    why = problem.args[0].str() if problem else ""
    raise HeadwaterError(
        f"{settings.bootstrap_servers} gives no offsets of {', '.join(partitions)}: {why}",
        CHECK_HINT,
    ) from problem


def end_offsets(settings: Settings, partitions: Partitions) -> Offsets:
    """Where the partitions end now, for a reader of committed records."""
    return list_offsets(settings, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def begin_offsets(settings: Settings, partitions: Partitions) -> Offsets:
    """The oldest records that retention has left."""
    return list_offsets(settings, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def offsets_at(settings: Settings, partitions: Partitions, when: datetime) -> Offsets:
    """The first records with this timestamp or a later one; the end where there is none."""
    milliseconds = int(when.timestamp() * 1000)
    found = list_offsets(settings, partitions, OffsetSpec.for_timestamp(milliseconds))
    ends = end_offsets(settings, partitions)
    return Offsets(
        {partition: at if at >= 0 else ends[partition] for partition, at in found.items()}
    )


def lag(settings: Settings, wanted: Callable[[str], bool], position: Offsets) -> int | None:
    """How many offsets lie ahead of this position; None while no broker answers."""
    try:
        partitions = topics(settings, wanted)
        begin, ends = begin_offsets(settings, partitions), end_offsets(settings, partitions)
    except (KafkaException, HeadwaterError):
        return None
    return position.raised_to(begin).distance_to(ends)


def committed_consumer(settings: Settings, purpose: str, **more: Any) -> Consumer:
    """A consumer of committed records that reports ends of partitions and stores no offsets."""
    return Consumer(
        client_options(settings)
        | {
            "group.id": f"headwater-{purpose}",  # librdkafka wants one
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **more,
        }
    )


Record = Any  # a message of confluent_kafka, whose stubs allow None for each of its parts


class Range(NamedTuple):
    """Offsets of one partition, from `begin` up to but not `end`."""

    topic: str
    partition: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def read_ranges(consumer: Consumer, ranges: Iterable[Range]) -> Iterator[list[Record]]:
    """The committed records of these ranges, a few thousand at a time, in order.

    Small ranges are read together: a thousand separate reads would take a thousand round trips.
    """
    for group in _groups(ranges):
        together = _read_together(consumer, group) if len(group) > 1 else None
        if together is None:
            for span in group:
                yield from _read_range(consumer, span)
        elif together:
            yield together
    consumer.unassign()


def _groups(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    group: list[Range] = []
    for span in ranges:
        if group and sum(other.size for other in group) + span.size > MOST_RECORDS:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _read_range(consumer: Consumer, wanted: Range) -> Iterator[list[Record]]:
    """Offsets may have gaps (transactions, compaction): the range is over at a record beyond it,
    or where the partition itself ends.
    """
    if not wanted.size:
        return
    consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.begin)])
    watch, count, at = Watch([wanted]), FIRST_RECORDS, wanted.begin
    while at < wanted.end:
        # It waits for so many records or for the time-out, so ask for no more than can come.
        block: list[Record] = consumer.consume(min(count, wanted.end - at), MOST_SECONDS)
        watch.check(block)
        if block and not any(map(Message.error, block)) and block[-1].offset() < wanted.end:
            records = block
        else:
            records = [
                record
                for record in block
                if record.error() is None and record.offset() < wanted.end
            ]
            at = wanted.end if any(_is_behind(record, wanted) for record in block) else at
        at = max(at, records[-1].offset() + 1) if records else at
        if records:
            yield records
            count = _count_in(MOST_BYTES, len(records), _size(records))


def _read_together(consumer: Consumer, ranges: list[Range]) -> list[Record] | None:
    """The records of several small ranges, in order; None when they are too many bytes for that."""
    open_ranges = {(span.topic, span.partition): span for span in ranges if span.size}
    consumer.assign([TopicPartition(span.topic, span.partition, span.begin) for span in ranges])
    watch, size, count = Watch(ranges), 0, FIRST_RECORDS
    found: list[Record] = []
    left = sum(span.size for span in ranges)
    while open_ranges:
        block: list[Record] = consumer.consume(min(count, max(left, 1)), MOST_SECONDS)
        watch.check(block)
        for record in block:
            wanted = open_ranges.get((record.topic(), record.partition()))
            if wanted is None:
                continue
            if record.error() is None and record.offset() < wanted.end:
                found.append(record)
                left -= 1
            if _is_behind(record, wanted) or record.offset() == wanted.end - 1:
                del open_ranges[wanted.topic, wanted.partition]
                consumer.incremental_unassign([TopicPartition(wanted.topic, wanted.partition)])
        size += _size(block)
        if size > MOST_BYTES:
            return None
        count = _count_in(MOST_BYTES - size, len(found), size)
    order = {(span.topic, span.partition): number for number, span in enumerate(ranges)}
    found.sort(key=lambda record: (order[record.topic(), record.partition()], record.offset()))
    return found


def _size(records: list[Record]) -> int:
    """The size in bytes, estimated from every eighth record."""
    return 8 * sum(len(record.value() or b"") + len(record.key() or b"") for record in records[::8])


def _count_in(room: int, count: int, size: int) -> int:
    """How many records fit into `room` bytes, if they are as large as those so far."""
    return max(1, min(MOST_RECORDS, room * count // max(size, 1)))


def _is_behind(record: Record, wanted: Range) -> bool:
    """A record behind the range, or the end of the partition at or behind the end of the range."""
    error = record.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        return False
    return bool(record.offset() >= wanted.end)


class Watch:
    """Ends a read when the broker falls silent or refuses it."""

    def __init__(self, ranges: list[Range]) -> None:
        self._what = ", ".join(f"{span.topic} partition {span.partition}" for span in ranges[:3])
        self._what += f" and {len(ranges) - 3} more" if len(ranges) > 3 else ""
        self._heard = time.monotonic()

    def check(self, block: list[Record]) -> None:
        for record in block:
            error = record.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                self._heard = time.monotonic()
                break
            if error.code() not in PASSING:
                raise HeadwaterError(
                    f"{self._what} could not be read: {error.str()}",
                    CHECK_HINT,
                )
        if time.monotonic() - self._heard > QUIET_SECONDS:
            raise HeadwaterError(
                f"{self._what} gave no record for {QUIET_SECONDS} s, though there are more",
                CHECK_HINT,
            )
