"""No bytes stop a stream: every record is accounted for, and all ways to read JSON agree."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingestion.errors import ERROR_TYPES
from ingestion.formats import Field, Parsed, Payloads
from ingestion.formats import json as json_format
from ingestion.formats.json import JsonDecoder
from ingestion.formats.registry import Registry
from ingestion.settings import Settings
from tests.unit.decoding import decode_block, make_stream
from tests.unit.registry_server import registry_server
from tests.unit.test_avro import AVRO, avro

PAYLOADS = 40_000
BLOCK = 8_000

COLUMNS = """\
s: {{type: string, description: S., from: {s}}}
i: {{type: int, description: I., from: {i}, optional: true}}
d: {{type: "decimal(12,4)", description: D., from: {d}, optional: true}}
t: {{type: timestamp, description: T., from: {d}, optional: true}}
f: {{type: double, description: F., from: {d}, optional: true}}
x: {{type: int, description: X., expression: "json_extract(s, 'a')::int + [1][i]", optional: true}}
"""
RULES = """rules: {odd: "not starts_with(s, 'z') and (i is null or i % 7 <> 3)"}"""

AVRO_COLUMNS = """\
id: {type: string, description: Id.}
count: {type: int, description: Count.}
note: {type: string, description: Note., optional: true}
tags: {type: "map<string,string>", description: Tags., optional: true}
"""

STREAMS = {
    "json": ("format: json", COLUMNS.format(s="value.s", i="value.i", d="value.d"), RULES),
    "text": ("format: text", COLUMNS.split("i:")[0].format(s="value"), ""),
    "avro": ("format: avro, schema: fuzz.avsc", AVRO_COLUMNS, ""),
    "registry": ("format: avro, schema: registry", AVRO_COLUMNS, ""),
}

ODD = ['"z"', '"\\ud800"', "1e999999999", "-1e-999999999", "null", "true", "[]", "{}", '"\\u0000"']
ODD += ['"2026-01-05T10:00:00Z"', "99999999999999999999999", "0.1", "5.0", '"NaN"', "12", '"[1]"']
ODD += [
    '"1e-999999999"',
    '["a", 1]',
    '{"a": "2026-01-31"}',
    '"0.1"',
    "-0.0",
    "1769853600000",
    "[5]",
]
ODD += ["[[[[]]]]", '["2026-01-31", null]', '{"a": null, "b": {}}', '"9999-12-31"', "1.00000001"]


def payloads(chance: random.Random, count: int) -> Iterator[bytes | None]:
    """Random bytes, broken and odd JSON, Avro good and broken, tombstones, empty values."""
    nesting = [b"[" * 900 + b"]" * 900, b'{"s":' * 2000 + b"1" + b"}" * 2000, b"[" * 5000]
    huge = [
        b'{"s": "' + b"x" * 500_000 + b'"}',
        b'{"s": "a", "i": ' + b"9" * 100_000 + b"}",
        b'{"s": "a", "d": "' + b"9" * 100_000 + b'x"}',
        b'{"s": "a", "d": 1e' + b"9" * 300 + b"}",
        b"x" * 900_000,
    ]
    for number in range(count):
        if number % 5000 == 0:
            yield chance.choice(huge)
            continue
        match chance.randrange(14):
            case 0:
                yield chance.randbytes(chance.randrange(60))
            case 1:
                yield None
            case 2:
                yield b""
            case 3:
                yield chance.choice(nesting) if number % 20 == 0 else b"[[[{}]]]"
            case 4:
                yield avro(id=str(number), note="n" * chance.randrange(9))
            case 5:
                whole = avro(id=str(number))
                yield whole[: chance.randrange(len(whole))] + chance.randbytes(chance.randrange(5))
            case 6:
                yield framed(chance.choice([1, 1, 2, 99]), avro(id=str(number)))
            case 7:
                yield framed(1, chance.randbytes(chance.randrange(30)))
            case _:
                yield odd_json(chance)


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def odd_json(chance: random.Random) -> bytes:
    fields = [f'"{name}": {chance.choice(ODD)}' for name in "sidts" if chance.random() < 0.8]
    raw = ("{" + ", ".join(fields) + "}").encode()
    if chance.random() < 0.3:  # break it somewhere
        place = chance.randrange(len(raw))
        junk = chance.randbytes(chance.randrange(3))
        raw = raw[:place] + junk + raw[place + chance.randrange(3) :]
    return raw


@pytest.mark.parametrize("kind", list(STREAMS))
def test_every_payload_is_accounted_for(tmp_path: Path, kind: str) -> None:
    (tmp_path / "fuzz.avsc").write_text(json.dumps(AVRO))
    value, columns, rules = STREAMS[kind]
    stream = make_stream(tmp_path, columns, value, rules)
    everything = list(payloads(random.Random(77), PAYLOADS))  # noqa: S311
    good = 0
    with registry_server() as server:
        server.register(1, AVRO)
        server.register(2, {"type": "string"})
        registry = Registry(Settings(schema_registry_url=server.url))
        for start in range(0, PAYLOADS, BLOCK):
            some = everything[start : start + BLOCK]
            block = decode_block(stream, *some, registry=registry)
            block.rows.validate(full=True)
            assert block.rows["_kafka_value"].to_pylist() == some
            types = block.rows["_error_type"].to_pylist()
            messages = block.rows["_error_message"].to_pylist()
            assert set(types) <= {None, *ERROR_TYPES}
            assert [bool(message) for message in messages] == [bool(type_) for type_ in types]
            assert sum(block.errors.values()) == BLOCK - types.count(None)
            good += types.count(None)
    assert 0 < good < PAYLOADS


KINDS = ["string", "boolean", "int", "bigint", "float", "double", "decimal(5,2)", "decimal(38,0)"]
KINDS += ["date", "timestamp", "map<string,date>", "map<string,int>", "array<string>", "array<int>"]


def verdicts(parsed: Parsed) -> list[Any]:
    columns = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in parsed.columns
    ]
    wrong = (*parsed.misfits, parsed.unreadable, parsed.misshapen)
    return [[row, [each.get(index) for each in wrong]]
            for index, row in enumerate(zip(*columns, strict=True))]  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, "epoch"])
def test_all_ways_to_read_json_agree(kind: str) -> None:
    chance = random.Random(kind)  # noqa: S311
    some = [odd_json(chance) for _ in range(1_000)]
    epoch = "milliseconds" if kind == "epoch" else None
    kind = "timestamp" if epoch else kind
    fields = [Field((name,), kind, epoch) for name in "sid"]
    decoder, judge = JsonDecoder(fields), JsonDecoder(fields)
    judge._read = json_format._refuse
    together = verdicts(decoder.parse(Payloads.of([*some])))
    assert together == verdicts(judge.parse(Payloads.of([*some])))
    assert together == [verdicts(decoder.parse(Payloads.of([payload])))[0] for payload in some]
    values = [value for row, _ in together for value in row]
    assert any(value is not None for value in values)
