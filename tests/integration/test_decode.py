"""Every record becomes one row, whatever its bytes are."""

import pytest
from pyspark.sql import Row, SparkSession

from ingestion.decode import KAFKA_SCHEMA, check_stream, decode
from ingestion.errors import StreamFileError
from ingestion.stream import Stream, load_streams

GOOD = '{"event_time": "2026-01-05T14:30:00.123456+00:00", "ticker": "AAPL", "price": 228.5}'


@pytest.fixture(scope="module")
def stocks() -> Stream:
    return load_streams(["stocks"])[0]


def decode_values(spark: SparkSession, stream: Stream, *values: bytes | None) -> list[Row]:
    rows = [("t", 0, offset, None, b"{}", value, None) for offset, value in enumerate(values)]
    decoded = decode(spark.createDataFrame(rows, KAFKA_SCHEMA), stream)
    return sorted(decoded.collect(), key=lambda row: row["_kafka_offset"])


def test_a_good_record_has_its_columns_and_no_error(spark: SparkSession, stocks: Stream) -> None:
    (row,) = decode_values(spark, stocks, GOOD.encode())
    assert (row.ticker, float(row.price), row["_error_type"]) == ("AAPL", 228.5, None)
    assert row.event_time.microsecond == 123456
    assert bytes(row["_kafka_value"]) == GOOD.encode()


def test_a_null_value_is_a_tombstone_and_no_error(spark: SparkSession, stocks: Stream) -> None:
    (row,) = decode_values(spark, stocks, None)
    assert (row["_kafka_value"], row["_error_type"], row.ticker) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "error_type", "message"),
    [
        (b"", "deserialization_error", "not valid JSON"),
        (b"not json", "deserialization_error", "not valid JSON"),
        (b'{"ticker": "AAPL", "price"', "deserialization_error", "not valid JSON"),
        (b"\xff\xfe", "deserialization_error", "not valid UTF-8"),
        (GOOD.replace("AAPL", "A\udcff").encode("utf-8", "surrogateescape"),
         "deserialization_error", "not valid UTF-8"),
        (b"{'ticker': 'AAPL'}", "deserialization_error", "not valid JSON"),
        (b"[" * 5000, "deserialization_error", "not valid JSON"),
        (f"[{GOOD}]".encode(), "schema_error", "value: not a JSON object"),
        (b"5", "schema_error", "value: not a JSON object"),
        (b"null", "schema_error", "value: not a JSON object"),
        (GOOD.replace("228.5", '"a lot"').encode(), "schema_error", "price (string, not decimal"),
        (GOOD.replace("228.5", "1e300").encode(), "schema_error", "price (number, not"),
        (GOOD.replace("228.5", "1e999999999").encode(), "schema_error", "price (number, not"),
        (GOOD.replace("228.5", '"1e999999999"').encode(), "schema_error", "price (string, not"),
        (GOOD.replace('"AAPL"', "5").encode(), "schema_error", "ticker (number, not string)"),
        (GOOD.replace('"AAPL"', '{"a": 1}').encode(), "schema_error", "ticker (object, not"),
        (GOOD.replace("228.5", "null").encode(), "schema_error", "missing: price"),
        (GOOD.replace("ticker", "tiker").encode(), "schema_error", "missing: ticker"),
        (GOOD.replace("2026", "soon").encode(), "schema_error", "event_time (string, not"),
        (GOOD.replace("228.5", "0").encode(), "validation_error", "not met: price_is_positive"),
        (GOOD.replace("AAPL", "TOOLONG").encode(), "validation_error", "TOOLONG"),
        (GOOD.replace("AAPL", "").encode(), "validation_error", "ticker_has_1_to_5_characters"),
    ],
)  # fmt: skip
def test_a_bad_record_is_a_row_with_its_bytes_and_the_reason(
    spark: SparkSession, stocks: Stream, value: bytes, error_type: str, message: str
) -> None:
    (row,) = decode_values(spark, stocks, value)
    assert row["_error_type"] == error_type
    assert message in row["_error_message"]
    assert bytes(row["_kafka_value"]) == value


def test_text_behind_the_record_is_an_error(spark: SparkSession, stocks: Stream) -> None:
    for behind in (" trailing", GOOD, "}", ',"end":0} {'):
        (row,) = decode_values(spark, stocks, (GOOD + behind).encode())
        assert row["_error_type"] == "deserialization_error", behind


def test_all_broken_rules_are_named_with_the_values(spark: SparkSession, stocks: Stream) -> None:
    value = GOOD.replace("228.5", "-3").replace("AAPL", "TOOLONG").encode()
    (row,) = decode_values(spark, stocks, value)
    for part in ("price_is_positive", "ticker_has_1_to_5_characters", "-3.0", "TOOLONG"):
        assert part in row["_error_message"]


def test_a_rule_that_gives_null_fails(spark: SparkSession, stocks: Stream) -> None:
    rules = {"half_is_small": "cast(ticker as int) < 5"}  # a bad cast is null, not a dead batch
    (row,) = decode_values(spark, stocks.model_copy(update={"rules": rules}), GOOD.encode())
    assert row["_error_type"] == "validation_error"


def test_an_optional_column_may_be_missing(spark: SparkSession, stocks: Stream) -> None:
    price = stocks.columns["price"].model_copy(update={"optional": True})
    lenient = stocks.model_copy(update={"columns": {**stocks.columns, "price": price}, "rules": {}})
    (row,) = decode_values(spark, lenient, GOOD.replace("price", "prize").encode())
    assert row["_error_type"] is None


def test_a_declared_column_may_be_named_like_a_kafka_column(
    spark: SparkSession, stocks: Stream
) -> None:
    columns = {"value": stocks.columns["price"], "offset": stocks.columns["ticker"]}
    stream = stocks.model_copy(update={"columns": columns, "rules": {"small": "value < 5"}})
    (row,) = decode_values(spark, stream, b'{"value": 9, "offset": "x"}')
    assert row["_error_type"] == "validation_error"
    assert (float(row.value), row.offset) == (9.0, "x")


@pytest.mark.parametrize("rule", ["prize > 0", "price >", "length(ticker)"])
def test_a_rule_that_spark_cannot_read_is_refused_by_name(
    spark: SparkSession, stocks: Stream, rule: str
) -> None:
    broken = stocks.model_copy(update={"rules": {"odd": rule}})
    with pytest.raises(StreamFileError) as caught:
        check_stream(spark, broken)
    assert f"the rule odd does not work: {rule}" in caught.value.message
