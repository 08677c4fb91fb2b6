"""Keys and values of every format, decoded strictly and never at the cost of the batch."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import Row, SparkSession

from ingestion.decode import KAFKA_SCHEMA, check_stream, decode
from ingestion.errors import StreamFileError
from ingestion.stream import Stream, load_stream

Make = Callable[..., Stream]

AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A stream from the text of its columns, key and value."""

    def write(columns: str, value: str = "format: json", more: str = "") -> Stream:
        (tmp_path / "reading.avsc").write_text(json.dumps(AVRO))
        indented = "\n".join("  " + line for line in columns.strip().splitlines())
        file = tmp_path / "made.yml"
        file.write_text(
            f"description: Made.\ntopic: made\nvalue: {{{value}}}\n{more}\ncolumns:\n{indented}\n"
        )
        return load_stream(file)

    return write


def column(name: str, kind: str, more: str = "") -> str:
    return f"{name}: {{type: '{kind}', description: It.{', ' + more if more else ''}}}\n"


def rows(
    spark: SparkSession,
    stream: Stream,
    *values: bytes | None,
    keys: tuple[bytes | None, ...] = (),
    schemas: dict[int, str | None] | None = None,
) -> list[Row]:
    keys = keys or (None,) * len(values)
    records = [
        ("t", 0, offset, None, key, value, [("h", b"1")])
        for offset, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    decoded = decode(spark.createDataFrame(records, KAFKA_SCHEMA), stream, schemas)
    return sorted(decoded.collect(), key=lambda row: row["_kafka_offset"])


def avro(schema: dict[str, Any] = AVRO, **fields: Any) -> bytes:
    out = io.BytesIO()
    record = {"id": "a", "count": 1, "note": None, "tags": {"x": "y"}} | fields
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def types(found: list[Row]) -> list[str | None]:
    return [row["_error_type"] for row in found]


# --- JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", '"5"', ["5", "true", "{}", "[]"]),
        ("boolean", "true", ['"true"', "1"]),
        ("int", "5", ['"5"', "5.5", "3000000000", "true"]),
        ("bigint", "3000000000", ['"5"', "1e30", "99999999999999999999"]),
        ("double", "5.25", ['"5"', "true", "1e999"]),
        ("float", "5.25", ['"5"', "1e99"]),
        ("decimal(9,2)", "5.25", ["true", "12345678.5", '"much"', "1e999999999"]),
        ("date", '"2026-01-31"', ["5", '"soon"']),
        ("timestamp", '"2026-01-31T10:00:00Z"', ["true", '"soon"', "{}", '"10:00"', '"2026"']),
        ("map<string,string>", '{"a": "b"}', ["[]", '"a"']),
        ("map<string,int>", '{"a": 1, "b": null}', ['{"a": "x"}', '{"a": 1, "b": 3000000000}']),
        ("array<int>", "[1, null]", ["[3000000000, null]", "{}", '["a"]', '[1, "a"]', "5"]),
        ("array<string>", "[]", ["[1]"]),
    ],
)
def test_a_json_value_of_another_type_is_a_schema_error(
    spark: SparkSession, make: Make, kind: str, good: str, bad: list[str]
) -> None:
    stream = make(column("it", kind))
    found = rows(spark, stream, *(f'{{"it": {value}}}'.encode() for value in (good, *bad)))
    assert types(found) == [None] + ["schema_error"] * len(bad), found
    assert found[0]["it"] is not None
    assert all(f", not {kind})" in row["_error_message"] for row in found[1:])


def test_what_is_no_object_is_a_schema_error_even_if_all_is_optional(
    spark: SparkSession, make: Make
) -> None:
    found = rows(spark, make(column("it", "int", "optional: true")), b"[]", b"5", b"null", b"{}")
    assert types(found) == ["schema_error"] * 3 + [None]
    assert found[0]["_error_message"] == "value: not a JSON object"


def test_numbers_keep_their_digits(spark: SparkSession, make: Make) -> None:
    stream = make(column("exact", "decimal(38,10)") + column("near", "double"))
    (row,) = rows(spark, stream, b'{"exact": 1234567890123456789012345678.0123456789, "near": 0.1}')
    assert str(row["exact"]) == "1234567890123456789012345678.0123456789"
    assert row["near"] == 0.1


