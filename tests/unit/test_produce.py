import json
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from statistics import mean
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from demo.generators import GENERATORS, TICKERS, ZONES, Record, Shares, spread_clock
from ingestion.stream import Stream
from ingestion.stream_file import load_streams
from tests.unit.decoding import decode_rows, types

END = datetime(2026, 1, 5, 21, 0, tzinfo=UTC)  # a Monday
KINDS = {"deserialization_error", "schema_error", "validation_error"}
TIME_COLUMNS = {
    "stocks": "event_time",
    "health": "end_time",
    "sensors": "measurement_time",
    "traffic": "measured_at",
}

each_stream = pytest.mark.parametrize("stream", GENERATORS)


def make(
    stream: str, rows: int = 5000, seed: int = 3, shares: Shares | None = None
) -> list[Record]:
    generator = GENERATORS[stream]
    clock = spread_clock(rows, END, generator.span)
    return list(generator.records(rows, seed, shares or Shares(), clock))


@cache
def declared(stream: str) -> Stream:
    return load_streams([stream])[0]


def decode(stream: str, records: list[Record]) -> list[dict[str, Any]]:
    keys = tuple(record.key for record in records)
    return decode_rows(declared(stream), *(record.value for record in records), keys=keys)


def rows_of(stream: str, rows: int = 5000) -> list[dict[str, Any]]:
    return decode(stream, make(stream, rows))


@each_stream
def test_the_same_seed_gives_the_same_records(stream: str) -> None:
    shares = Shares(bad=0.1, late=0.1, duplicates=0.1)
    assert make(stream, shares=shares) == make(stream, shares=shares)
    assert make(stream, shares=shares) != make(stream, seed=4, shares=shares)


@each_stream
def test_shares_come_out_as_asked(stream: str) -> None:
    made = Counter(record.kind for record in make(stream, 10_000, shares=Shares(0.1, 0.2, 0.3)))
    errors = sum(count for kind, count in made.items() if kind.endswith("_error"))
    assert abs(errors / 10_000 - 0.1) < 0.015
    assert abs(made["late"] / 10_000 - 0.2) < 0.015
    assert abs(made["duplicate"] / 10_000 - 0.3) < 0.015


@each_stream
def test_a_duplicate_repeats_an_earlier_record(stream: str) -> None:
    records = make(stream, shares=Shares(duplicates=0.2))
    seen = set()
    for record in records:
        assert ((record.key, record.value) in seen) == (record.kind == "duplicate")
        seen.add((record.key, record.value))


@each_stream
def test_topics_are_those_of_the_stream_files(stream: str) -> None:
    assert declared(stream).topics == [GENERATORS[stream].topic]


@each_stream
def test_good_and_late_records_have_all_columns_and_break_no_rule(stream: str) -> None:
    records = make(stream, 1000, shares=Shares(late=0.3))
    assert {record.kind for record in records} == {"good", "late"}
    assert set(types(decode(stream, records))) == {None}


@each_stream
def test_bad_records_break_what_their_kind_says(stream: str) -> None:
    records = make(stream, 500, shares=Shares(bad=1.0))
    extra = {"transformation_error"} if stream == "health" else set()
    assert {record.kind for record in records} == KINDS | extra
    assert types(decode(stream, records)) == [record.kind for record in records]


@each_stream
def test_every_rule_is_broken_alone_by_some_bad_record(stream: str) -> None:
    rows = decode(stream, make(stream, 500, shares=Shares(bad=1.0)))
    messages = [row["_error_message"] for row in rows if row["_error_type"] == "validation_error"]
    broken = {re.findall("rules not met: (.*);", message)[0] for message in messages}
    assert broken >= set(declared(stream).rules)


@each_stream
def test_event_times_fill_the_span_that_ends_now(stream: str) -> None:
    times = [row[TIME_COLUMNS[stream]] for row in rows_of(stream)]
    begin = END - GENERATORS[stream].span
    slack = timedelta(minutes=1)  # sensors take up to so long
    assert begin - slack <= min(times) <= begin + slack
    assert END - slack * 2 <= max(times) <= END
    assert stream == "sensors" or times == sorted(times)


@each_stream
def test_late_records_are_up_to_a_day_late(stream: str) -> None:
    records = make(stream, 1000, shares=Shares(late=0.5))
    clock = spread_clock(1000, END, GENERATORS[stream].span)
    delays: dict[str, list[timedelta]] = {"good": [], "late": []}
    for index, (record, row) in enumerate(zip(records, decode(stream, records), strict=True)):
        delays[record.kind].append(clock(index) - row[TIME_COLUMNS[stream]])
    assert max(delays["good"]) <= timedelta(minutes=1)
    assert max(delays["late"]) <= timedelta(hours=24, minutes=1)
    assert timedelta(hours=10) < sum(delays["late"], timedelta()) / len(delays["late"])


@pytest.mark.parametrize(
    ("stream", "identity", "number"),
    [("health", "sample_id", 5000), ("sensors", "sensor_id", 20), ("traffic", "segment_id", 12)],
)
def test_keys_are_the_identity_as_text(stream: str, identity: str, number: int) -> None:
    records = make(stream)
    assert len({record.key for record in records}) == number
    for record, row in zip(records, decode(stream, records), strict=True):
        assert record.key == row[identity].encode()


