"""Made-up records for the streams: good, late, duplicate and bad ones.

Each domain says what a good and what a bad record at some time looks like. Which records are late,
bad or sent again is decided in one place for all of them.
"""

import json
import math
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import fastavro

import ingestion
from ingestion.errors import DESERIALIZATION, SCHEMA, TRANSFORMATION, VALIDATION

MOST_LATE = timedelta(hours=24)
REMEMBERED = 1000  # a duplicate repeats one of the last so many records


@dataclass(frozen=True)
class Shares:
    """Which shares of the records are bad, late or sent again."""

    bad: float = 0.0
    late: float = 0.0
    duplicates: float = 0.0


class Record(NamedTuple):
    key: bytes | None
    value: bytes
    kind: str  # good, late, duplicate, or the error type that bronze must give it
    timestamp: int = 0  # that Kafka keeps, in milliseconds; 0 for the time of sending


Message = tuple[bytes, bytes]  # key and value


class Maker(NamedTuple):
    """What one run of a domain can make: a good and a bad record at a time."""

    good: Callable[[datetime], Message]
    bad: Callable[[datetime], Record]


@dataclass(frozen=True)
class Generator:
    """Makes the records of one topic."""

    topic: str
    span: timedelta  # how far back the event times of a run at full speed reach
    maker: Callable[[random.Random], Maker]

    def records(
        self, rows: int, seed: int, shares: Shares, clock: Callable[[int], datetime]
    ) -> Iterator[Record]:
        """So many records. The same seed and clock give the same ones."""
        chance = random.Random(seed)
        good, bad = self.maker(chance)
        recent: deque[Record] = deque(maxlen=REMEMBERED)
        for index in range(rows):
            draw = chance.random()
            if draw < shares.duplicates and recent:
                again = chance.choice(recent)
                yield Record(again.key, again.value, "duplicate")
                continue
            event_time = clock(index)
            if draw >= 1 - shares.bad:
                yield bad(event_time)
                continue
            late = shares.duplicates <= draw < shares.duplicates + shares.late
            if late:
                event_time -= MOST_LATE * chance.random()
            record = Record(*good(event_time), "late" if late else "good")
            recent.append(record)
            yield record


def spread_clock(rows: int, end: datetime, span: timedelta) -> Callable[[int], datetime]:
    """Event times spread evenly over the span that ends at `end`."""
    step = span / max(rows, 1)
    begin = end - span
    return lambda index: begin + step * index


# Bad records are good ones with one fault.

Spoil = Callable[[bytes], bytes]
Fault = tuple[str, Spoil]  # the error type that the spoiled value gets


def _spoiled(chance: random.Random, faults: Sequence[Fault], message: Message) -> Record:
    key, value = message
    kind, spoil = chance.choice(faults)
    return Record(key, spoil(value), kind)


def _json_with(**changes: object) -> Spoil:
    return lambda value: json.dumps(json.loads(value) | changes).encode()


def _json_without(name: str) -> Spoil:
    def spoil(value: bytes) -> bytes:
        fields = json.loads(value)
        del fields[name]
        return json.dumps(fields).encode()

    return spoil


BROKEN_JSON: list[Fault] = [
    (DESERIALIZATION, lambda value: value[:-9]),
    (DESERIALIZATION, lambda _: b"\xff\xfe not text"),
]

# In the domains, values are f-strings: json.dumps would take most of the time of a large run.

# Stocks: prices that swing with time, so that late records and later waves fit to the earlier ones.

# Ticker and the price that it swings about.
TICKERS = {
    "AAPL": 228.0, "ACN": 352.0, "ADBE": 497.0, "AMD": 138.0, "AVGO": 171.0, "CRM": 324.0,
    "CSCO": 57.0, "IBM": 207.0, "INTC": 24.0, "MA": 521.0, "MSFT": 415.0, "NVDA": 142.0,
    "ORCL": 184.0, "PYPL": 85.0, "QCOM": 161.0, "TXN": 201.0, "V": 308.0,
}  # fmt: skip
TICKER_KEYS = {ticker: json.dumps({"ticker": ticker}).encode() for ticker in TICKERS}
SWINGS = {270_000: 0.03, 17_000: 0.01, 2_900: 0.002}  # seconds, and share of the price
STEP = 0.0004  # standard deviation from one quote to the next, as a share of the price
STOCK_FAULTS: list[Fault] = [
    *BROKEN_JSON,
    (SCHEMA, _json_with(price="a lot")),
    (SCHEMA, _json_without("ticker")),
    (VALIDATION, _json_with(price=-1.0)),
    (VALIDATION, _json_with(ticker="TOOLONG")),
]


