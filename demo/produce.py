"""Sends made-up records, or the lines of a file, to the topic of a stream."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from demo.generators import GENERATORS, Record, Shares, spread_clock
from ingestion.errors import HeadwaterError
from ingestion.kafka import client_options, ensure_topic, require_broker
from ingestion.settings import Settings

REPORT_EVERY = 500

Report = Callable[[int], None]  # records sent


def produce(
    settings: Settings,
    stream: str,
    rows: int,
    rate: float | None,
    seed: int,
    shares: Shares,
    report: Report,
    span: timedelta | None = None,
) -> Counter[str]:
    """Send made-up records to the stream's topic; returns how many of each kind were acknowledged.

    With a rate, event times are now. Without one, all goes out at once and the event times are
    spread over the span, or the generator's own, which ends now.
    """
    generator = GENERATORS[stream]
    spread = spread_clock(rows, datetime.now(UTC), span or generator.span)
    clock = (lambda _: datetime.now(UTC)) if rate else spread
    records = generator.records(rows, seed, shares, clock)
    return send(settings, generator.topic, records, rate, report)


def produce_lines(settings: Settings, topic: str, lines: Iterable[bytes]) -> int:
    """Send each line as the value of one record; returns how many were acknowledged."""
    records = (Record(None, line.rstrip(b"\r\n"), "line") for line in lines)
    return send(settings, topic, records, None, lambda _: None).total()


def send(
    settings: Settings, topic: str, records: Iterable[Record], rate: float | None, report: Report
) -> Counter[str]:
    """Send the records, so many a second or as fast as Kafka takes them; counts them by kind."""
    from confluent_kafka import Producer

    require_broker(settings)
    ensure_topic(settings, topic)
    producer = Producer(
        client_options(settings) | {"enable.idempotence": True, "linger.ms": 20, "acks": "all"}
    )
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    began = time.monotonic()
    made: Counter[str] = Counter()
    for index, record in enumerate(records):
        if rate and (pause := began + index / rate - time.monotonic()) > 0:
            time.sleep(pause)
        while True:
            try:
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    on_delivery=delivered,
                    timestamp=record.timestamp,
                )
                break
            except BufferError:
                producer.poll(0.1)
        made[record.kind] += 1
        if index % REPORT_EVERY == 0:
            producer.poll(0)
            report(index + 1)
    left = producer.flush(60)
    report(made.total())
    if failures or left:
        raise HeadwaterError(
            f"{len(failures) + left} of {made.total()} records did not reach {topic} at "
            f"{settings.bootstrap_servers}: {failures[0] if failures else 'no answer in 60 s'}",
            "check the broker's log, then produce again",
        )
    return made
