"""JSON, decoded strictly."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from ingestion.formats import Field, Parsed, Payloads
from ingestion.formats.json import JsonDecoder

TEN_O_CLOCK = datetime(2026, 1, 31, 10, tzinfo=UTC)


def field(path: str, kind: str, epoch: str | None = None) -> Field:
    return Field(tuple(path.split(".")), kind, epoch)


def parse(fields: list[Field], *records: bytes | str | None) -> Parsed:
    payloads = [text.encode() if isinstance(text, str) else text for text in records]
    parsed = JsonDecoder(fields).parse(Payloads.of(payloads))
    for column in parsed.columns:
        column.validate(full=True)
        assert len(column) == len(records)
    return parsed


def values(parsed: Parsed, number: int = 0) -> list[Any]:
    found: list[Any] = parsed.columns[number].to_pylist(maps_as_pydicts="strict")
    return found


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", {'"5"': "5", '"\\u0000é\\ud83d\\ude00"': "\0é😀"}, ["5", "true", "{}", "[]"]),
        ("boolean", {"true": True, "false": False}, ['"true"', "1", "0"]),
        (
            "int",
            {"5": 5, "5.0": 5, "-5.000": -5, "-0": 0, "-2147483648": -(2**31)},
            ['"5"', "5.5", "5e2", "2147483648", "3000000000.0", "true", "9" * 5000],
        ),
        (
            "bigint",
            {"3000000000": 3 * 10**9, str(2**63 - 1): 2**63 - 1, "9007199254740993.0": 2**53 + 1},
            ['"5"', "1e30", str(2**63), str(-(2**63) - 1), "99999999999999999999"],
        ),
        (
            "double",
            {"5.25": 5.25, "5": 5.0, "1e-400": 0.0, "-0.0": 0.0, "9" * 30: 1e30},
            ['"5"', "true", "1e999", "-1e999", "9" * 400, '"NaN"'],
        ),
        ("float", {"5.25": 5.25, "3.4028234e38": 2.0**128 - 2.0**104}, ['"5"', "1e39", "1e99"]),
        (
            "decimal(9,2)",
            {
                "5": Decimal("5.00"),
                '"5.25"': Decimal("5.25"),
                "1.005": Decimal("1.01"),
                "-1.005": Decimal("-1.01"),
                "1.005e0": Decimal("1.01"),
                "1.2e3": Decimal("1200.00"),
                '"1.5\\u0030"': Decimal("1.50"),
                "1e-999999999": Decimal("0.00"),
                "0." + "1" * 5000: Decimal("0.11"),
            },
            [
                *("true", "[]", '"much"', '""', '"NaN"', '" 1"', '"null"', "12345678.5"),
                *("9999999.995", "1e999999999", '"1e999999999"', "9" * 5000, f'"{"9" * 5000}x"'),
            ],
        ),
        (
            "date",
            {'"2026-01-31"': date(2026, 1, 31), '"2024-02-29"': date(2024, 2, 29)},
            ["5", '"soon"', '"2026-02-29"', '"2026-1-1"', '"2026-01-31T10:00:00"'],
        ),
        (
            "timestamp",
            {
                '"2026-01-31T10:00:00Z"': TEN_O_CLOCK,
                '"2026-01-31T10:00:00"': TEN_O_CLOCK,
                '"2026-01-31 12:00:00.000000+02:00"': TEN_O_CLOCK,
                '"2026-01-31T10:00:00.000000999Z"': TEN_O_CLOCK,
                '"2026-01-31"': datetime(2026, 1, 31, tzinfo=UTC),
            },
            ["true", "5", '"soon"', "{}", '"10:00"', '"2026"', '"2026-01-31T25:00:00Z"', '"5"'],
        ),
        (
            "map<string,string>",
            {'{"a": "b", "a": "c"}': {"a": "c"}, "{}": {}},
            ["[]", '"a"', '{"a": 1}', '{"a": {"b": "c"}}'],
        ),
        (
            "map<string,int>",
            {'{"a": 1, "b": null}': {"a": 1, "b": None}, '{"a": 5.0}': {"a": 5}},
            ['{"a": "x"}', '{"a": 1, "b": 3000000000}'],
        ),
        ("map<string,decimal(3,1)>", {'{"a": 1.25}': {"a": Decimal("1.3")}}, ['{"a": 1000}']),
        (
            "array<int>",
            {"[1, null]": [1, None], "[]": [], "[2.0]": [2]},
            ["[3000000000, null]", "{}", '["a"]', '[1, "a"]', "5", "[[1]]"],
        ),
        ("array<string>", {'["a"]': ["a"]}, ["[1]", '["a", {}]']),
        (
            "array<date>",
            {'["2026-01-31", null]': [date(2026, 1, 31), None]},
            ['["2026-01-31", "soon"]', "[5]"],
        ),
        ("array<timestamp>", {'["2026-01-31T10:00:00Z"]': [TEN_O_CLOCK]}, ["[5]", '["10:00"]']),
    ],
)
def test_a_value_of_another_type_does_not_fit(
    kind: str, good: dict[str, Any], bad: list[str]
) -> None:
    fitting = parse([field("it", kind)], *(f'{{"it": {value}}}' for value in good))
    assert values(fitting) == list(good.values())
    assert fitting.misfits == [{}]
    # Together, one by one, and beside values that fit: the verdict is the same.
    mixed = [value for misfit in bad for value in (next(iter(good)), misfit)]
    parsed = parse([field("it", kind)], *(f'{{"it": {value}}}' for value in mixed))
    assert values(parsed) == [next(iter(good.values())), None] * len(bad)
    assert sorted(parsed.misfits[0]) == list(range(1, 2 * len(bad), 2))
    assert all(f", not {kind}" in misfit for misfit in parsed.misfits[0].values())
    for value in bad:
        alone = parse([field("it", kind)], f'{{"it": {value}}}')
        assert (values(alone), list(alone.misfits[0])) == ([None], [0]), value
    assert not parsed.unreadable | parsed.misshapen


def test_a_misfit_says_its_place_what_is_there_and_what_was_expected() -> None:
    fields = [field("a.b", "int"), field("c", "array<int>"), field("d", "map<string,date>")]
    parsed = parse(fields, '{"a": {"b": true}, "c": [1, "x"], "d": {"e": "soon"}}')
    assert [misfits[0] for misfits in parsed.misfits] == [
        "boolean at a.b, not int",
        "string in array, not array<int>",
        "string in object, not map<string,date>",
    ]


def test_null_is_missing() -> None:
    for kind in ("string", "int", "decimal(5,2)", "timestamp", "array<int>", "map<string,int>"):
        parsed = parse([field("it", kind)], '{"it": null}', "{}", None)
        assert (values(parsed), parsed.misfits) == ([None] * 3, [{}]), kind
    assert values(parse([field("it", "timestamp", "seconds")], '{"it": null}', "{}")) == [None] * 2


@pytest.mark.parametrize("record", ["[]", "5", "null", '"a"', "true", "[{}]"])
def test_what_is_no_object_has_no_fields(record: str) -> None:
    parsed = parse([field("it", "int")], record, '{"it": 1}')
    assert parsed.misshapen == {0: "not a JSON object"}
    assert values(parsed) == [None, 1]


@pytest.mark.parametrize(
    "record",
    [
        *(b"", b" ", b"not json", b"{", b'{"it": 1', b'{"it": 1}}', b'{"it": 1} x', b'{"it": 1}{}'),
        *(b"{'it': 1}", b'{"it": 01}', b'{"it": nan}', b'{"it": 1,}', b'{"x": "\\ud800"}'),
        *(b'{"x": "\\q"}', b'{"x": "\n"}', b"\xef\xbb\xbf{}", b"[" * 5000, b'{"x":' * 5000),
    ],
)
def test_bytes_that_are_no_json_do_not_disturb_their_neighbours(record: bytes) -> None:
    parsed = parse([field("it", "int")], b'{"it": 1}', record, b'{"it": 2}')
    assert parsed.unreadable == {1: "not valid JSON"}
    assert values(parsed) == [1, None, 2]


@pytest.mark.parametrize("record", [b"\xff\xfe", b'{"it": "\xff"}', b'{"it": 1, "x": "\xff"}'])
def test_bytes_must_be_utf8_everywhere(record: bytes) -> None:
    parsed = parse([field("it", "string")], record, b'{"it": "a"}')
    assert parsed.unreadable == {0: "not valid UTF-8"}
    assert values(parsed) == [None, "a"]


def test_fields_that_nobody_wants_may_be_nested_deeply() -> None:
    parsed = parse([field("it", "int")], b'{"it": 1, "x": ' + b"[" * 900 + b"]" * 900 + b"}")
    assert (values(parsed), parsed.unreadable) == ([1], {})


def test_a_bad_field_does_not_cost_the_others() -> None:
    fields = [field("a", "int"), field("b", "decimal(5,2)"), field("c.d", "array<date>")]
    parsed = parse(fields, '{"a": "x", "b": "1.5", "c": {"d": ["2026-01-31"]}}')
    assert [values(parsed, number)[0] for number in range(3)] == [
        None,
        Decimal("1.50"),
        [date(2026, 1, 31)],
    ]


def test_numbers_keep_their_digits() -> None:
    fields = [field("exact", "decimal(38,10)"), field("near", "double")]
    digits = "1234567890123456789012345678.0123456789"
    parsed = parse(fields, f'{{"exact": {digits}, "near": 0.1}}')
    assert [str(values(parsed)[0]), values(parsed, 1)[0]] == [digits, 0.1]


@pytest.mark.parametrize("odd", ["[1,\n2]", "null", None])
def test_a_value_of_several_lines_moves_no_neighbour(odd: str | None) -> None:
    records = [f'{{"it": {each}}}' if each else "{}" for each in ("1", odd, "2")]
    parsed = parse([field("it", "decimal(5,1)")], *records)
    assert values(parsed) == [Decimal("1.0"), None, Decimal("2.0")]


def test_the_last_of_two_fields_of_one_name_counts() -> None:
    fields = [field("it", "int"), field("in.a", "int")]
    parsed = parse(fields, '{"it": "x", "it": 2, "in": {"a": 1}, "in": {}}', '{"it": 1, "it": 2}')
    assert (values(parsed), values(parsed, 1), parsed.misfits) == ([2, 2], [None, None], [{}, {}])


def test_nested_fields_and_odd_names_are_found() -> None:
    fields = [field("address.city", "string"), field('@type "x"', "string")]
    whole = {"address": {"city": "Delft"}, '@type "x"': "p"}
    parsed = parse(
        fields,
        json.dumps(whole),
        *('{"address": "none"}', '{"address": null}', '{"address": {}}', "{}"),
    )
    assert values(parsed) == ["Delft", None, None, None, None]
    assert values(parsed, 1)[0] == "p"
    assert parsed.misfits == [{}, {}]


def test_columns_may_want_one_field_in_different_types() -> None:
    fields = [
        *(field("a", "decimal(5,2)"), field("a", "double"), field("a", "bigint")),
        *(field("b", "string"), field("b.c", "int"), field("b.c", "string")),
        *(field("d", "string"), field("d.e", "string")),
    ]
    parsed = parse(
        fields, '{"a": 1.5, "b": {"c": 5}, "d": {"e": "x"}}', '{"a": "2", "b": "x", "d": "y"}', "{}"
    )
    assert values(parsed, 0) == [Decimal("1.50"), Decimal("2.00"), None]
    assert values(parsed, 1) == [1.5, None, None]
    assert values(parsed, 3) == [None, "x", None]
    assert values(parsed, 4) == [5, None, None]
    assert [values(parsed, number) for number in (6, 7)] == [[None, "y", None], ["x", None, None]]
    misfits = [sorted(misfits) for misfits in parsed.misfits]
    assert misfits == [[], [1], [0, 1], [0], [], [0], [0], []]


def test_fields_that_are_not_declared_are_named() -> None:
    parsed = parse([field("a.x", "int")], '{"a": 1}', '{"a": {"y": 1}, "b": 2, "c": 3}', "[]", "{")
    assert parsed.undeclared == {"b", "c"}


@pytest.mark.parametrize(
    ("epoch", "number"),
    [
        ("seconds", "1769853600"),
        ("seconds", "1769853600.000000"),
        ("seconds", "1.7698536e9"),
        ("milliseconds", "1769853600000"),
        ("microseconds", "1769853600000000"),
    ],
)
def test_a_number_is_a_time_by_its_epoch(epoch: str, number: str) -> None:
    parsed = parse(
        [field("it", "timestamp", epoch)],
        f'{{"it": {number}}}',
        '{"it": "2026-01-31T10:00:00Z"}',
        f'{{"it": "{number}"}}',
        '{"it": true}',
        '{"it": 1e99}',
    )
    assert values(parsed) == [TEN_O_CLOCK, TEN_O_CLOCK, None, None, None]
    assert list(parsed.misfits[0].values()) == [
        "string, not timestamp",
        "boolean, not timestamp",
        "number, not timestamp",
    ]


def test_a_fraction_of_a_second_is_kept() -> None:
    seconds = parse([field("it", "timestamp", "seconds")], '{"it": 1769853600.123456}')
    milliseconds = parse([field("it", "timestamp", "milliseconds")], '{"it": 1769853600123.456}')
    expected = TEN_O_CLOCK.replace(microsecond=123456)
    assert values(seconds) == values(milliseconds) == [expected]


def test_a_number_without_an_epoch_is_no_time() -> None:
    parsed = parse([field("it", "timestamp")], '{"it": 1769853600}')
    assert parsed.misfits[0] == {0: "number, not timestamp unless epoch is set"}