def _stocks(chance: random.Random) -> Maker:
    tickers = list(TICKERS)

    def good(event_time: datetime) -> Message:
        ticker = chance.choice(tickers)
        price = TICKERS[ticker]
        swing = _swing(price, event_time.timestamp())
        return _quote(ticker, event_time, price * (1 + swing + chance.gauss(0, STEP)))

    def bad(event_time: datetime) -> Record:
        quote = _quote(chance.choice(tickers), event_time, 100.0)
        return _spoiled(chance, STOCK_FAULTS, quote)

    return Maker(good, bad)


def _swing(price: float, seconds: float) -> float:
    """How far a share is from its usual price, by which it is told from others."""
    return sum(
        share * math.sin(math.tau * seconds / period + price) for period, share in SWINGS.items()
    )


def _quote(ticker: str, event_time: datetime, price: float) -> Message:
    cents = f"{price:.2f}".removesuffix("0")  # 57.1 and 57.0, as JSON writers do, but faster
    value = f'{{"event_time": "{event_time.isoformat()}", "ticker": "{ticker}", "price": {cents}}}'
    return TICKER_KEYS[ticker], value.encode()


# Sensors: a daily curve of the temperature, with an offset for each place.

COLDEST_HOUR = 4
SENSORS = [(f"s-{number:02}", (number * 7 % 20 - 9.5) / 2) for number in range(1, 21)]
MOST_JITTER = 60.0  # seconds that a reading takes on its way, at most
SENSOR_FAULTS: list[Fault] = [
    *BROKEN_JSON,
    (SCHEMA, _json_with(temperature="warm")),
    (SCHEMA, _json_with(temperature=None)),
    (SCHEMA, _json_without("measurement_time")),
    (VALIDATION, _json_with(temperature=-127.0)),  # what a sensor with a cut wire reads
    (VALIDATION, _json_with(temperature=999.9)),
]


def _sensors(chance: random.Random) -> Maker:
    def good(event_time: datetime) -> Message:
        sensor, offset = chance.choice(SENSORS)
        measured = event_time - timedelta(seconds=MOST_JITTER * chance.random())
        hour = measured.hour + measured.minute / 60
        curve = 14 - 6 * math.cos((hour - COLDEST_HOUR) * math.pi / 12)
        temperature = curve + offset + chance.gauss(0, 0.3)
        value = (
            f'{{"sensor_id": "{sensor}", "temperature": {temperature:.2f}, '
            f'"measurement_time": "{measured.isoformat()}"}}'
        )
        return sensor.encode(), value.encode()

    return Maker(good, lambda event_time: _spoiled(chance, SENSOR_FAULTS, good(event_time)))


# Traffic: roads with two rush hours, where the time of day is UTC.


class Lane(NamedTuple):
    segment: str
    number: int
    capacity: int  # vehicles a minute
    free_speed: float  # km/h on an empty road


SATURDAY = 5
SEGMENTS = [
    *(f"A10-{number:02}" for number in range(1, 6)),
    *(f"A100-{number:02}" for number in range(1, 5)),
    *(f"B96-{number:02}" for number in range(1, 4)),
]
LANES = [
    Lane(segment, number, capacity=26 + 3 * number, free_speed=75.0 + 15 * number)
    for index, segment in enumerate(SEGMENTS)
    for number in range(1, 3 + index % 2)
]
TRAFFIC_FAULTS: list[Fault] = [
    *BROKEN_JSON,
    (SCHEMA, _json_with(vehicle_count="many")),
    (SCHEMA, _json_with(lane=None)),
    (SCHEMA, _json_without("measured_at")),
    (VALIDATION, _json_with(vehicle_count=-1, average_speed=80.0)),
    (VALIDATION, _json_with(vehicle_count=12, average_speed=None)),
    (VALIDATION, _json_with(vehicle_count=12, average_speed=655.35)),
    (VALIDATION, _json_with(lane=0)),
]


