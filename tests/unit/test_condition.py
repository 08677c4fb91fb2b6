"""A condition says whose rows are meant, in files and in the bytes of failed records."""

from typing import Any

import pyarrow as pa
import pytest

from headwater.rows.condition import Condition, fulfils, judge, read_condition
from ingestion.errors import ConditionError
from ingestion.stream_file import load_streams
from ingestion.table import _schema

(HEALTH,) = load_streams(["health"])
SCHEMA = _schema(HEALTH)


def condition(text: str) -> Condition:
    return read_condition(text, HEALTH, SCHEMA)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", "names no column"),
        ("1 = 1", "cannot be read at character"),
        ("user_id = 'a' or true", "cannot be read"),
        ("user = 'a'", "user is not a column of stream health"),
        ("_kafka_offset = 1", "_kafka_offset is not a column"),
        ("user_id <> 'a'", "not whose rows stay"),
        ("not user_id = 'a'", "not whose rows stay"),
        ("user_id not in ('a', 'b')", "not whose rows stay"),
        ("metadata = 'a'", "it has no one value"),
        ("value = 'high'", "value is double"),
        ("user_id = 'a", "cannot be read"),
    ],
)
def test_what_means_no_rows_of_someone_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConditionError) as caught:
        condition(text)
    assert expected in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_rows_are_told_by_their_columns() -> None:
    bound = condition("user_id = 'O''Brien' and (value > 5 or source_app is null)").bind(SCHEMA)
    rows = pa.table(
        {
            "user_id": ["O'Brien", "O'Brien", "O'Brien", "Brien", None],
            "value": [6.0, 5.0, 5.0, 6.0, 6.0],
            "source_app": ["a", None, "a", "a", None],
        }
    )
    assert fulfils(rows, bound).to_pylist() == [True, True, False, False, False]
    assert fulfils(rows, None).to_pylist() == [False] * 5


def told(text: str, raw: bytes, by_text: bool = True, **columns: Any) -> bool | None:
    found = condition(text)
    return judge(found.bind(SCHEMA), dict.fromkeys(found.columns) | columns, raw, by_text)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"user_id": "u-1", "value', True),
        (b'{"user_id": "u-10"}', False),
        (b'{"user_id": "xu-1"}', False),
        (rb'{"user_id": "\u0075-\u0031"}', True),
        (rb'{"text": "sent by\nu-1"}', True),
        (b"\x06u-1abc", True),  # Avro: the length, then the text, then the next field
        (b"\x0a\x03u-1A\x01", True),  # Protobuf: the tag and the length in front
        (b"", False),
    ],
)
def test_a_text_is_found_in_bytes_as_a_whole_word(raw: bytes, expected: bool) -> None:
    assert told("user_id = 'u-1'", raw) is expected


def test_a_text_is_found_however_json_escapes_it() -> None:
    for raw in ('"Zoë/😀"'.encode(), rb'"Zo\u00eb\/\uD83D\ude00"', rb'"Zo\u00EB/\ud83d\uDE00"'):
        assert told("user_id = 'Zoë/😀'", raw) is True


def test_a_number_is_found_in_text_only() -> None:
    assert told("duration_seconds = 17", b'{"n": 17}') is True
    assert told("duration_seconds = 17", b'{"n": 170, "m": 1.17}') is False
    assert told("duration_seconds = 17", b'{"n": 17}', by_text=False) is None


def test_a_column_that_was_decoded_counts_more_than_the_bytes() -> None:
    assert told("user_id = 'u-1'", b"u-1", user_id="u-2") is False
    assert told("user_id = 'u-1' and data_type = 'stepCount'", b"u-1", data_type="x") is False
    assert told("user_id = 'u-1' and data_type = 'x'", b"u-1", data_type="x") is True
    # Of someone else's record, whose value is not known, nothing may be concluded.
    assert told("user_id = 'u-1' and value > 5", b"u-1") is None
    assert told("user_id = 'u-1' and value > 5", b"u-2") is False
    assert told("user_id = 'u-1' or value > 5", b"u-1") is True