def test_the_last_of_two_fields_of_one_name_counts(spark: SparkSession, make: Make) -> None:
    (row,) = rows(spark, make(column("it", "int")), b'{"it": 1, "it": 2}')
    assert (row["it"], row["_error_type"]) == (2, None)


def test_nested_fields_and_odd_names_are_found(spark: SparkSession, make: Make) -> None:
    stream = make(
        column("city", "string", "from: value.address.city")
        + column("kind", "string", "from: 'value.@type \"x\"'")
    )
    good = {"address": {"city": "Delft"}, '@type "x"': "p"}
    missing = {"address": "none", '@type "x"': "p"}
    found = rows(spark, stream, json.dumps(good).encode(), json.dumps(missing).encode())
    assert (found[0]["city"], found[0]["kind"], found[0]["_error_type"]) == ("Delft", "p", None)
    assert "missing: city" in found[1]["_error_message"]


def test_fields_that_are_not_declared_are_named(spark: SparkSession, make: Make) -> None:
    stream = make(column("a", "int"))
    found = rows(spark, stream, b'{"a": 1}', b'{"a": 1, "b": 2, "c": 3}', b"[]", None)
    assert [row["_undeclared"] for row in found] == [[], ["b", "c"], None, None]


# --- text and keys -------------------------------------------------------------------------------


def test_text_is_one_column_in_its_type(spark: SparkSession, make: Make) -> None:
    stream = make(column("line", "string"), "format: text")
    found = rows(spark, stream, b"a line", b"", b"\xff", None)
    assert [row["line"] for row in found] == ["a line", "", found[2]["line"], None]
    assert types(found) == [None, None, "deserialization_error", None]
    number = make(column("n", "int"), "format: text")
    found = rows(spark, number, b"12", b"twelve")
    assert (found[0]["n"], found[1]["_error_message"]) == (12, "of another type: n (text, not int)")


def test_a_tombstone_has_its_identity_in_the_key(spark: SparkSession, make: Make) -> None:
    stream = make(
        column("id", "string", "from: [value.id, key.id]") + column("n", "int"),
        more="key: {format: json}",
    )
    found = rows(
        spark,
        stream,
        None,
        b'{"id": "v", "n": 1}',
        b'{"n": 1}',
        b'{"id": 5, "n": 1}',
        b'{"id": "v", "n": 1}',
        keys=(b'{"id": "k"}', b'{"id": "k"}', b'{"id": "k"}', b'{"id": "k"}', b"{"),
    )
    assert [row["id"] for row in found[:3]] == ["k", "v", "k"]
    assert types(found) == [None, None, None, "schema_error", "deserialization_error"]
    assert found[4]["_error_message"] == "key: not valid JSON"


def test_headers_are_kept_on_request(spark: SparkSession, make: Make) -> None:
    (row,) = rows(spark, make(column("a", "int"), more="headers: true"), b'{"a": 1}')
    ((name, value),) = row["_kafka_headers"]
    assert (name, bytes(value)) == ("h", b"1")


# --- derived columns and rules -------------------------------------------------------------------


def test_a_derived_column_that_is_null_though_its_inputs_are_not_is_an_error(
    spark: SparkSession, make: Make
) -> None:
    stream = make(
        column("a", "string")
        + column("b", "int", "optional: true")
        + column("n", "int", "expression: cast(a as int)")
        + column("big", "int", "expression: n * 2000000000, optional: true")
        + column("sum", "int", "expression: n + b")
        + column("loose", "int", "expression: cast(a as int) * 1, optional: true")
    )
    found = rows(spark, stream, b'{"a": "1", "b": 2}', b'{"a": "1"}', b'{"a": "x", "b": 2}')
    assert [row["sum"] for row in found] == [3, None, None]
    assert types(found) == [None, None, "transformation_error"]
    assert [row["big"] for row in found] == [2_000_000_000, 2_000_000_000, None]
    assert rows(spark, stream, b'{"a": "2"}')[0]["big"] is None  # too large for an int
    assert found[2]["_error_message"] == 'not computed: n; values: {"a":"x","b":2}'


