"""Avro, decoded strictly; the fast way and fastavro agree on every payload."""

import io
import json
import random
import struct
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from ingestion.formats import Field, Parsed, Payloads
from ingestion.formats import avro as module
from ingestion.formats.avro import AvroDecoder, problem
from ingestion.formats.types import arrow_type

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
NEWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "unit", "type": "string"}]}
FIELDS = [
    Field(("id",), "string"),
    Field(("count",), "bigint"),
    Field(("note",), "string"),
    Field(("tags",), "map<string,string>"),
]
NOT_WHOLE = "not a whole Avro record"
MANY = 100  # more than fastavro reads alone


def write(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def avro(schema: dict[str, Any] = AVRO, **fields: Any) -> bytes:
    return write(schema, {"id": "a", "count": 1, "note": None, "tags": {"x": "y"}} | fields)


def record(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "Made", "fields": fields}


def rows(parsed: Parsed) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in parsed.columns), strict=True))


def parse_it(
    kind: Any, declared: str, value: Any, epoch: str | None = None, few: bool = True
) -> tuple[Any, str | None]:
    """The value of one field in its declared type, and its misfit."""
    schema = record(it=kind)
    decoder = AvroDecoder(json.dumps(schema), [Field(("it",), declared, epoch)])
    payload = value if isinstance(value, bytes) else write(schema, {"it": value[0]})
    parsed = decoder.parse(Payloads.of([payload] * (1 if few else MANY)))
    assert not parsed.unreadable
    return parsed.columns[0][0].as_py(), parsed.misfits[0].get(0)


@pytest.mark.parametrize("copies", [1, MANY])
def test_whole_records_are_read_and_broken_ones_keep_their_place(copies: int) -> None:
    whole = avro(note="n")
    claims = b"\xfe\xff\xff\xff\x0f"  # a string of two gigabytes
    broken = [whole[:-1], whole + b"\0", b"", b"\xff" * 40, claims, avro()[:-6] + claims]
    payloads = [whole, *broken, None, whole] * copies
    parsed = AvroDecoder(json.dumps(AVRO), FIELDS).parse(Payloads.of(payloads))
    good = ("a", 1, "n", [("x", "y")])
    nothing = (None,) * 4
    assert rows(parsed) == [good, *[nothing] * 7, good] * copies
    bad = [index for index in range(len(payloads)) if 0 < index % 9 < 7]
    assert sorted(parsed.unreadable) == bad
    assert set(parsed.unreadable.values()) == {NOT_WHOLE}
    assert parsed.misfits == [{}] * 4


