"""The Kafka client: who answers, which topics there are, where they end."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from headwater.broker_trouble import Trouble, explain
from headwater.errors import HeadwaterError
from headwater.security import librdkafka_options
from headwater.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

TIMEOUT_SECONDS = 10
OFFSET_ATTEMPTS = 5
PAUSE_SECONDS = 0.5
QUIET_SECONDS = 60
CONSUME_AT_ONCE = 5_000
LOOK_HINT = "see how the broker does: headwater status"


def client_options(settings: Settings) -> dict[str, Any]:
    """Options of every librdkafka client here."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "log_level": 0,  # errors reach people as messages, not as library lines
        "socket.timeout.ms": TIMEOUT_SECONDS * 1000,
        **librdkafka_options(settings),
    }


def admin(settings: Settings) -> "AdminClient":
    client, _ = _admin(settings)
    client.poll(0)  # hands over what it has to report, which would pile up otherwise
    return client


@cache
def _admin(settings: Settings) -> tuple["AdminClient", deque[Any]]:
    """A client, and the newest errors of its connections: its calls just time out."""
    from confluent_kafka.admin import AdminClient

    errors: deque[Any] = deque(maxlen=20)
    return AdminClient(client_options(settings) | {"error_cb": errors.appendleft}), errors


def broker_problem(settings: Settings, timeout: float = 2) -> str | None:
    """Why the broker does not answer, or None when it does."""
    trouble = broker_trouble(settings, timeout)
    if trouble and settings.kafka_bootstrap_servers:
        return f"{trouble.problem}; {trouble.hint}"
    return trouble.problem if trouble else None


def broker_trouble(settings: Settings, timeout: float = 2) -> Trouble | None:
    """Why the broker does not answer, with the next step. What it refuses is told at once."""
    from confluent_kafka import KafkaError, KafkaException

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
                one.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL)
                or "SSL alert" in one.str()
                for one in errors
            )
            if refused or time.monotonic() >= end:
                return explain(settings, [one.str() for one in errors], error.args[0].str())


def require_broker(settings: Settings) -> None:
    if trouble := broker_trouble(settings, timeout=5):
        raise HeadwaterError(*trouble)


def ensure_topic(settings: Settings, topic: str, partitions: int = 4) -> None:
    """Create the topic unless it is there; the replication factor is the cluster's default."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

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
    from confluent_kafka import KafkaException, TopicCollection

    wanted = list(names)
    if not wanted:
        return {}
    described = admin(settings).describe_topics(
        TopicCollection(wanted), request_timeout=TIMEOUT_SECONDS
    )
    try:
        return {
            name: str(one.result(2 * TIMEOUT_SECONDS).topic_id) for name, one in described.items()
        }
    except KafkaException as error:
        raise HeadwaterError(
            f"topic {', '.join(wanted)} at {settings.bootstrap_servers} could not be described: "
            f"{error.args[0].str()}",
            LOOK_HINT,
        ) from error


Offsets = dict[str, dict[str, int]]  # topic -> partition -> next offset to read


def offsets(settings: Settings, partitions: dict[str, list[int]], spec: Any) -> Offsets:
    """Offsets by topic and partition, for an OffsetSpec."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

    request = {
        TopicPartition(topic, one): spec for topic in partitions for one in partitions[topic]
    }
    if not request:
        return {topic: {} for topic in partitions}
    problem: KafkaException | None = None
    for _ in range(OFFSET_ATTEMPTS):
        answers = admin(settings).list_offsets(
            request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_SECONDS
        )
        found: Offsets = {topic: {} for topic in partitions}
        try:
            for where, answer in answers.items():
                offset = answer.result(2 * TIMEOUT_SECONDS).offset
                found[where.topic][str(where.partition)] = offset
            return found
        except KafkaException as error:
            # A partition that is new, or whose broker just came back, has no leader for a moment;
            # and the client looks for a new one only when it lists the topics.
            problem = error
            time.sleep(PAUSE_SECONDS)
            with suppress(KafkaException):
                admin(settings).list_topics(timeout=TIMEOUT_SECONDS)
    why = problem.args[0].str() if problem else ""
    raise HeadwaterError(
        f"{settings.bootstrap_servers} does not tell the offsets of {', '.join(partitions)}: {why}",
        LOOK_HINT,
    ) from problem


def end_offsets(settings: Settings, partitions: dict[str, list[int]]) -> Offsets:
    """Where a committed read ends now."""
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    return offsets(settings, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def begin_offsets(settings: Settings, partitions: dict[str, list[int]]) -> Offsets:
    """The oldest records that retention has left."""
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    return offsets(settings, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def offsets_at(settings: Settings, partitions: dict[str, list[int]], when: datetime) -> Offsets:
    """The first records with this timestamp or a later one; the end where there is none."""
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    milliseconds = int(when.timestamp() * 1000)
    found = offsets(settings, partitions, OffsetSpec.for_timestamp(milliseconds))
    ends = end_offsets(settings, partitions)
    return {
        topic: {one: offset if offset >= 0 else ends[topic][one] for one, offset in known.items()}
        for topic, known in found.items()
    }


def lag(settings: Settings, wanted: Callable[[str], bool], position: Offsets) -> int | None:
    """How many offsets lie ahead of this position; None while no broker answers."""
    from confluent_kafka import KafkaException

    try:
        partitions = topics(settings, wanted)
        begin, ends = begin_offsets(settings, partitions), end_offsets(settings, partitions)
    except (KafkaException, HeadwaterError):
        return None
    return sum(
        end - max(position.get(topic, {}).get(one, 0), begin[topic][one])
        for topic, known in ends.items()
        for one, end in known.items()
    )


def is_compacted(settings: Settings, topic: str) -> bool:
    """Whether Kafka may delete single records of the topic."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        ConfigResource,
        ResourceType,
    )

    resource = ConfigResource(ResourceType.TOPIC, topic)
    (answer,) = admin(settings).describe_configs([resource]).values()
    return "compact" in answer.result(TIMEOUT_SECONDS)["cleanup.policy"].value


def committed_consumer(settings: Settings, purpose: str, **more: str) -> "Consumer":
    """A consumer that sees committed records, tells where a partition ends, and stores nothing."""
    from confluent_kafka import Consumer

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


def committed_records(
    settings: Settings, topic: str, partition: int, first: int, end: int
) -> Iterator[Any]:
    """What a committed read of a partition returns, from `first` up to but not `end`."""
    from confluent_kafka import KafkaError, TopicPartition

    if first >= end:
        return
    # Retention may be quicker than this read.
    consumer = committed_consumer(settings, "verify", **{"auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, partition, first)])
        quiet_since = time.monotonic()
        while True:
            message: Any
            for message in consumer.consume(CONSUME_AT_ONCE, timeout=0.1):
                quiet_since = time.monotonic()
                error = message.error()
                if error is None and message.offset() < end:
                    yield message
                elif error is None or error.code() == KafkaError._PARTITION_EOF:
                    return
                else:
                    raise HeadwaterError(
                        f"{topic} partition {partition} could not be read: {error.str()}",
                        LOOK_HINT,
                    )
            if time.monotonic() - quiet_since > QUIET_SECONDS:
                raise HeadwaterError(
                    f"{topic} partition {partition} gave no record for {QUIET_SECONDS} s, and "
                    f"offset {end - 1} was not reached",
                    LOOK_HINT,
                )
    finally:
        consumer.close()