def test_an_expression_that_throws_ends_no_batch(spark: SparkSession, make: Make) -> None:
    """Two that share a part, which Spark would else compute once and outside of both."""
    stream = make(
        column("xml", "string")
        + column("n", "int", "expression: \"xpath_int(xml, 'a/text()')\"")
        + column("m", "int", "expression: \"xpath_int(xml, 'a/text()') + 1\""),
        more='rules: {never: "raise_error(xml) is null", one: "xpath_int(xml, \'a/text()\') = 1"}',
    )
    found = rows(spark, stream, b'{"xml": "<a>1</a>"}', b'{"xml": "<a"}')
    assert types(found) == ["validation_error", "transformation_error"]
    assert "rules not met: never;" in found[0]["_error_message"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("expression: nowhere + 1", "the column odd does not work: nowhere + 1"),
        ("expression: 'array(1)'", "the column odd does not work"),
    ],
)
def test_an_expression_that_spark_cannot_read_is_refused_by_name(
    spark: SparkSession, make: Make, more: str, words: str
) -> None:
    with pytest.raises(StreamFileError) as caught:
        check_stream(spark, make(column("a", "int") + column("odd", "int", more)))
    assert words in caught.value.message


# --- Avro ----------------------------------------------------------------------------------------

AVRO_COLUMNS = (
    column("id", "string")
    + column("count", "bigint")
    + column("note", "string", "optional: true")
    + column("tags", "map<string,string>")
)


def test_avro_by_a_schema_file(spark: SparkSession, make: Make) -> None:
    stream = make(AVRO_COLUMNS, "format: avro, schema: reading.avsc")
    check_stream(spark, stream)
    whole = avro(note="n")
    found = rows(spark, stream, whole, whole[:-1], whole + b"\0", b"", b"\xff" * 40, None)
    assert (found[0]["id"], found[0]["count"], found[0]["note"]) == ("a", 1, "n")
    assert found[0]["tags"] == {"x": "y"}
    assert types(found) == [None, *["deserialization_error"] * 4, None]


def test_avro_that_claims_gigabytes_is_an_error_row(spark: SparkSession, make: Make) -> None:
    stream = make(AVRO_COLUMNS, "format: avro, schema: reading.avsc")
    claims = b"\xfe\xff\xff\xff\x0f"  # a string of two gigabytes
    found = rows(spark, stream, claims, avro()[:-6] + claims)
    assert types(found) == ["deserialization_error"] * 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (column("weight", "int"), "the Avro schema has no field weight"),
        (column("id", "int"), "the Avro schema has string, the column is int"),
    ],
)
def test_a_column_that_the_schema_file_does_not_give_is_refused(
    spark: SparkSession, make: Make, columns: str, words: str
) -> None:
    with pytest.raises(StreamFileError) as caught:
        check_stream(spark, make(columns, "format: avro, schema: reading.avsc"))
    assert words in caught.value.message


# --- Avro with an id in front --------------------------------------------------------------------

NEWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "unit", "type": "string"}]}
OTHER = {**AVRO, "fields": [{"name": "id", "type": "long"}, *AVRO["fields"][1:]]}
RECURSIVE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def test_each_record_by_the_schema_that_it_names(spark: SparkSession, make: Make) -> None:
    columns = AVRO_COLUMNS + column("unit", "string", "optional: true")
    stream = make(columns, "format: avro, schema: registry")
    check_stream(spark, stream)
    schemas = {
        1: json.dumps(AVRO), 2: json.dumps(NEWER), 3: json.dumps(OTHER), 4: json.dumps(RECURSIVE),
        9: None,
    }  # fmt: skip
    found = rows(
        spark,
        stream,
        framed(1, avro()),
        framed(2, avro(NEWER, unit="C")),
        framed(3, avro(OTHER, id=7)),
        framed(9, avro()),
        framed(4, b"\0"),
        b"\1" + framed(1, avro())[1:],
        b"\0\0\0",
        framed(1, avro()[:-2]),
        framed(2**32 - 1, b""),
        None,
        schemas=schemas,
    )
    assert [row["unit"] for row in found[:3]] == [None, "C", None]
    assert types(found) == [
        None, None, "schema_error", *["deserialization_error"] * 6, None
    ]  # fmt: skip
    assert found[2]["_error_message"] == "of another type: id (bigint, not string)"
    assert found[3]["_error_message"] == "value: the registry has no schema 9"
    assert "schema 4 cannot be read" in found[4]["_error_message"]
    assert "not framed" in found[5]["_error_message"]
    assert "not framed" in found[6]["_error_message"]
    assert found[7]["_error_message"] == "value: not a whole Avro record"
    assert found[8]["_error_message"] == "value: the registry has no schema 4294967295"
