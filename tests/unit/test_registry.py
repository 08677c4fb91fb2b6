"""Schemas from a registry, over HTTP, and the records that name them."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from ingestion.errors import HeadwaterError
from ingestion.formats import Field, Payloads
from ingestion.formats import registry as module
from ingestion.formats.avro import RegistryAvroDecoder
from ingestion.formats.registry import Registry
from ingestion.settings import Settings
from tests.unit.registry_server import RegistryServer, registry_server
from tests.unit.test_avro import AVRO, FIELDS, NEWER, NOT_WHOLE, avro, rows, write

OTHER = {**AVRO, "fields": [{"name": "id", "type": "long"}, *AVRO["fields"][1:]]}
RECURSIVE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}
MANY = 100


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setattr(module, "BACKOFF_SECONDS", 0)
    with registry_server() as running:
        yield running


@pytest.fixture
def registry(server: RegistryServer) -> Registry:
    return Registry(Settings(schema_registry_url=server.url))


@pytest.fixture
def decoder(registry: Registry) -> RegistryAvroDecoder:
    return RegistryAvroDecoder(registry, [*FIELDS, Field(("unit",), "string")])


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def test_each_record_by_the_schema_that_it_names(
    server: RegistryServer, decoder: RegistryAvroDecoder
) -> None:
    for number, schema in {1: AVRO, 2: NEWER, 3: OTHER, 4: RECURSIVE, 5: "nonsense"}.items():
        server.register(number, schema)
    server.register(6, {}, schemaType="JSON")
    payloads = [
        framed(1, avro()),
        framed(2, avro(NEWER, unit="C")),
        framed(3, avro(OTHER, id=7)),
        framed(9, avro()),
        framed(4, b"\0"),
        framed(5, b"\0"),
        framed(6, b"\0"),
        b"\1" + framed(1, avro())[1:],
        b"\0\0\0",
        b"",
        framed(1, avro()[:-2]),
        framed(2**32 - 1, b""),
        None,
        framed(1, avro()),
    ]
    parsed = decoder.parse(Payloads.of(payloads))
    good = ("a", 1, None, [("x", "y")])
    found = rows(parsed)
    assert found[:3] == [(*good, None), (*good, "C"), (None, *good[1:], None)]
    assert found[3:] == [(None,) * 5] * 10 + [(*good, None)]
    assert parsed.misfits == [{2: "bigint, not string"}, {}, {}, {}, {}]
    reasons = parsed.unreadable
    assert sorted(reasons) == list(range(3, 12))
    assert reasons[3] == "the registry has no schema 9"
    assert reasons[4].startswith("schema 4 cannot be read: Node contains itself")
    assert reasons[5].startswith("schema 5 cannot be read: ")
    assert reasons[6] == "schema 6 cannot be read: its type is JSON, not AVRO"
    assert "not framed" in reasons[7]
    assert reasons[7] == reasons[8] == reasons[9]
    assert reasons[10] == NOT_WHOLE
    assert reasons[11] == "the registry has no schema 4294967295"


def test_results_are_put_back_in_their_places(
    server: RegistryServer, decoder: RegistryAvroDecoder
) -> None:
    server.register(1, AVRO)
    server.register(2, NEWER)
    chance = random.Random(5)  # noqa: S311
    wanted = [(str(number), chance.choice([None, "C"])) for number in range(MANY * 5)]
    payloads = [
        framed(2, avro(NEWER, id=name, unit=unit)) if unit else framed(1, avro(id=name))
        for name, unit in wanted
    ]
    assert [(row[0], row[4]) for row in rows(decoder.parse(Payloads.of(payloads)))] == wanted


def test_fields_that_no_column_takes_are_named(server: RegistryServer, registry: Registry) -> None:
    server.register(1, AVRO)
    server.register(2, NEWER)
    decoder = RegistryAvroDecoder(registry, FIELDS)
    assert decoder.parse(Payloads.of([framed(1, avro())])).undeclared == set()
    both = [framed(1, avro()), framed(2, avro(NEWER, unit="C"))]
    assert decoder.parse(Payloads.of(both)).undeclared == {"unit"}


def test_a_schema_is_asked_for_once(server: RegistryServer, decoder: RegistryAvroDecoder) -> None:
    server.register(1, AVRO)
    for _ in range(3):
        decoder.parse(Payloads.of([framed(1, avro())] * 3))
    assert server.asked == ["/schemas/ids/1"]


def test_an_unknown_id_is_asked_for_again_after_a_while(
    server: RegistryServer, decoder: RegistryAvroDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = framed(7, avro())
    for _ in range(3):
        assert decoder.parse(Payloads.of([payload])).unreadable
    assert server.asked == ["/schemas/ids/7"]
    server.register(7, AVRO)
    assert decoder.parse(Payloads.of([payload])).unreadable
    now = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + module.MISSING_SECONDS)
    assert not decoder.parse(Payloads.of([payload])).unreadable


def test_made_up_ids_do_not_flood_the_registry(
    server: RegistryServer, decoder: RegistryAvroDecoder
) -> None:
    server.register(1, AVRO)
    made_up = [framed(number, b"") for number in range(1_000_000, 1_002_000)]
    parsed = decoder.parse(Payloads.of([*made_up, framed(1, avro())]))
    assert len(server.asked) == module.MOST_MISSING + 1
    assert sorted(parsed.unreadable) == list(range(len(made_up)))
    assert "not looked up" in parsed.unreadable[1_999]
    assert "headwater replay" in parsed.unreadable[1_999]


MONEY = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}


def order(**references: str) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in references.items()]
    return {"type": "record", "name": "shop.Order", "fields": fields}


def reference(name: str, subject: str) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": 3}


def test_references_are_followed_each_of_them_once(
    server: RegistryServer, registry: Registry
) -> None:
    """Two schemas refer to a third, and the record to all of them."""
    tax = {"type": "record", "name": "shop.Tax", "fields": [{"name": "of", "type": "Money"}]}
    to_money = reference("shop.Money", "money")
    whole = order(net="Money", tax=["null", "Tax"])  # type: ignore[arg-type]
    server.register(5, whole, references=[reference("shop.Tax", "tax"), to_money])
    server.subjects["money", 3] = {"schema": json.dumps(MONEY)}
    server.subjects["tax", 3] = {"schema": json.dumps(tax), "references": [to_money]}
    fields = [Field(("net", "cents"), "bigint"), Field(("tax", "of", "cents"), "bigint")]
    body = write("long", 5) + b"\x02" + write("long", 7)
    decoder = RegistryAvroDecoder(registry, fields)
    assert rows(decoder.parse(Payloads.of([framed(5, body)] * MANY))) == [(5, 7)] * MANY
    assert len(server.asked) == 3


def test_a_missing_reference_makes_error_rows(server: RegistryServer, registry: Registry) -> None:
    server.register(1, AVRO)
    server.register(5, order(net="Money"), references=[reference("shop.Money", "money")])
    parsed = RegistryAvroDecoder(registry, FIELDS).parse(
        Payloads.of([framed(5, b"\0"), framed(1, avro())])
    )
    reason = "schema 5 cannot be read: the registry has no version 3 of money"
    assert parsed.unreadable == {0: reason}
    assert rows(parsed)[1][0] == "a"


def test_a_registry_that_is_away_stops_the_stream(
    server: RegistryServer, decoder: RegistryAvroDecoder
) -> None:
    server.register(1, AVRO)
    server.broken = True
    with pytest.raises(HeadwaterError) as caught:
        decoder.parse(Payloads.of([framed(1, avro())]))
    assert server.url in caught.value.message
    assert "HEADWATER_SCHEMA_REGISTRY_URL" in caught.value.hint
    server.broken = False
    assert not decoder.parse(Payloads.of([framed(1, avro())])).unreadable


def test_a_password_is_sent_and_a_wrong_one_is_never_shown() -> None:
    with registry_server(login="me:hidden") as server:
        server.register(1, AVRO)
        login = {"schema_registry_url": server.url, "schema_registry_username": "me"}
        right = Settings(**login, schema_registry_password=SecretStr("hidden"))
        assert Registry(right).avro(1) == [AVRO]
        wrong = Settings(**login, schema_registry_password=SecretStr("bad!"))
        with pytest.raises(HeadwaterError) as caught:
            Registry(wrong).avro(1)
        assert "bad!" not in caught.value.message + caught.value.hint + repr(wrong)
        assert "401" in caught.value.message


def test_without_an_address_the_setting_is_named() -> None:
    with pytest.raises(HeadwaterError) as caught:
        Registry(Settings())
    assert "HEADWATER_SCHEMA_REGISTRY_URL" in caught.value.hint
