"""Derived columns and rules: DuckDB SQL that reaches nothing but the columns of one row."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from ingestion.decode import check_stream
from ingestion.errors import StreamFileError
from ingestion.rules import KAFKA_COLUMNS, _problem, locked_connection
from ingestion.stream import Stream
from ingestion.stream_file import load_streams
from tests.conftest import ROOT
from tests.unit.decoding import column, decode_rows, make_stream, types

Make = Callable[..., Stream]

COLUMNS = column("a", "string") + column("n", "int") + column("tags", "array<int>")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda columns, **more: make_stream(tmp_path, columns, **more)


@pytest.fixture
def with_rule(tmp_path: Path) -> Callable[[str], Stream]:
    stream = make_stream(tmp_path, COLUMNS)
    return lambda rule: stream.model_copy(update={"rules": {"odd": rule}})


def test_a_rule_holds_only_when_it_is_true(make: Make) -> None:
    stream = make(column("n", "int", "optional: true"), more="rules: {small: n < 5}")
    rows = decode_rows(stream, b'{"n": 4}', b'{"n": 5}', b'{"n": null}')
    assert types(rows) == [None, "validation_error", "validation_error"]
    assert rows[1]["_error_message"] == 'rules not met: small; values: {"n":5}'
    assert rows[1]["n"] == 5


def test_a_derived_column_may_use_those_above_it(make: Make) -> None:
    stream = make(
        column("n", "int")
        + column("double", "int", "expression: n * 2")
        + column("text", "string", "expression: \"'=' || double\""),
        more="rules: {short: length(text) < 4}",
    )
    check_stream(stream)
    rows = decode_rows(stream, b'{"n": 4}', b'{"n": 400}')
    assert (rows[0]["double"], rows[0]["text"]) == (8, "=8")
    assert types(rows) == [None, "validation_error"]


def test_a_derived_column_that_is_null_though_its_inputs_are_not_is_an_error(make: Make) -> None:
    stream = make(
        column("a", "string")
        + column("b", "int", "optional: true")
        + column("n", "int", "expression: cast(a as int)")
        + column("big", "int", "expression: n * 2000000000, optional: true")
        + column("sum", "int", "expression: n + b")
        + column("loose", "int", "expression: cast(a as int) * 1, optional: true")
    )
    rows = decode_rows(
        stream, b'{"a": "1", "b": 2}', b'{"a": "1"}', b'{"a": "x", "b": 2}', b'{"a": "2"}'
    )
    assert [row["sum"] for row in rows] == [3, None, None, None]
    assert types(rows) == [None, None, "transformation_error", None]
    assert [row["big"] for row in rows] == [2_000_000_000, 2_000_000_000, None, None]
    assert rows[2]["_error_message"] == 'not computed: n; values: {"a":"x","b":2}'


def test_an_expression_that_throws_is_an_error_of_its_row(make: Make) -> None:
    stream = make(
        column("a", "string")
        + column("n", "int", "expression: \"json_extract(a, '$[0]')::int\"")
        + column("huge", "bigint", "expression: len(range(n::bigint * n * n)), optional: true"),
        more="rules: {divides: 10 // n >= 0, is_day: \"strptime(a, '[%d]') is not null\"}",
    )
    texts = ("[1]", "[0]", "[2000000000]", "[")
    rows = decode_rows(stream, *(f'{{"a": "{text}"}}'.encode() for text in texts))
    assert types(rows) == [None, *["validation_error"] * 2, "transformation_error"]
    assert [row["huge"] for row in rows] == [1, 0, None, None]
    assert "rules not met: divides, is_day;" in rows[1]["_error_message"]


def test_lambdas_and_nested_types(make: Make) -> None:
    stream = make(
        column("tags", "map<string,int>")
        + column("list", "array<int>")
        + column("more", "array<bigint>", "expression: 'list_transform(list, lambda x: x + 1)'")
        + column("inverse", "array<int>", "expression: '[12 // x for x in list]'")
        + column("low", "map<string,string>", "expression: \"map {'a': tags['a']::varchar}\""),
        more="rules: {tagged: \"list_sum([x for x in list]) > tags['a']\"}",
    )
    rows = decode_rows(
        stream, *(f'{{"tags": {{"a": 1}}, "list": [1, {n}]}}'.encode() for n in (2, 0))
    )
    assert (rows[0]["more"], rows[0]["low"]) == ([2, 3], {"a": "1"})
    assert types(rows) == [None, "transformation_error"]
    assert "not computed: inverse;" in rows[1]["_error_message"]


def test_times_are_utc_whatever_the_zone_of_the_machine_is(tmp_path: Path) -> None:
    columns = (
        column("t", "timestamp")
        + column("day", "date", "expression: cast(t as date)")
        + column("same", "timestamp", "expression: make_timestamptz(epoch_us(t))")
        + column("text", "timestamp", "expression: \"'2026-01-30T23:30:00-01:00'::timestamptz\"")
        + column("age", "bigint", "expression: \"date_diff('hour', t, _kafka_timestamp)\"")
    )
    make_stream(tmp_path, columns)
    code = """if True:
        from pathlib import Path
        from ingestion.stream_file import load_stream
        from tests.unit.decoding import decode_rows
        stream = load_stream(Path("made.yml"))
        (row,) = decode_rows(stream, b'{"t": "2026-01-30T23:30:00-01:00"}')
        print(*(row[name] for name in stream.columns))"""
    environment = {"TZ": "Asia/Tokyo", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    half_past = "2026-01-31 00:30:00+00:00"
    assert done.stdout.strip() == f"{half_past} 2026-01-31 {half_past} {half_past} 10", done.stderr


def test_the_coordinates_are_columns(make: Make) -> None:
    stream = make(
        column("n", "int"), more="rules: {first: \"_kafka_offset = 0 and _kafka_topic = 'made'\"}"
    )
    check_stream(stream)
    assert types(decode_rows(stream, *[b'{"n": 1}'] * 2)) == [None, "validation_error"]


def test_a_tombstone_has_what_derives_from_its_key_and_no_rule_is_asked(make: Make) -> None:
    stream = make(
        column("id", "string", "from: key") + column("code", "string", "expression: upper(id)"),
        more="key: {format: text}\nrules: {never: 1 = 2}",
    )
    (row,) = decode_rows(stream, None, keys=(b"k",))
    assert (row["id"], row["code"], row["_error_type"]) == ("k", "K", None)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("prize > 0", '"prize" not found'),
        ("n >", "syntax error"),
        ("length(a)", "it gives bigint, not true or false"),
        ("null", "not true or false"),
        ("unix_seconds(n) > 0", "unix_seconds does not exist"),
        ("sum(n) > 1", "aggregates are not allowed"),
        ("count(*) > 1", "aggregates are not allowed"),
        ("n > (select 1)", "a subquery is not allowed"),
        ("exists(select 1)", "a subquery is not allowed"),
        ("n in (select 1)", "a subquery is not allowed"),
        ("row_number() over () > 1", "a window function is not allowed"),
        ("columns(*) is null", "a star is not allowed"),
        ("unnest([true])", "UNNEST not supported"),
        ("random() > 0.5", "volatile"),
        ("error(a) is null", "volatile"),
        ("sleep_ms(1) is null", "volatile"),
        ("read_text('/etc/passwd') = a", "table function"),
        ("a in (from read_text('/etc/passwd'))", "not allowed"),
        ("getenv('HOME') = a", "getenv does not exist"),
        ("current_setting('threads') = 1", "current_setting is not allowed"),
        ("getvariable('x') = a", "getvariable is not allowed"),
        ("n > 1) from read_text('/etc/passwd') where (true", "syntax error"),
        ("n > 1)), (select try((true", "syntax error"),
        ("n > 1; attach 'x'", "syntax error"),
        ("n > ?", "Values were not provided"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_by_name(
    with_rule: Callable[[str], Stream], rule: str, words: str
) -> None:
    with pytest.raises(StreamFileError) as caught:
        check_stream(with_rule(rule))
    assert f"made.yml: the rule odd does not work: {rule}: " in caught.value.message
    assert words in caught.value.message
    assert "a, n, tags" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("nowhere + 1", "the column odd does not work: nowhere + 1"),
        ("'[1]'", "it gives integer[], not int"),
        ("odd + 1", '"odd" not found'),
    ],
)
def test_an_expression_that_cannot_work_is_refused_by_name(
    make: Make, expression: str, words: str
) -> None:
    stream = make(column("a", "int") + column("odd", "int", f"expression: {expression}"))
    with pytest.raises(StreamFileError) as caught:
        check_stream(stream)
    assert words in caught.value.message


def test_all_that_cannot_work_is_named_at_once(make: Make) -> None:
    stream = make(
        column("a", "int") + column("odd", "int", "expression: x"), more="rules: {r: y, s: z}"
    )
    with pytest.raises(StreamFileError) as caught:
        check_stream(stream)
    assert len(caught.value.message.splitlines()) == 3


def test_the_streams_of_this_repository_work() -> None:
    for stream in load_streams():
        check_stream(stream)


@pytest.mark.parametrize(
    "statement",
    [
        "from read_text('/etc/passwd')",
        "from '/etc/passwd'",
        "from read_csv('https://example.org/x.csv')",
        "copy (select 1) to '/tmp/x.csv'",
        "attach '/tmp/x.db'",
        "install httpfs",
        "load httpfs",
        "set threads = 4",
        "set enable_external_access = true",
        "reset lock_configuration",
        "from python_variable",
    ],
)
def test_the_database_reaches_no_file_network_setting_or_python_variable(statement: str) -> None:
    python_variable = pa.table({"a": [1]})
    assert python_variable
    with pytest.raises(duckdb.Error):
        locked_connection().execute(statement)


def test_the_values_of_an_error_are_json(make: Make) -> None:
    columns = "".join(
        column(name, kind)
        for name, kind in {
            "d": "decimal(5,2)",
            "m": "map<string,int>",
            "t": "timestamp",
            "f": "double",
        }.items()
    )
    stream = make(columns, more="rules: {never: f is null}")
    value = b'{"d": 1.5, "m": {"a": 1}, "t": "2026-01-31T10:00:00Z", "f": 0.1}'
    (row,) = decode_rows(stream, value)
    text: Any = row["_error_message"].split("values: ")[1]
    assert text == '{"d":1.50,"m":{"a":1},"t":"2026-01-31T10:00:00Z","f":0.1}'


def test_the_examples_of_the_docs_work() -> None:
    columns = {
        **dict.fromkeys(("name", "body"), "string"),
        **{"n": "int", "price": "decimal(9,2)", "sent": "timestamp", "day": "date"},
        **{"tags": "array<string>", "labels": "map<string,string>"},
    }
    section = (ROOT / "docs" / "streams.md").read_text().split("What is needed most,")[1]
    table = section.split("\n\n")[1].split("|---|---|")[1].replace("\\|", "|")
    examples = [text for text in re.findall("`([^`]+)`", table) if not text.startswith("::")]
    assert len(examples) > 50
    for example in examples:
        problem = _problem(example, KAFKA_COLUMNS | columns, "string")
        assert problem is None, (example, problem)