def test_stock_keys_are_json_for_seventeen_tickers() -> None:
    assert len(TICKERS) == 17
    assert {json.loads(record.key)["ticker"] for record in make("stocks")} == set(TICKERS)


def test_prices_change_in_small_steps() -> None:
    prices = [row["price"] for row in rows_of("stocks") if row["ticker"] == "AAPL"]
    steps = [abs(b / a - 1) for a, b in pairwise(prices)]
    assert max(steps) < 0.005
    assert len(set(prices)) > len(prices) / 4


def test_prices_of_another_run_fit_to_those_of_the_first() -> None:
    """As those of a second wave do, and those of late records."""
    prices: dict[str, list[float]] = defaultdict(list)
    for seed in (1, 2):
        for record in make("stocks", rows=5000, seed=seed)[-200:]:  # of a quarter of an hour
            row = json.loads(record.value or b"")
            prices[row["ticker"]].append(row["price"])
    assert all(max(found) / min(found) < 1.01 for found in prices.values())


def test_sensors_are_warmer_in_the_afternoon_and_a_little_out_of_order() -> None:
    rows = rows_of("sensors")
    times = [row["measurement_time"] for row in rows]
    assert timedelta() < max(a - b for a, b in pairwise(times)) <= timedelta(minutes=1)
    temperatures = defaultdict(list)
    for row in rows:
        temperatures[row["measurement_time"].hour].append(row["temperature"])
    assert mean(temperatures[16]) > mean(temperatures[4]) + 8
    by_sensor = defaultdict(list)
    for row in rows:
        by_sensor[row["sensor_id"]].append(row["temperature"])
    means = [mean(found) for found in by_sensor.values()]
    assert max(means) - min(means) > 5


def test_traffic_has_rush_hours_on_weekdays_and_slows_down_in_them() -> None:
    rows = rows_of("traffic", 20_000)
    by_hour = defaultdict(list)
    for row in rows:
        by_hour[row["measured_at"].hour].append(row)
    counts = {hour: mean(row["vehicle_count"] for row in found) for hour, found in by_hour.items()}
    assert counts[8] > 3 * counts[3]
    assert counts[17] > 3 * counts[3]
    assert counts[8] > 1.5 * counts[12] < counts[17]
    speeds = {
        hour: mean(row["average_speed"] for row in found if row["vehicle_count"])
        for hour, found in by_hour.items()
    }
    assert speeds[8] < 0.8 * speeds[3]
    assert {row["average_speed"] is None for row in rows if row["vehicle_count"] == 0} == {True}


def test_weekend_traffic_has_no_morning_rush() -> None:
    clock = spread_clock(5000, END - timedelta(days=1), timedelta(hours=24))
    by_hour = defaultdict(list)
    for record in GENERATORS["traffic"].records(5000, 3, Shares(), clock):
        value = json.loads(record.value)
        by_hour[datetime.fromisoformat(value["measured_at"]).hour].append(value["vehicle_count"])
    assert mean(by_hour[8]) < mean(by_hour[14])


def local_hour(row: dict[str, Any]) -> int:
    return row["end_time"].astimezone(ZoneInfo(row["metadata"]["timezone"])).hour


def test_health_samples_follow_the_local_day() -> None:
    rows = rows_of("health", 20_000)
    assert {row["metadata"]["timezone"] for row in rows} == set(ZONES)
    assert len({row["user_id"] for row in rows}) == 40
    sleep = [row for row in rows if row["data_type"] == "sleepMinutes"]
    assert sleep
    assert not [row for row in sleep if 8 <= local_hour(row) < 23]
    night, day = (
        {
            data_type: [
                row["value"]
                for row in rows
                if row["data_type"] == data_type and local_hour(row) in hours
            ]
            for data_type in ("heartRate", "stepCount")
        }
        for hours in (range(1, 6), range(10, 20))
    )
    assert mean(night["heartRate"]) < mean(day["heartRate"]) - 10
    assert max(day["heartRate"]) > 120
    assert mean(night["stepCount"]) < 3 < mean(day["stepCount"])


@pytest.mark.parametrize("rows", [5_000, 20_000])
def test_a_days_steps_and_sleep_are_plausible_for_any_number_of_rows(rows: int) -> None:
    sums: Counter[tuple[str, str]] = Counter()
    for row in rows_of("health", rows):
        sums[row["data_type"], row["user_id"]] += row["value"]
    steps = [total for (data_type, _), total in sums.items() if data_type == "stepCount"]
    sleep = [total for (data_type, _), total in sums.items() if data_type == "sleepMinutes"]
    assert 4_000 < mean(steps) < 20_000
    assert 200 < mean(sleep) < 540


def test_health_samples_end_at_the_clock_and_temperatures_have_two_units() -> None:
    rows = rows_of("health")
    clock = spread_clock(5000, END, GENERATORS["health"].span)
    for index, row in enumerate(rows):
        assert row["start_time"] <= row["end_time"] <= clock(index)
    found = defaultdict(list)
    for row in rows:
        if row["data_type"] == "bodyTemperature":
            found[row["unit"]].append(row["value"])
    assert set(found) == {"degC", "degF"}
    assert all(36.4 <= value <= 37.2 for value in found["degC"])
    assert all(36.4 <= (value - 32) / 1.8 <= 37.3 for value in found["degF"])