def test_bytes_behind_a_record_are_found_by_the_fast_way() -> None:
    payloads = [avro(), *[avro() + avro()] * MANY]
    parsed = AvroDecoder(json.dumps(AVRO), FIELDS).parse(Payloads.of(payloads))
    assert sorted(parsed.unreadable) == list(range(1, MANY + 1))


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MOMENT = datetime(2026, 1, 31, 10, tzinfo=UTC)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(
    ("kind", "value", "declared", "expected"),
    [
        ("boolean", True, "boolean", True),
        ("int", -5, "int", -5),
        ("int", 5, "double", 5.0),
        ("long", 2**40, "bigint", 2**40),
        ("long", 2**40 + 1, "float", float(2**40)),
        ("float", 1.5, "double", 1.5),
        ("string", "é", "string", "é"),
        ("bytes", b"\xff\0", "binary", b"\xff\0"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "binary", b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "string", "B"),
        ({"type": "string", "logicalType": "uuid"}, "no uuid", "string", "no uuid"),
        ({"type": "int", "logicalType": "date"}, date(2026, 1, 31), "date", date(2026, 1, 31)),
        ({"type": "int", "logicalType": "time-millis"}, 5, "int", 5),
        (MILLIS, MOMENT, "timestamp", MOMENT),
        ({"type": "long", "logicalType": "timestamp-micros"}, MOMENT, "timestamp", MOMENT),
        (
            {"type": "long", "logicalType": "timestamp-nanos"},
            1_769_853_600_000_000_999, "timestamp", MOMENT,
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            MOMENT.replace(tzinfo=None), "timestamp", MOMENT,
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("-1234567.89"), "decimal(12,3)", Decimal("-1234567.890"),
        ),
        (
            {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 38},
            Decimal("9" * 38), "decimal(38,0)", Decimal("9" * 38),
        ),
        (["string", "null"], "x", "string", "x"),
        (["null", "string"], None, "string", None),
        (["null", MILLIS], MOMENT, "timestamp", MOMENT),
        (["null", "int", "long"], 5, "bigint", 5),
        ({"type": "array", "items": ["null", "int"]}, [1, None], "array<int>", [1, None]),
        ({"type": "array", "items": "int"}, [1], "array<bigint>", [1]),
        ({"type": "map", "values": MILLIS}, {"a": MOMENT}, "map<string,timestamp>",
         [("a", MOMENT)]),
        (["null", {"type": "map", "values": "int"}], None, "map<string,int>", None),
    ],
)  # fmt: skip
def test_avro_types_become_the_declared_type(
    kind: Any, value: Any, declared: str, expected: Any, few: bool
) -> None:
    assert parse_it(kind, declared, (value,), few=few) == (expected, None)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(
    ("kind", "value", "declared", "misfit"),
    [
        ("long", 5, "string", "bigint, not string"),
        ("long", 5, "int", "bigint, not int"),
        ("double", 5.0, "float", "double, not float"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.25"),
         "decimal(9,3)", "decimal(9,2), not decimal(9,3)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.25"),
         "decimal(12,1)", "decimal(9,2), not decimal(12,1)"),
        ("string", "5", "int", "string, not int"),
        ("string", "5", "binary", "string, not binary"),
        ("long", 5, "timestamp", "number, not timestamp unless epoch is set"),
        ("int", 5, "timestamp", "number, not timestamp unless epoch is set"),
        (MILLIS, MOMENT, "bigint", "timestamp, not bigint"),
        (record(a="int") | {"name": "Inner"}, {"a": 1}, "string", "record, not string"),
        (["null", "string", "long"], 5, "string", "bigint, not string"),
        ({"type": "map", "values": "int"}, {}, "map<string,string>",
         "map<string,int>, not map<string,string>"),
        ("int", b"\xfe\xff\xff\xff\xff\x01", "int", "int out of range, not int"),
        (MILLIS, b"\xfe" + b"\xff" * 8 + b"\x01", "timestamp",
         "timestamp out of range, not timestamp"),
        ("string", b"\x04\xff\xfe", "string", "text that is not UTF-8, not string"),
        ({"type": "array", "items": "string"}, b"\x02\x04\xff\xfe\0", "array<string>",
         "array<string> with an unusable element, not array<string>"),
        ({"type": "map", "values": "int"}, b"\x02\x04\xff\xfe\2\0", "map<string,int>",
         "map<string,int> with an unusable element, not map<string,int>"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01", "string",
         "unknown symbol, not string"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x04\x7f\xff",
         "decimal(2,0)", "decimal(2,0) out of range, not decimal(2,0)"),
    ],
)  # fmt: skip
def test_what_the_declared_type_does_not_take_is_a_misfit(
    kind: Any, value: Any, declared: str, misfit: str, few: bool
) -> None:
    given = value if isinstance(value, bytes) else (value,)
    assert parse_it(kind, declared, given, few=few) == (None, misfit)


@pytest.mark.parametrize("few", [True, False])
def test_epoch_says_what_a_number_means(few: bool) -> None:
    seconds = int(MOMENT.timestamp())
    assert parse_it("int", "timestamp", (seconds,), "seconds", few) == (MOMENT, None)
    assert parse_it("long", "timestamp", (seconds * 1000,), "milliseconds", few)[0] == MOMENT
    assert parse_it(MILLIS, "timestamp", (MOMENT,), "seconds", few)[0] == MOMENT
    found = parse_it("long", "timestamp", (2**62,), "milliseconds", few)
    assert found == (None, "bigint out of range, not timestamp")


def test_a_negative_branch_of_a_union_is_no_record() -> None:
    """Python would count from the end of the branches."""
    decoder = AvroDecoder(json.dumps(record(it=["null", "long"])), [Field(("it",), "bigint")])
    assert decoder.parse(Payloads.of([b"\x02\x05", b"\x01\x05", b"\x03"])).unreadable == {
        1: NOT_WHOLE,
        2: NOT_WHOLE,
    }


