"""Made-up records for the streams: good, late, duplicate and bad ones."""

import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from headwater.errors import HeadwaterError
from headwater.kafka import client_options, ensure_topic, require_broker
from headwater.settings import Settings

# Ticker and a price to start its walk from.
TICKERS = {
    "AAPL": 228.0, "ACN": 352.0, "ADBE": 497.0, "AMD": 138.0, "AVGO": 171.0, "CRM": 324.0,
    "CSCO": 57.0, "IBM": 207.0, "INTC": 24.0, "MA": 521.0, "MSFT": 415.0, "NVDA": 142.0,
    "ORCL": 184.0, "PYPL": 85.0, "QCOM": 161.0, "TXN": 201.0, "V": 308.0,
}  # fmt: skip
STEP = 0.0004  # standard deviation of one step of the walk, as a share of the price
TRADING_DAY = timedelta(hours=6, minutes=30)
MOST_LATE = timedelta(hours=24)
REPORT_EVERY = 500
REMEMBERED = 1000  # a duplicate repeats one of the last so many records


@dataclass(frozen=True)
class Shares:
    """Which shares of the records are bad, late or sent again."""

    bad: float = 0.0
    late: float = 0.0
    duplicates: float = 0.0


class Record(NamedTuple):
    key: bytes
    value: bytes
    kind: str  # good, late, duplicate, or the error type that bronze must give it


def stock_records(
    rows: int, seed: int, shares: Shares, clock: Callable[[int], datetime]
) -> Iterator[Record]:
    """Prices that walk at random. The same seed and clock give the same records."""
    chance = random.Random(seed)
    prices = dict(TICKERS)
    tickers = list(prices)
    recent: deque[Record] = deque(maxlen=REMEMBERED)
    for index in range(rows):
        draw = chance.random()
        if draw < shares.duplicates and recent:
            again = chance.choice(recent)
            yield Record(again.key, again.value, "duplicate")
            continue
        ticker = chance.choice(tickers)
        event_time = clock(index)
        if draw >= 1 - shares.bad:
            yield _bad_stock(chance, ticker, event_time)
            continue
        prices[ticker] *= 1 + chance.gauss(0, STEP)
        late = shares.duplicates <= draw < shares.duplicates + shares.late
        if late:
            event_time -= MOST_LATE * chance.random()
        record = _stock(ticker, event_time, round(prices[ticker], 2), "late" if late else "good")
        recent.append(record)
        yield record


KEYS = {ticker: json.dumps({"ticker": ticker}).encode() for ticker in TICKERS}


def _stock(ticker: str, event_time: datetime, price: float, kind: str) -> Record:
    # Built by hand: json.dumps would take most of the time of a large run.
    value = f'{{"event_time": "{event_time.isoformat()}", "ticker": "{ticker}", "price": {price}}}'
    return Record(KEYS[ticker], value.encode(), kind)


def _bad_stock(chance: random.Random, ticker: str, event_time: datetime) -> Record:
    good = {"event_time": event_time.isoformat(), "ticker": ticker, "price": 100.0}
    nameless = {name: good[name] for name in ("event_time", "price")}
    kind, value = chance.choice(
        [
            ("deserialization_error", json.dumps(good)[:-9].encode()),
            ("deserialization_error", b"\xff\xfe not text"),
            ("schema_error", json.dumps({**good, "price": "a lot"}).encode()),
            ("schema_error", json.dumps(nameless).encode()),
            ("validation_error", json.dumps({**good, "price": -1.0}).encode()),
            ("validation_error", json.dumps({**good, "ticker": "TOOLONG"}).encode()),
        ]
    )
    return Record(KEYS[ticker], value, kind)


GENERATORS = {"stocks": ("stocks-in", stock_records)}


def spread_clock(rows: int, end: datetime) -> Callable[[int], datetime]:
    """Event times spread evenly over one trading day that ends at `end`."""
    step = TRADING_DAY / max(rows, 1)
    begin = end - TRADING_DAY
    return lambda index: begin + step * index


def produce(
    settings: Settings,
    stream: str,
    rows: int,
    rate: float | None,
    seed: int,
    shares: Shares,
    report: Callable[[int], None],
) -> Counter[str]:
    """Send records to the stream's topic; returns how many of each kind were acknowledged.

    With a rate, event times are now. Without one, all goes out at once and the event times are
    spread over the trading day that ends now.
    """
    from confluent_kafka import Producer

    require_broker(settings)
    topic, generate = GENERATORS[stream]
    ensure_topic(settings, topic)
    producer = Producer(
        client_options(settings) | {"enable.idempotence": True, "linger.ms": 20, "acks": "all"}
    )
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    began = time.monotonic()
    clock = (lambda _: datetime.now(UTC)) if rate else spread_clock(rows, datetime.now(UTC))
    made: Counter[str] = Counter()
    for index, record in enumerate(generate(rows, seed, shares, clock)):
        if rate and (pause := began + index / rate - time.monotonic()) > 0:
            time.sleep(pause)
        while True:
            try:
                producer.produce(topic, record.value, record.key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        made[record.kind] += 1
        if index % REPORT_EVERY == 0:
            producer.poll(0)
            report(index + 1)
    left = producer.flush(60)
    report(rows)
    if failures or left:
        raise HeadwaterError(
            f"{len(failures) + left} of {rows} records did not reach {topic} at "
            f"{settings.bootstrap_servers}: {failures[0] if failures else 'no answer in 60 s'}",
            "check the broker's log, then produce again",
        )
    return made
