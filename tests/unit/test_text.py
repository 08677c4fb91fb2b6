"""Text, and the conversions of text that all formats share."""

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from ingestion.formats import Field, Parsed, Payloads
from ingestion.formats import values as convert
from ingestion.formats.text import TextDecoder

TEN_O_CLOCK = datetime(2026, 1, 31, 10, tzinfo=UTC)

# Texts that are a time, nearly a time, or nothing of the kind.
DAYS = ["2026-01-31", "2026-02-29", "2024-02-29", "0001-01-01", "9999-12-31", "10000-01-01"]
DAYS += ["2026-1-1", "2026-13-01", "-2026-01-01", "+2026-01-01", " 2026-01-01", "20260131", ""]
TIMES = ["", "T10", "T10:00", " 10:00:00", "T10:00:00.1", "T10:00:00.123456789", "T24:00:00"]
TIMES += ["T10:00:00.1234567890", "T23:59:60", "T10:00:00.", "T1:0:0", "t10:00:00", "T100000"]
ZONES = ["", "Z", "z", "+00:00", "+0000", "+00", "-05:30", "+24:00", " UTC", " Z", "+1:00"]
NUMBERS = [
    "1",
    "-1",
    "+1",
    "1.",
    ".5",
    "1e3",
    "1E-3",
    "-0",
    "00012",
    "1.005",
    "-1.005",
    "99999.995",
]
NUMBERS += ["1_000", "0x10", "nan", "inf", " 1", "1 ", "", "-", "--1", "1.2.3", "１", "1e", "1e400"]
NUMBERS += ["1e-999999999", "1e999999999", "9" * 38, "9" * 39, "9" * 5000, "0." + "9" * 39]


def parse(kind: str, *payloads: bytes | None, epoch: str | None = None) -> Parsed:
    return TextDecoder([Field((), kind, epoch)]).parse(Payloads.of(list(payloads)))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", {b"a line": "a line", b"": "", b'"5"': '"5"'}, []),
        ("binary", {b"a line": b"a line"}, []),
        ("boolean", {b"true": True, b"false": False}, [b"yes", b"1", b"True", b""]),
        ("int", {b"12": 12, b"-5.0": -5, b"+1": 1}, [b"twelve", b"5.5", b"3000000000", b" 1"]),
        ("bigint", {b"3000000000": 3 * 10**9}, [b"9" * 19, b"9" * 5000, b"1e3"]),
        ("double", {b"5.25": 5.25, b"1e3": 1000.0}, [b"nan", b"inf", b"1e999", b"1_0", b"x"]),
        ("float", {b"5.25": 5.25}, [b"1e39", b"9" * 100_000 + b"x"]),
        ("decimal(5,2)", {b"1.005": Decimal("1.01")}, [b"999.995", b"x", b"1e999999999"]),
        ("date", {b"2026-01-31": date(2026, 1, 31)}, [b"soon", b"2026-02-30", b""]),
        ("timestamp", {b"2026-01-31T10:00:00Z": TEN_O_CLOCK}, [b"10:00", b"5", b"2026"]),
    ],
)
def test_text_that_is_no_value_of_the_type_does_not_fit(
    kind: str, good: dict[bytes, Any], bad: list[bytes]
) -> None:
    parsed = parse(kind, *good, *bad, None)
    assert parsed.columns[0].to_pylist() == [*good.values(), *[None] * len(bad), None]
    places = range(len(good), len(good) + len(bad))
    assert parsed.misfits == [dict.fromkeys(places, f"text, not {kind}")]


def test_bytes_must_be_utf8() -> None:
    parsed = parse("string", b"a", b"\xff", "é".encode())
    assert parsed.unreadable == {1: "not valid UTF-8"}
    assert (parsed.columns[0].to_pylist(), parsed.misfits) == (["a", None, "é"], [{}])


def test_a_number_is_a_time_by_its_epoch() -> None:
    texts = (b"1769853600000", b"2026-01-31T10:00:00Z", b"soon", b"1e30")
    parsed = parse("timestamp", *texts, epoch="milliseconds")
    assert parsed.columns[0].to_pylist() == [TEN_O_CLOCK, TEN_O_CLOCK, None, None]
    assert list(parsed.misfits[0]) == [2, 3]


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("timestamp", ["".join(parts) for parts in product(DAYS, TIMES, ZONES)]),
        ("date", ["".join(parts) for parts in product(DAYS, TIMES)]),
        *((f"decimal({digits})", NUMBERS) for digits in ("7,2", "38,10", "38,0", "38,38", "1,0")),
    ],
)
def test_a_text_is_the_same_value_whatever_its_neighbours_are(kind: str, texts: list[str]) -> None:
    """A block that fits is converted at once, and another one piece by piece."""
    mixed = convert.from_text(pa.array(texts), kind)
    alone = [convert.from_text(pa.array([text]), kind)[0] for text in texts]
    assert [(t, v) for t, v in zip(texts, mixed, strict=True) if v.is_valid] == [
        (t, v) for t, v in zip(texts, alone, strict=True) if v.is_valid
    ]
    fitting = [text for text, value in zip(texts, alone, strict=True) if value.is_valid]
    assert convert.from_text(pa.array(fitting), kind).equals(mixed.drop_null())
