"""Protobuf by a registry's descriptors, decoded strictly."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError

from ingestion.formats import Field, Parsed, Payloads
from ingestion.formats.protobuf import RegistryProtobufDecoder
from ingestion.formats.registry import Registry
from ingestion.settings import Settings
from tests.unit.registry_server import RegistryServer, protobuf_answer, registry_server
from tests.unit.test_avro import rows

F = FieldDescriptorProto
MOMENT = datetime(2026, 1, 31, 10, 0, 0, 250_000, tzinfo=UTC)
TYPES = {
    "int32": F.TYPE_INT32, "sint32": F.TYPE_SINT32, "uint32": F.TYPE_UINT32,
    "int64": F.TYPE_INT64, "uint64": F.TYPE_UINT64, "fixed64": F.TYPE_FIXED64,
    "float": F.TYPE_FLOAT, "double": F.TYPE_DOUBLE, "bool": F.TYPE_BOOL,
    "string": F.TYPE_STRING, "bytes": F.TYPE_BYTES,
}  # fmt: skip


def add_field(message: Any, name: str, kind: str, repeated: bool = False) -> Any:
    field = message.field.add(name=name, number=len(message.field) + 1, label=F.LABEL_OPTIONAL)
    if repeated:
        field.label = F.LABEL_REPEATED
    if kind in TYPES:
        field.type = TYPES[kind]
    else:
        field.type, field.type_name = (F.TYPE_ENUM if "Color" in kind else F.TYPE_MESSAGE), kind
    return field


def add_map(message: Any, name: str, value: str, key: str = "string") -> None:
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    add_field(entry, "key", key)
    add_field(entry, "value", value)
    add_field(message, name, f".shop.{message.name}.{entry.name}", repeated=True)


def shop_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(
        ["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto", "money.proto"]
    )
    color = file.enum_type.add(name="Color")
    for number, name in enumerate(("RED", "GREEN")):
        color.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    for kind in TYPES:
        add_field(order, f"a_{kind}", kind)
    add_field(order, "color", ".shop.Color")
    add_field(order, "at", ".google.protobuf.Timestamp")
    add_field(order, "wrapped", ".google.protobuf.Int64Value")
    add_field(order, "price", ".money.Money")
    add_field(order, "prices", ".money.Money", repeated=True)
    add_field(order, "tags", "string", repeated=True)
    add_field(order, "ids", "uint64", repeated=True)
    add_field(order, "colors", ".shop.Color", repeated=True)
    add_map(order, "counts", "int32")
    add_map(order, "byid", "string", key="int32")
    order.oneof_decl.add(name="_maybe")
    maybe = add_field(order, "maybe", "int32")
    maybe.oneof_index, maybe.proto3_optional = 0, True
    add_field(order.nested_type.add(name="Line"), "text", "string")
    add_field(file.message_type.add(name="Other"), "text", "string")
    return file


def money_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="money.proto", package="money", syntax="proto3")
    add_field(file.message_type.add(name="Money"), "cents", "int64")
    return file


def message_class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(money_file())
    pool.Add(shop_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


Order = message_class("shop.Order")


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        reference = {"name": "money.proto", "subject": "money", "version": 1}
        running.register_file(1, shop_file(), references=[reference])
        running.subjects["money", 1] = protobuf_answer(money_file())
        yield running


@pytest.fixture
def registry(server: RegistryServer) -> Registry:
    return Registry(Settings(schema_registry_url=server.url))


def framed(body: bytes, place: bytes = b"\0", number: int = 1) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + place + body


def parse(registry: Registry, fields: list[Field], *payloads: bytes | None) -> Parsed:
    return RegistryProtobufDecoder(registry, fields).parse(Payloads.of(list(payloads)))


def parse_it(registry: Registry, path: str, kind: str, **values: Any) -> tuple[Any, str | None]:
    epoch = "seconds" if path == "a_int64" and kind == "timestamp" else None
    field = Field(tuple(path.split(".")), kind, epoch)
    parsed = parse(registry, [field], framed(Order(**values).SerializeToString()))
    assert not parsed.unreadable
    return parsed.columns[0][0].as_py(), parsed.misfits[0].get(0)


@pytest.mark.parametrize(
    ("path", "kind", "values", "expected"),
    [
        ("a_int32", "int", {"a_int32": -5}, -5),
        ("a_sint32", "bigint", {"a_sint32": -5}, -5),
        ("a_uint32", "bigint", {"a_uint32": 2**32 - 1}, 2**32 - 1),
        ("a_int64", "bigint", {"a_int64": -(2**63)}, -(2**63)),
        ("a_int64", "double", {"a_int64": 5}, 5.0),
        ("a_int64", "timestamp", {"a_int64": 0}, datetime(1970, 1, 1, tzinfo=UTC)),
        ("a_uint64", "bigint", {"a_uint64": 2**63 - 1}, 2**63 - 1),
        ("a_float", "double", {"a_float": 1.5}, 1.5),
        ("a_double", "double", {"a_double": 1.5}, 1.5),
        ("a_bool", "boolean", {"a_bool": True}, True),
        ("a_string", "string", {"a_string": "é"}, "é"),
        ("a_bytes", "binary", {"a_bytes": b"\xff\0"}, b"\xff\0"),
        ("color", "string", {"color": 1}, "GREEN"),
        ("at", "timestamp", {"at": MOMENT}, MOMENT),
        ("at.nanos", "int", {"at": MOMENT}, 250_000_000),
        ("wrapped", "bigint", {"wrapped": {"value": 7}}, 7),
        ("price.cents", "bigint", {"price": {"cents": 7}}, 7),
        ("tags", "array<string>", {"tags": ["a", "é"]}, ["a", "é"]),
        ("colors", "array<string>", {"colors": [1, 0]}, ["GREEN", "RED"]),
        ("counts", "map<string,int>", {"counts": {"a": 1}}, [("a", 1)]),
        ("maybe", "int", {"maybe": 0}, 0),
        # What a message does not have, and what proto3 does not write because it is the default:
        ("maybe", "int", {}, None),
        ("at", "timestamp", {}, None),
        ("wrapped", "bigint", {}, None),
        ("price.cents", "bigint", {}, None),
        ("no", "int", {}, None),
        ("tags.no", "int", {"tags": ["a"]}, None),
        ("prices.cents", "bigint", {"prices": [{"cents": 7}]}, None),
        ("a_int32", "int", {}, 0),
        ("a_string", "string", {}, ""),
        ("color", "string", {}, "RED"),
        ("tags", "array<string>", {}, []),
        ("counts", "map<string,int>", {}, []),
        ("price.cents", "bigint", {"price": {}}, 0),
    ],
)
def test_protobuf_types_become_the_declared_type(
    registry: Registry, path: str, kind: str, values: dict[str, Any], expected: Any
) -> None:
    assert parse_it(registry, path, kind, **values) == (expected, None)


@pytest.mark.parametrize(
    ("path", "kind", "values", "misfit"),
    [
        ("a_uint32", "int", {}, "bigint, not int"),
        ("a_double", "float", {}, "double, not float"),
        ("a_string", "int", {}, "string, not int"),
        ("a_bytes", "string", {}, "binary, not string"),
        ("a_int32", "timestamp", {}, "number, not timestamp unless epoch is set"),
        ("a_uint64", "bigint", {"a_uint64": 2**63}, "bigint out of range, not bigint"),
        ("ids", "array<bigint>", {"ids": [1, 2**63]},
         "array<bigint> with an unusable element, not array<bigint>"),
        ("color", "string", {"color": 7}, "unknown symbol, not string"),
        ("price", "string", {"price": {}}, "record, not string"),
        ("price.cents", "string", {"price": {}}, "bigint at price.cents, not string"),
        ("byid", "map<string,string>", {"byid": {1: "a"}}, "record, not map<string,string>"),
        ("at", "timestamp", {"at": {"seconds": 2**62}}, "timestamp out of range, not timestamp"),
    ],
)  # fmt: skip
def test_what_the_declared_type_does_not_take_is_a_misfit(
    registry: Registry, path: str, kind: str, values: dict[str, Any], misfit: str
) -> None:
    assert parse_it(registry, path, kind, **values) == (None, misfit)


def test_broken_messages_are_error_rows_and_keep_their_place(registry: Registry) -> None:
    whole = Order(a_string="a", price={"cents": 7}).SerializeToString()
    payloads = [
        framed(whole),
        framed(whole[:-1]),
        framed(whole + b"\0"),
        framed(whole + b"\xfa\x7f\x01x"),  # a field that the schema does not have
        framed(b'{"a_string": "a"}'),
        framed(Order(a_string="a").SerializeToString().replace(b"a", b"\xff")),
        None,
        b"",
        framed(whole)[:5],
        b"\1" + framed(whole)[1:],
        framed(whole, b"\x02\x7f"),
        framed(whole, b"\xff" * 40),
        framed(whole, number=9),
        framed(whole),
    ]
    fields = [Field(("a_string",), "string")]
    parsed = parse(registry, fields, *payloads)
    assert [row[0] for row in rows(parsed)] == ["a", *[None] * 12, "a"]
    assert sorted(parsed.unreadable) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]
    assert {parsed.unreadable[row] for row in range(1, 6)} == {"not a whole shop.Order message"}
    assert all("not framed" in parsed.unreadable[row] for row in (7, 8, 9, 11))
    assert parsed.unreadable[10] == "schema 1 has no message at [-64]"
    assert parsed.unreadable[12] == "the registry has no schema 9"


@pytest.mark.parametrize(
    ("place", "name"),
    [(b"\0", "Order"), (b"\x02\0", "Order"), (b"\x02\x02", "Other"), (b"\x04\0\x04", "Order.Line")],
)
def test_the_message_is_the_one_that_the_record_names(
    registry: Registry, place: bytes, name: str
) -> None:
    found = "a_string" if name == "Order" else "text"
    body = message_class(f"shop.{name}")(**{found: "t"}).SerializeToString()
    parsed = parse(registry, [Field((found,), "string")], framed(body, place))
    assert (rows(parsed), parsed.unreadable) == ([("t",)], {})


def test_a_single_message_is_read_for_people(registry: Registry) -> None:
    decoder = RegistryProtobufDecoder(registry, [])
    assert decoder.message(framed(Order(a_string="a").SerializeToString())).a_string == "a"
    with pytest.raises(DecodeError):
        decoder.message(framed(b"{"))


def test_fields_that_no_column_takes_are_named(registry: Registry) -> None:
    assert parse(registry, [], framed(b"", b"\x02\x02")).undeclared == {"text"}


def test_proto2_text_that_is_not_utf8_is_a_misfit(
    server: RegistryServer, registry: Registry
) -> None:
    file = FileDescriptorProto(name="old.proto", syntax="proto2")
    message = file.message_type.add(name="Old")
    add_field(message, "text", "string")
    add_field(message, "many", "string", repeated=True)
    server.register_file(2, file)
    fields = [Field(("text",), "string"), Field(("many",), "array<string>")]
    payloads = [b"\x0a\x01a", b"\x0a\x01\xff", b"\x12\x01\xff", b""]
    parsed = parse(registry, fields, *(framed(payload, number=2) for payload in payloads))
    assert rows(parsed) == [("a", []), (None, []), (None, None), (None, [])]
    assert [sorted(misfits) for misfits in parsed.misfits] == [[1], [2]]


def test_a_schema_without_its_descriptor_makes_rows_that_name_the_next_step(
    server: RegistryServer, registry: Registry
) -> None:
    server.register_file(2, money_file(), serialized=False)
    file = FileDescriptorProto(name="lost.proto", syntax="proto3", dependency=["no/where.proto"])
    file.message_type.add(name="Lost")
    server.register_file(3, file)
    server.register(4, {"type": "string"})
    payloads = [framed(b"", number=number) for number in (2, 3, 4)]
    reasons = parse(registry, [Field(("cents",), "bigint")], *payloads).unreadable
    assert "only" in reasons[0]
    assert "headwater replay" in reasons[0]
    assert "no/where.proto" in reasons[1]
    assert reasons[2] == "schema 4 cannot be read: its type is AVRO, not PROTOBUF"


def test_no_bytes_raise(registry: Registry) -> None:
    chance = random.Random(3)  # noqa: S311
    whole = Order(
        a_string="text", at=MOMENT, counts={"a": 1}, ids=[1, 2], price={"cents": 5}, color=1
    ).SerializeToString()
    payloads = []
    for _ in range(2_000):
        raw = bytearray(framed(whole))
        for _ in range(chance.randrange(4)):
            raw[chance.randrange(4, len(raw))] = chance.randrange(256)
        payloads.append(bytes(raw[: chance.choice([len(raw), chance.randrange(len(raw))])]))
    paths = {"a_string": "string", "at": "timestamp", "counts": "map<string,int>"}
    paths |= {"ids": "array<bigint>", "price.cents": "bigint", "color": "string"}
    fields = [Field(tuple(path.split(".")), kind) for path, kind in paths.items()]
    parsed = parse(registry, fields, *payloads)
    assert 0 < len(parsed.unreadable) < len(payloads)
    assert {len(column) for column in parsed.columns} == {len(payloads)}
