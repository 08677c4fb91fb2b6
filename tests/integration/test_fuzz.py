"""No bytes stop a stream, and every record is accounted for."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ingestion.errors import ERROR_TYPES
from ingestion.settings import Settings
from ingestion.stream import load_stream
from tests.integration.outside import assert_table_is_topic, drop, land, read_table, send
from tests.integration.registry_server import registry_server
from tests.integration.test_formats import AVRO, avro, framed

PAYLOADS = 100_000

COLUMNS = """\
columns:
  s: {{type: string, description: S., from: {s}}}
  i: {{type: int, description: I., from: {i}, optional: true}}
  d: {{type: "decimal(12,4)", description: D., from: {d}, optional: true}}
  t: {{type: timestamp, description: T., from: {d}, optional: true}}
  f: {{type: double, description: F., from: {d}, optional: true}}
  x: {{type: int, description: X., expression: "xpath_int(s, 'a') + element_at(array(1), i)", optional: true}}
rules:
  odd: "s not like 'z%' and (i is null or i % 7 <> 3)"
"""  # noqa: E501

AVRO_COLUMNS = """\
columns:
  id: {type: string, description: Id.}
  count: {type: int, description: Count.}
  note: {type: string, description: Note., optional: true}
  tags: {type: "map<string,string>", description: Tags., optional: true}
"""


def payloads(chance: random.Random) -> Iterator[bytes | None]:
    """Random bytes, broken and odd JSON, Avro good and broken, tombstones, empty values."""
    nesting = [b"[" * 900 + b"]" * 900, b'{"s":' * 2000 + b"1" + b"}" * 2000, b"[" * 5000]
    huge = [
        b'{"s": "' + b"x" * 500_000 + b'"}',
        b'{"s": "a", "i": ' + b"9" * 100_000 + b"}",
        b'{"s": "a", "d": 1e' + b"9" * 300 + b"}",
        b"x" * 900_000,
    ]
    for number in range(PAYLOADS):
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
                yield _json(chance)


def _json(chance: random.Random) -> bytes:
    odd = [
        '"z"',
        '"\\ud800"',
        "1e999999999",
        "-1e-999999999",
        "null",
        "true",
        "[]",
        "{}",
        '"\\u0000"',
    ]
    odd += ['"2026-01-05T10:00:00Z"', "99999999999999999999999", "0.1", '"NaN"', "12", '"<a"']
    text = "{" + ", ".join(
        f'"{name}": {chance.choice(odd)}' for name in "sidt" if chance.random() < 0.8
    )
    raw = (text + "}").encode()
    if chance.random() < 0.4:  # break it somewhere
        place = chance.randrange(len(raw))
        raw = (
            raw[:place] + chance.randbytes(chance.randrange(3)) + raw[place + chance.randrange(3) :]
        )
    return raw


@pytest.fixture(scope="module")
def topic(settings: Settings) -> str:
    name = f"fuzz-{uuid4().hex[:8]}"
    send(settings, name, *payloads(random.Random(77)))  # noqa: S311
    return name


@pytest.mark.parametrize("kind", ["json", "text", "avro", "registry"])
def test_every_payload_is_accounted_for(
    settings: Settings, topic: str, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "fuzz.avsc").write_text(json.dumps(AVRO))
    value, columns = {
        "json": ("format: json", COLUMNS.format(s="value.s", i="value.i", d="value.d")),
        "text": ("format: text", COLUMNS.format(s="value", i="value", d="value")),
        "avro": ("format: avro, schema: fuzz.avsc", AVRO_COLUMNS),
        "registry": ("format: avro, schema: registry", AVRO_COLUMNS),
    }[kind]
    if kind == "text":  # text that is no number is of another type; only the string is wanted here
        columns = columns.split("  i:")[0]
    name = f"fuzz_{kind}_{uuid4().hex[:6]}"
    file = tmp_path / f"{name}.yml"
    file.write_text(f"description: F.\ntopic: {topic}\nvalue: {{{value}}}\n{columns}")
    try:
        with registry_server() as server:
            server.register(1, AVRO)
            server.register(2, {"type": "string"})
            changed = settings.model_copy(update={"schema_registry_url": server.url})
            run = land(changed, load_stream(file))
        assert assert_table_is_topic(settings, f"bronze.{name}", topic) == PAYLOADS
        assert run.progress.rows == PAYLOADS
        found = read_table(settings, f"bronze.{name}", "_error_type", "_error_message").to_pylist()
        good = sum(row["_error_type"] is None for row in found)
        assert 0 < good < PAYLOADS
        assert {row["_error_type"] for row in found} <= {None, *ERROR_TYPES}
        assert all(bool(row["_error_message"]) == bool(row["_error_type"]) for row in found)
        assert sum(run.progress.errors.values()) == PAYLOADS - good
    finally:
        drop(settings, f"bronze.{name}")