@pytest.mark.parametrize("copies", [1, MANY])
def test_nested_fields_are_found_by_their_path(copies: int) -> None:
    address = record(city="string", tags={"type": "array", "items": "string"}) | {"name": "Address"}
    other = record(city="long") | {"name": "Other"}
    schema = record(plain=address, maybe=["null", "Address"], either=["null", "Address", other])
    fields = [Field((part, "city"), "string") for part in ("plain", "maybe", "either")]
    fields += [Field(("maybe", "tags"), "array<string>"), Field(("plain", "no"), "int")]
    here = {"city": "Delft", "tags": ["t"]}
    payloads = [
        write(schema, {"plain": here, "maybe": here, "either": ("Address", here)}),
        write(schema, {"plain": here, "maybe": None, "either": ("Other", {"city": 5})}),
        write(schema, {"plain": here, "maybe": None, "either": None}),
    ]
    parsed = AvroDecoder(json.dumps(schema), fields).parse(Payloads.of(payloads * copies))
    assert rows(parsed)[:3] == [
        ("Delft", "Delft", "Delft", ["t"], None),
        ("Delft", None, None, None, None),
        ("Delft", None, None, None, None),
    ]
    wrong = "bigint at either.city, not string"
    assert parsed.misfits[2] == dict.fromkeys(range(1, 3 * copies, 3), wrong)


def test_a_whole_value_need_not_be_a_record() -> None:
    decoder = AvroDecoder('"string"', [Field((), "string")])
    assert rows(decoder.parse(Payloads.of([write("string", "a"), None, b"\x08a"]))) == [
        ("a",),
        (None,),
        (None,),
    ]


@pytest.mark.parametrize("copies", [1, MANY])
def test_the_last_of_two_keys_of_a_map_counts(copies: int) -> None:
    decoder = AvroDecoder(
        json.dumps(record(it={"type": "map", "values": "int"})), [Field(("it",), "map<string,int>")]
    )
    parsed = decoder.parse(Payloads.of([b"\x06\x02a\x02\x02b\x04\x02a\x06\0"] * copies))
    assert rows(parsed) == [([("b", 2), ("a", 3)],)] * copies


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(next=["null", "Made"]), "Made contains itself"),
        ({"type": "array", "items": "null"}, "arrays whose items have no bytes"),
        ({"type": "array", "items": record(a="null")}, "arrays whose items have no bytes"),
    ],
)
def test_a_schema_with_which_few_bytes_could_claim_everything_is_refused(
    schema: Any, reason: str
) -> None:
    found = problem(json.dumps(schema), Field(("a",), "int"))
    assert found is not None
    assert reason in found


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (Field(("weight",), "int"), "the Avro schema has no field weight"),
        (Field(("id", "x"), "int"), "the Avro schema has no field id.x"),
        (Field(("id",), "int"), "the Avro schema has string, the column is int"),
        (Field((), "string"), "the Avro schema has record, the column is string"),
        (
            Field(("count",), "timestamp"),
            "the Avro schema has int, the column is timestamp without epoch",
        ),
        (Field(("count",), "timestamp", "seconds"), None),
        (Field(("count",), "bigint"), None),
        (Field(("note",), "string"), None),
    ],
)
def test_a_column_that_the_schema_does_not_give_is_named(
    field: Field, expected: str | None
) -> None:
    assert problem(json.dumps(AVRO), field) == expected


# --- both ways agree --------------------------------------------------------------------------