def _traffic(chance: random.Random) -> Maker:
    turns = cycle(LANES)  # each lane is counted as often as any other

    def good(event_time: datetime) -> Message:
        lane = next(turns)
        minute = event_time.hour * 60 + event_time.minute
        mean = lane.capacity * _load(event_time.weekday() >= SATURDAY, minute)
        count = max(0, round(chance.gauss(mean, math.sqrt(mean))))
        speed = f"{_speed(lane, count) + chance.gauss(0, 2):.1f}" if count else "null"
        value = (
            f'{{"segment_id": "{lane.segment}", "measured_at": "{event_time.isoformat()}", '
            f'"vehicle_count": {count}, "average_speed": {speed}, "lane": {lane.number}}}'
        )
        return lane.segment.encode(), value.encode()

    return Maker(good, lambda event_time: _spoiled(chance, TRAFFIC_FAULTS, good(event_time)))


@cache
def _load(weekend: bool, minute: int) -> float:
    """Share of a lane's capacity that is in use in this minute of the day."""
    hour = minute / 60
    if weekend:
        return 0.03 + 0.4 * _peak(hour, 14, 4)
    rush_hours = 0.7 * _peak(hour, 8, 1.2) + 0.7 * _peak(hour, 17, 1.5)
    return 0.02 + rush_hours + 0.35 * _peak(hour, 12.5, 3.5)


def _peak(hour: float, top: float, width: float) -> float:
    return math.exp(-(((hour - top) / width) ** 2) / 2)


def _speed(lane: Lane, count: int) -> float:
    """Free flow up to about half of the capacity, then slower and slower."""
    return lane.free_speed * (1 - 0.7 * min(1.0, count / lane.capacity) ** 3)


# Health: samples of people in several time zones, at rest and on the move.


class Device(NamedTuple):
    name: str
    app: str | None
    metadata: dict[str, str]


class User(NamedTuple):
    name: str
    utc_offset: float  # hours
    resting_rate: int
    temperature_unit: str
    devices: list[Device]


# Hours from UTC in winter. Without daylight saving time no time zone database is needed.
ZONES = {
    "America/Los_Angeles": -8.0, "America/New_York": -5.0, "America/Sao_Paulo": -3.0,
    "Europe/London": 0.0, "Europe/Berlin": 1.0, "Asia/Kolkata": 5.5, "Asia/Tokyo": 9.0,
    "Australia/Brisbane": 10.0,
}  # fmt: skip
FAHRENHEIT_ZONES = {"America/Los_Angeles", "America/New_York"}
MODELS = [
    ("watch", "Watch 7", "Pulse Diary"),
    ("band", "Band Lite", "Stride"),
    ("ring", "Ring 2", "Pulse Diary"),
    ("clip", "Clip One", None),
]
BEDTIME, WAKING = 23, 7
MINUTE = 60_000  # milliseconds, as in the samples
HOUR = 60 * MINUTE
# A sample's type is drawn from these, so a type that stands twice is twice as likely.
AWAKE = ["heartRate"] * 10 + ["stepCount"] * 7 + ["bodyTemperature", "oxygenSaturation"]
ASLEEP = ["heartRate"] * 8 + ["sleepMinutes"] * 5 + ["stepCount"] * 3 + ["oxygenSaturation"] * 2


def _user(number: int) -> User:
    zone = list(ZONES)[number % len(ZONES)]
    devices = [
        Device(f"{prefix}-{number:03}", app, {"timezone": zone, "model": model})
        for prefix, model, app in (MODELS[number % 4], MODELS[(number + 1) % 4])[: 1 + number % 3]
    ]
    unit = "degF" if zone in FAHRENHEIT_ZONES else "degC"
    return User(f"user-{number:03}", ZONES[zone], 54 + number * 7 % 13, unit, devices)


USERS = [_user(number) for number in range(1, 41)]


