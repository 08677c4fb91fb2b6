"""Every record becomes one row, whatever its bytes are."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingestion.decode import Records, StreamDecoder
from ingestion.formats.types import UTC_MICROSECONDS
from ingestion.stream import Stream
from ingestion.stream_file import load_streams
from tests.unit.decoding import STAMP, column, decode_block, decode_rows, make_stream, types

Make = Callable[..., Stream]

GOOD = '{"event_time": "2026-01-05T14:30:00.123456+00:00", "ticker": "AAPL", "price": 228.5}'


@pytest.fixture
def stocks() -> Stream:
    return load_streams(["stocks"])[0]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda columns, **more: make_stream(tmp_path, columns, **more)


def test_a_good_record_has_its_columns_and_no_error(stocks: Stream) -> None:
    (row,) = decode_rows(stocks, GOOD.encode())
    assert (row["ticker"], float(row["price"]), row["_error_type"]) == ("AAPL", 228.5, None)
    assert row["event_time"].microsecond == 123456
    assert row["_kafka_value"] == GOOD.encode()
    assert (row["_ingested_at"], row["_resolved_at"]) == (STAMP, None)


def test_a_null_value_is_a_tombstone_and_no_error(stocks: Stream) -> None:
    (row,) = decode_rows(stocks, None)
    assert (row["_kafka_value"], row["_error_type"], row["ticker"]) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "error_type", "message"),
    [
        (b"", "deserialization_error", "value: not valid JSON"),
        (b'{"ticker": "AAPL", "price"', "deserialization_error", "value: not valid JSON"),
        (b"\xff\xfe", "deserialization_error", "value: not valid UTF-8"),
        (f"[{GOOD}]".encode(), "schema_error", "value: not a JSON object"),
        (GOOD.replace("228.5", '"a lot"').encode(), "schema_error",
         "of another type: price (string, not decimal(18,6))"),
        (GOOD.replace("228.5", "1e300").encode(), "schema_error",
         "of another type: price (number, not decimal(18,6))"),
        (GOOD.replace("228.5", "null").encode(), "schema_error", "missing: price"),
        (GOOD.replace("ticker", "tiker").replace("2026", "soon").encode(), "schema_error",
         "missing: ticker; of another type: event_time (string, not timestamp)"),
        (GOOD.replace("2026", "9999").encode(), "schema_error", "of another type: event_time "
         "(9999-01-05, not between 1900-01-01 and 2200-12-31)"),
        (GOOD.replace("228.5", "0").encode(), "validation_error",
         'rules not met: price_is_positive; values: {"event_time":"2026-01-05T14:30:00.123456Z",'
         '"ticker":"AAPL","price":0.000000}'),
        (GOOD.replace("228.5", "-3").replace("AAPL", "TOOLONG").encode(), "validation_error",
         "rules not met: price_is_positive, ticker_has_1_to_5_characters; values: "
         '{"event_time":"2026-01-05T14:30:00.123456Z","ticker":"TOOLONG","price":-3.000000}'),
    ],
)  # fmt: skip
def test_a_bad_record_is_a_row_with_its_bytes_and_the_reason(
    stocks: Stream, value: bytes, error_type: str, message: str
) -> None:
    block = decode_block(stocks, GOOD.encode(), value, GOOD.encode())
    rows = block.rows.to_pylist()
    assert types(rows) == [None, error_type, None]
    assert rows[1]["_error_message"] == message
    assert rows[1]["_kafka_value"] == value
    assert block.errors == {error_type: 1}


def test_a_failed_record_keeps_the_columns_that_could_be_decoded(stocks: Stream) -> None:
    (row,) = decode_rows(stocks, GOOD.replace("228.5", '"a lot"').encode())
    assert (row["ticker"], row["price"]) == ("AAPL", None)


def test_an_optional_column_may_be_missing_but_not_of_another_type(make: Make) -> None:
    stream = make(column("a", "int", "optional: true"))
    rows = decode_rows(stream, b"{}", b'{"a": null}', b'{"a": "x"}', b"[]")
    assert types(rows) == [None, None, "schema_error", "schema_error"]


def test_a_declared_column_may_be_named_like_a_kafka_column(stocks: Stream) -> None:
    columns = {"value": stocks.columns["price"], "offset": stocks.columns["ticker"]}
    stream = stocks.model_copy(update={"columns": columns, "rules": {"small": "value < 5"}})
    (row,) = decode_rows(stream, b'{"value": 9, "offset": "x"}')
    assert row["_error_type"] == "validation_error"
    assert (float(row["value"]), row["offset"]) == (9.0, "x")


def test_a_tombstone_has_its_identity_in_the_key(make: Make) -> None:
    stream = make(
        column("id", "string", "from: [value.id, key.id]") + column("n", "int"),
        more="key: {format: json}",
    )
    rows = decode_rows(
        stream,
        None,
        b'{"id": "v", "n": 1}',
        b'{"n": 1}',
        b'{"id": 5, "n": 1}',
        b'{"id": "v", "n": 1}',
        b"{",
        b'{"id": "v", "n": 1}',
        keys=(*[b'{"id": "k"}'] * 4, b"{", b"[", b'{"id": 5}'),
    )
    assert [row["id"] for row in rows[:3]] == ["k", "v", "k"]
    assert types(rows[:3]) == [None] * 3
    wrong = "of another type: id (number, not string)"
    assert [row["_error_message"] for row in rows[3:]] == [
        *(wrong, "key: not valid JSON", "key: not valid JSON", wrong)
    ]


def test_text_is_one_column_in_its_type(make: Make) -> None:
    stream = make(column("n", "int"), value="format: text")
    rows = decode_rows(stream, b"12", b"twelve", b"\xff", None)
    assert (rows[0]["n"], rows[1]["_error_message"]) == (12, "of another type: n (text, not int)")
    assert types(rows) == [None, "schema_error", "deserialization_error", None]


def test_headers_are_kept_on_request(make: Make) -> None:
    (row,) = decode_rows(make(column("a", "int"), more="headers: true"), b'{"a": 1}')
    assert row["_kafka_headers"] == [{"key": "h", "value": b"1"}]
    (row,) = decode_rows(make(column("a", "int")), b'{"a": 1}')
    assert "_kafka_headers" not in row


def test_fields_that_are_not_declared_are_reported(make: Make) -> None:
    stream = make(column("a", "int", "from: [value.a, key.a]"), more="key: {format: json}")
    block = decode_block(stream, b'{"a": 1, "b": 2}', b"[]", None, keys=(b'{"c": 1}',) * 3)
    assert block.undeclared == {"b"}


# --- times ----------------------------------------------------------------------------------------


def test_milliseconds_taken_for_seconds_are_a_schema_error(make: Make) -> None:
    """Such a record landed as the year 57983, and silver failed from then on."""
    stream = make(column("t", "timestamp", "epoch: seconds"))
    numbers = ("1767623400", "1767623400000", "9999999999999", "-9999999999999.5")
    rows = decode_rows(stream, *(f'{{"t": {number}}}'.encode() for number in numbers))
    assert types(rows) == [None] + ["schema_error"] * 3
    assert [row["t"] for row in rows[1:]] == [None] * 3
    assert rows[1]["_error_message"] == (
        "of another type: t (year 57983, not between 1900-01-01 and 2200-12-31)"
    )


@pytest.mark.parametrize(
    ("more", "good", "bad"),
    [
        ("", ["1900-01-01", "2200-12-31"], ["1899-12-31", "2201-01-01", "9999-12-31"]),
        (
            "between: [2020-05-01, 2020-05-02]",
            ["2020-05-01", "2020-05-02"],
            ["2020-04-30", "2020-05-03"],
        ),
        ("between: [0001-01-01, 9999-12-31]", ["0001-01-01", "9999-12-31"], []),
    ],
)
@pytest.mark.parametrize(("kind", "time"), [("date", ""), ("timestamp", "T23:59:59.999999Z")])
def test_times_have_bounds(
    make: Make, kind: str, time: str, more: str, good: list[str], bad: list[str]
) -> None:
    rows = decode_rows(
        make(column("t", kind, more)), *(f'{{"t": "{day}{time}"}}'.encode() for day in good + bad)
    )
    assert types(rows) == [None] * len(good) + ["schema_error"] * len(bad)
    assert all(row["t"] is None for row in rows[len(good) :])


def test_times_in_arrays_and_maps_have_bounds(make: Make) -> None:
    stream = make(column("a", "array<timestamp>") + column("m", "map<string,date>"))
    rows = decode_rows(
        stream,
        b'{"a": [], "m": {"x": "2026-01-31"}}',
        b'{"a": ["2026-01-31", "9999-01-31"], "m": {}}',
        b'{"a": ["2026-01-31", null], "m": {"x": null, "y": "1899-12-31"}}',
        b'{"a": "x", "m": {}}',
    )
    assert types(rows) == [None] + ["schema_error"] * 3
    assert [row["a"] is None for row in rows] == [False, True, False, True]
    assert [row["m"] is None for row in rows] == [False, False, True, False]
    assert "a (9999-01-31, not between" in rows[1]["_error_message"]
    assert "m (1899-12-31, not between" in rows[2]["_error_message"]


def test_nested_derived_columns_are_null_in_failed_rows(make: Make) -> None:
    stream = make(
        column("n", "int")
        + column("a", "array<int>", "expression: '[n]'")
        + column("m", "map<string,int>", "expression: \"map {'n': n}\"")
    )
    rows = decode_rows(stream, b'{"n": 1}', b'{"n": "x"}')
    assert [(row["a"], row["m"]) for row in rows] == [([1], {"n": 1}), (None, None)]


def test_a_derived_time_has_bounds_too(make: Make) -> None:
    stream = make(
        column("ms", "bigint")
        + column("t", "timestamp", "expression: make_timestamp(ms * 1000)")
        + column("d", "date", "expression: cast(t as date), optional: true")
    )
    rows = decode_rows(stream, b'{"ms": 1767623400000}', b'{"ms": 1767623400000000}')
    assert rows[0]["t"] == datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
    assert rows[0]["d"] == date(2026, 1, 5)
    assert types(rows) == [None, "transformation_error"]
    assert (rows[1]["t"], rows[1]["d"]) == (None, None)


# --- where records come from ----------------------------------------------------------------------


class Message:
    """What the Kafka client hands over."""

    def __init__(self, topic: str, partition: int, offset: int, milliseconds: int) -> None:
        self._place = (topic, partition, offset, milliseconds)

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._place[2]

    def timestamp(self) -> tuple[int, int]:
        return 1, self._place[3]

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return b'{"a": 1}'

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("h", b"1"), ("h", None)] if self.offset() else None


def decode_messages(stream: Stream, *messages: Any) -> list[dict[str, Any]]:
    records = Records.of(messages, stream.headers)
    rows: list[dict[str, Any]] = StreamDecoder(stream).decode(records, STAMP).rows.to_pylist()
    return rows


def test_messages_keep_their_coordinates(make: Make) -> None:
    stream = make(column("a", "int"), more="headers: true")
    places = [("made", 0, 0, 1_767_623_400_001), ("made", 1, 7, 5), ("other", 0, 9, -1)]
    rows = decode_messages(stream, *(Message(*place) for place in places))
    assert [
        tuple(row[f"_kafka_{name}"] for name in ("topic", "partition", "offset")) for row in rows
    ] == [place[:3] for place in places]
    assert rows[0]["_kafka_timestamp"] == datetime(2026, 1, 5, 14, 30, 0, 1000, tzinfo=UTC)
    assert rows[0]["_kafka_headers"] is None
    assert rows[1]["_kafka_headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


@pytest.mark.parametrize("offsets", [[5], [5, 6, 7], [5, 7, 8]])  # transactions leave gaps
def test_offsets_of_a_partition_are_kept(make: Make, offsets: list[int]) -> None:
    messages = [Message("made", 0, offset, 5) for offset in offsets]
    rows = decode_messages(make(column("a", "int")), *messages)
    assert [row["_kafka_offset"] for row in rows] == offsets


def test_a_producer_may_send_any_timestamp(make: Make) -> None:
    (row,) = decode_messages(make(column("a", "int")), Message("made", 0, 0, 2**62))
    assert (row["_kafka_timestamp"], row["a"], row["_error_type"]) == (None, 1, None)


def test_rows_that_have_landed_decode_as_before(make: Make) -> None:
    stream = make(column("a", "int"))
    landed = decode_block(stream, b'{"a": 1}', b"{", None).rows
    again = StreamDecoder(stream).decode(Records.from_rows(landed, headers=False), STAMP).rows
    assert again.equals(landed)
    with_headers = make(column("a", "int"), more="headers: true")
    records = Records.from_rows(landed, headers=True)
    rows = StreamDecoder(with_headers).decode(records, STAMP).rows
    assert rows["_kafka_headers"].null_count == 3


def test_the_rows_of_every_stream_have_the_declared_types(make: Make) -> None:
    """Also where nothing decodes: the types of a block do not depend on its values."""
    kinds = ["string", "int", "decimal(5,2)", "timestamp", "map<string,date>", "array<double>"]
    stream = make("".join(column(f"c{number}", kind) for number, kind in enumerate(kinds)))
    empty, bad = decode_block(stream, None).rows.schema, decode_block(stream, b"{").rows.schema
    assert empty.equals(bad)
    assert bad.field("c3").type == UTC_MICROSECONDS
    assert bad.field("c4").type == pa.map_(pa.string(), pa.date32())