MIXED = record(
    s="string",
    i=["null", "int"],
    many=["null", "string", "double", {"type": "array", "items": "long"}],
    e={"type": "enum", "name": "E", "symbols": ["A", "B", "C"]},
    inner=[record(b="boolean", d={"type": "int", "logicalType": "date"}) | {"name": "In"}, "null"],
    again=["null", "In"],
    list={"type": "array", "items": ["null", "string"]},
    map={"type": "map", "values": MILLIS},
    money={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    at={"type": "long", "logicalType": "timestamp-micros"},
    f="float",
)
MIXED_FIELDS = [
    Field(("s",), "string"),
    Field(("i",), "int"),
    Field(("many",), "string"),
    Field(("many",), "array<bigint>"),
    Field(("e",), "string"),
    Field(("inner", "b"), "boolean"),
    Field(("inner", "d"), "date"),
    Field(("again", "b"), "string"),
    Field(("list",), "array<string>"),
    Field(("map",), "map<string,timestamp>"),
    Field(("money",), "decimal(9,2)"),
    Field(("at",), "timestamp"),
    Field(("f",), "double"),
]


def payloads(chance: random.Random, count: int, kinds: int = 12) -> Iterator[bytes]:
    """Records, many of them cut, lengthened, mixed or with some bits changed."""
    last = b""
    for _ in range(count):
        inner = {"b": chance.random() < 0.5, "d": date.fromordinal(chance.randrange(1, 3_000_000))}
        whole = write(
            MIXED,
            {
                "s": "s" * chance.randrange(5),
                "i": chance.choice([None, chance.randrange(-(2**31), 2**31)]),
                "many": chance.choice([None, "x", 1.5, [1, -(2**63)]]),
                "e": chance.choice("ABC"),
                "inner": chance.choice([None, inner]),
                "again": chance.choice([None, inner]),
                "list": chance.choices([None, "é", ""], k=chance.randrange(3)),
                "map": {key: chance.randrange(2**50) for key in chance.choices("abc", k=2)},
                "money": Decimal(chance.randrange(-(10**9) + 1, 10**9)) / 100,
                "at": chance.randrange(-(2**60), 2**60),
                "f": chance.random(),
            },
        )
        raw = bytearray(whole)
        match chance.randrange(kinds) if kinds else None:
            case 0:
                raw = raw[: chance.randrange(len(raw))]
            case 1:
                raw += chance.randbytes(chance.randrange(1, 4))
            case 2:
                raw = bytearray(chance.randbytes(chance.randrange(60)))
            case 3 | 4:
                raw[chance.randrange(len(raw))] = chance.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF])
            case 5:
                raw[chance.randrange(len(raw))] = chance.randrange(256)
            case 6:
                place = chance.randrange(len(raw))
                raw = raw[:place] + last[place:]
        last = whole
        yield bytes(raw)


NUMBERS = {  # Python has no times beyond the year 9999
    arrow_type("date"): pa.int32(),
    arrow_type("timestamp"): pa.int64(),
    arrow_type("map<string,timestamp>"): pa.map_(pa.string(), pa.int64()),
}


def outcome(parsed: Parsed) -> list[Any]:
    columns = [column.cast(NUMBERS.get(column.type, column.type)) for column in parsed.columns]
    # NaN is not equal to itself, but its text is.
    return [[str(one.to_pylist()) for one in columns], parsed.misfits, parsed.unreadable]


@pytest.mark.parametrize("seed", range(4))
def test_the_fast_way_and_fastavro_agree_on_every_payload(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list(payloads(random.Random(seed), 3_000))  # noqa: S311
    decoder = AvroDecoder(json.dumps(MIXED), MIXED_FIELDS)
    monkeypatch.setattr(module, "FEW", len(made))
    judged = decoder.parse(Payloads.of(made))
    assert 0.1 < len(judged.unreadable) / len(made) < 0.6
    readable = [raw for index, raw in enumerate(made) if index not in judged.unreadable]
    judged_readable = outcome(decoder.parse(Payloads.of(readable)))
    monkeypatch.setattr(module, "FEW", 1)
    assert outcome(decoder.parse(Payloads.of(made))) == outcome(judged)
    assert outcome(decoder.parse(Payloads.of(readable))) == judged_readable
    assert len(decoder._reader._read_fast(readable)[1]) > len(readable) / 2
    for index in judged.unreadable:
        assert not decoder._reader._read_fast([made[index]] * 2)[1], made[index]


def test_the_fast_way_is_used() -> None:
    """A panic of Rust, or a schema that it silently refuses, would cost ten times as much."""
    decoder = AvroDecoder(json.dumps(MIXED), MIXED_FIELDS)
    good = list(payloads(random.Random(1), 200, kinds=0))  # noqa: S311
    _, read, others = decoder._reader._read_fast(good)
    assert (read, others) == (list(range(200)), [])


def test_a_bad_record_costs_little() -> None:
    def seconds(made: list[bytes | None]) -> float:
        started = time.process_time()
        decoder.parse(Payloads.of(made))
        return time.process_time() - started

    decoder = AvroDecoder(json.dumps(AVRO), FIELDS)
    good: list[bytes | None] = [avro(id=str(number)) for number in range(20_000)]
    bad = [b"{" if number == 7_777 else payload for number, payload in enumerate(good)]
    assert min(seconds(bad) for _ in range(3)) < 6 * min(seconds(good) for _ in range(3))


def test_the_end_marker_is_no_special_number() -> None:
    (number,) = struct.unpack("<d", module.END)
    assert number == number
    assert number != 0