def _health(chance: random.Random) -> Maker:
    latest: dict[tuple[str, str], int] = {}

    def since_last(user: User, data_type: str, end: int) -> int:
        """Where the sample before ended, so that a day's sum is plausible for any number of rows.

        A late sample does not know the one before it and covers a minute.
        """
        before = latest.get((user.name, data_type), 0)
        if before > end:
            return end - MINUTE
        latest[user.name, data_type] = end
        return max(before, end - HOUR)

    def good(event_time: datetime) -> Message:
        user = chance.choice(USERS)
        device = chance.choice(user.devices)
        end = int(event_time.timestamp() * 1000)
        asleep = not WAKING <= (end / HOUR + user.utc_offset) % 24 < BEDTIME
        data_type = chance.choice(ASLEEP if asleep else AWAKE)
        if data_type in ("stepCount", "sleepMinutes"):
            start = since_last(user, data_type, end)
        else:
            start = end - chance.randrange(5_000, 30_000)
        value, unit = _measure(chance, user, data_type, asleep, (end - start) / MINUTE)
        sample_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        sample = {
            "sample_id": sample_id,
            "user_id": user.name,
            "device_id": device.name,
            "data_type": data_type,
            "value": value,
            "unit": unit,
            "start_time": start,
            "end_time": end,
            "source_app": device.app,
            "metadata": device.metadata,
        }
        return sample_id.encode(), _to_avro(sample)

    return Maker(good, lambda event_time: _spoiled(chance, HEALTH_FAULTS, good(event_time)))


def _measure(
    chance: random.Random, user: User, data_type: str, asleep: bool, minutes: float
) -> tuple[float, str]:
    """A value and its unit."""
    match data_type:
        case "heartRate":
            return float(round(_heart_rate(chance, user, asleep))), "count/min"
        case "stepCount":
            # Adding a part of a step before rounding down keeps the mean of short samples right.
            return float(int(_steps_a_minute(chance, asleep) * minutes + chance.random())), "count"
        case "sleepMinutes":
            return round(minutes * chance.uniform(0.85, 1.0), 2), "min"
        case "oxygenSaturation":
            return float(chance.randint(94, 99)), "%"
        case _:
            celsius = min(max(chance.gauss(36.8, 0.15), 36.4), 37.2)
            if user.temperature_unit == "degF":
                return round(celsius * 1.8 + 32, 1), "degF"
            return round(celsius, 1), "degC"


def _heart_rate(chance: random.Random, user: User, asleep: bool) -> float:
    if asleep:
        return chance.gauss(user.resting_rate - 4, 2)
    if chance.random() < 0.05:
        return chance.uniform(110, 165)  # exercise
    return chance.gauss(user.resting_rate + 14, 5)


def _steps_a_minute(chance: random.Random, asleep: bool) -> float:
    if asleep:
        return 0.02
    return chance.uniform(70, 110) if chance.random() < 0.08 else chance.uniform(0, 5)


@cache
def _health_schema() -> Any:
    file = Path(ingestion.__file__).parent / "schemas" / "health.avsc"
    return fastavro.parse_schema(json.loads(file.read_text()))


def _to_avro(sample: dict[str, Any]) -> bytes:
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, _health_schema(), sample)
    return buffer.getvalue()


def _from_avro(value: bytes) -> dict[str, Any]:
    sample: Any = fastavro.schemaless_reader(BytesIO(value), _health_schema(), None)
    return dict(sample)


def _avro_with(**changes: object) -> Spoil:
    return lambda value: _to_avro(_from_avro(value) | changes)


def _end_before_start(value: bytes) -> bytes:
    sample = _from_avro(value)
    return _to_avro(sample | {"end_time": sample["start_time"] - timedelta(minutes=1)})


HEALTH_FAULTS: list[Fault] = [
    (DESERIALIZATION, lambda value: value[:-4]),  # ends within the last text of the metadata
    (DESERIALIZATION, lambda value: value + b"\x07\x07\x07"),
    (SCHEMA, _avro_with(unit=None)),
    (TRANSFORMATION, _end_before_start),
    (VALIDATION, _avro_with(data_type="bloodGlucose", value=5.4, unit="mmol/L")),
    (VALIDATION, _avro_with(data_type="heartRate", value=0.0, unit="count/min")),
    (VALIDATION, _avro_with(data_type="stepCount", value=-1.0, unit="count")),
    (VALIDATION, _avro_with(data_type="bodyTemperature", value=98.6, unit="degC")),
    (VALIDATION, _avro_with(data_type="oxygenSaturation", value=0.97, unit="%")),
    (VALIDATION, _avro_with(data_type="sleepMinutes", value=28_800.0, unit="min")),
]


DAY = timedelta(hours=24)
TRADING_DAY = timedelta(hours=6, minutes=30)
GENERATORS: dict[str, Generator] = {
    "stocks": Generator("stocks-in", TRADING_DAY, _stocks),
    "health": Generator("health-data-raw", DAY, _health),
    "sensors": Generator("sensor-readings", DAY, _sensors),
    "traffic": Generator("traffic-counts", DAY, _traffic),
}
