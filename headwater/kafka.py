"""The Kafka client: who answers, which topics there are, where they end."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError
from headwater.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMEOUT_SECONDS = 10


def client_options(settings: Settings) -> dict[str, Any]:
    """Options of every librdkafka client here."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "log_level": 0,  # errors reach people as messages, not as library lines
        "socket.timeout.ms": TIMEOUT_SECONDS * 1000,
    }


@cache
def admin(settings: Settings) -> "AdminClient":
    from confluent_kafka.admin import AdminClient

    return AdminClient(client_options(settings))


def broker_problem(settings: Settings, timeout: float = 2) -> str | None:
    """Why the broker does not answer, or None when it does."""
    from confluent_kafka import KafkaException

    try:
        admin(settings).list_topics(timeout=timeout)
    except KafkaException as error:
        return f"no Kafka broker answers at {settings.bootstrap_servers} ({error.args[0].str()})"
    return None


def require_broker(settings: Settings) -> None:
    if problem := broker_problem(settings, timeout=5):
        raise HeadwaterError(problem, _broker_hint(settings))


def _broker_hint(settings: Settings) -> str:
    if settings.kafka_bootstrap_servers:
        return "check HEADWATER_KAFKA_BOOTSTRAP_SERVERS and that the broker runs"
    return "run: headwater up"


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
                f"topic {topic} could not be created: {error.args[0].str()}", _broker_hint(settings)
            ) from error


def topic_partitions(settings: Settings, topic: str) -> list[int]:
    """The partitions of a topic; an unknown topic has none."""
    metadata = admin(settings).list_topics(timeout=TIMEOUT_SECONDS).topics.get(topic)
    return sorted(metadata.partitions) if metadata and not metadata.error else []


def topic_id(settings: Settings, topic: str) -> str:
    """Kafka's own id of the topic: another one means that the topic was deleted and made again."""
    from confluent_kafka import TopicCollection

    described = admin(settings).describe_topics(TopicCollection([topic]))
    return str(described[topic].result(TIMEOUT_SECONDS).topic_id)


def offsets(
    settings: Settings, topic: str, partitions: Iterable[int], spec: Callable[[], Any]
) -> dict[int, int]:
    """Offsets of a topic by partition, for a spec such as OffsetSpec.latest."""
    from confluent_kafka import IsolationLevel, TopicPartition

    request = {TopicPartition(topic, partition): spec() for partition in partitions}
    if not request:
        return {}
    answers = admin(settings).list_offsets(
        request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_SECONDS
    )
    return {
        where.partition: answer.result(TIMEOUT_SECONDS).offset for where, answer in answers.items()
    }


def end_offsets(settings: Settings, topic: str) -> dict[int, int]:
    """Where a committed read of the topic ends now, by partition."""
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    return offsets(settings, topic, topic_partitions(settings, topic), OffsetSpec.latest)


def begin_offsets(settings: Settings, topic: str) -> dict[int, int]:
    """The oldest record of the topic that retention has left, by partition."""
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    return offsets(settings, topic, topic_partitions(settings, topic), OffsetSpec.earliest)


def lag(settings: Settings, topic: str, position: dict[str, dict[str, int]]) -> int | None:
    """How many offsets of the topic lie ahead of this position; None while no broker answers."""
    from confluent_kafka import KafkaException

    known = position.get(topic, {})
    try:
        begin = begin_offsets(settings, topic)
        ends = end_offsets(settings, topic)
    except KafkaException:
        return None
    return sum(
        end - max(known.get(str(partition), 0), begin.get(partition, 0))
        for partition, end in ends.items()
    )
