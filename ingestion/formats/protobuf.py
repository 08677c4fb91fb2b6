"""Protobuf with the id of its schema in front, and the place of the message in that schema."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

import pyarrow as pa
from google.protobuf import (  # type: ignore[import-untyped]  # known types, for schemas to import
    any_pb2,  # noqa: F401
    api_pb2,  # noqa: F401
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,  # noqa: F401
    empty_pb2,  # noqa: F401
    field_mask_pb2,  # noqa: F401
    message_factory,
    struct_pb2,  # noqa: F401
    timestamp_pb2,  # noqa: F401
    type_pb2,  # noqa: F401
    unknown_fields,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ingestion.formats import Field, Parsed
from ingestion.formats.binary import Kind, array_of, column, map_of, plain_type
from ingestion.formats.registry import FRAME_BYTES, RegistryDecoder, UnusableSchemaError

MOST_NESTED = 100  # levels of messages, as Protobuf itself allows
KINDS = {
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "binary",
    FieldDescriptor.TYPE_ENUM: "string",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_INT32: "int",
    FieldDescriptor.TYPE_SINT32: "int",
    FieldDescriptor.TYPE_SFIXED32: "int",
}  # other numbers are bigint
BEYOND = 2**63  # microseconds that no timestamp can hold
UNSIGNED = (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)
WRAPPERS = {f"google.protobuf.{name}" for name in wrappers_pb2.DESCRIPTOR.message_types_by_name}
TIMESTAMP = "google.protobuf.Timestamp"

Take = Callable[[Any], Any]  # a value of a message as a plain one


class RegistryProtobufDecoder(RegistryDecoder):
    """Messages by the schemas that their ids name."""

    unframed = (
        "not framed: expected a zero byte, a schema id of four bytes and the place of the message"
    )

    def head(self, payload: bytes) -> bytes:
        if payload[FRAME_BYTES : FRAME_BYTES + 1] == b"\0":  # most often: the first message
            return payload[: FRAME_BYTES + 1]
        return payload[: _place(payload)[1]]

    def message(self, payload: bytes) -> Any:
        """A record as its message. It raises for what is none."""
        head = self.head(payload)
        reader = cast(MessageReader, self.reader(head))
        return reader.read(payload[len(head) :])

    def make_reader(self, number: int, rest: bytes) -> "MessageReader":
        files = self.registry.protobuf(number)
        scope, names = files[-1].message_type, [files[-1].package] if files[-1].package else []
        place = _place(bytes(FRAME_BYTES) + rest)[0]
        for index in place:
            if not 0 <= index < len(scope):
                raise UnusableSchemaError(f"schema {number} has no message at {place}")
            names.append(scope[index].name)
            scope = scope[index].nested_type
        message = _pool(files).FindMessageTypeByName(".".join(names))
        return MessageReader(message, self.fields)


def _place(payload: bytes) -> tuple[list[int], int]:
    """The indexes of a message in its file, and where they end; no place at all if broken."""
    numbers: list[int] = []
    number = shift = 0
    for end in range(FRAME_BYTES, len(payload)):
        number |= (payload[end] & 0x7F) << shift
        shift += 7
        if payload[end] & 0x80:
            continue
        numbers.append((number >> 1) ^ -(number & 1))
        number = shift = 0
        if not 0 <= numbers[0] <= MOST_NESTED:
            break
        if len(numbers) > numbers[0]:
            return numbers[1:] or [0], end + 1
    return [], 0


def _pool(files: list[descriptor_pb2.FileDescriptorProto]) -> Any:
    """The files with the types of Google that they import."""
    pool = descriptor_pool.DescriptorPool()
    given = {file.name for file in files}

    def add(file: Any) -> None:
        for name in file.dependency:
            if name not in given:
                given.add(name)
                known = descriptor_pb2.FileDescriptorProto()
                descriptor_pool.Default().FindFileByName(name).CopyToProto(known)
                add(known)
        pool.AddSerializedFile(file.SerializeToString())

    for file in files:
        add(file)
    return pool


class MessageReader:
    """Reads messages of one type."""

    def __init__(self, message: Descriptor, fields: list[Field]) -> None:
        self._fields = fields
        self._class = message_factory.GetMessageClass(message)
        self._name = message.full_name
        self._found = [_find(message, field.path) for field in fields]
        names = {known.name for known in message.fields}
        self._undeclared = names - {field.path[0] for field in fields if field.path}

    def read(self, payload: bytes) -> Any:
        message = self._class.FromString(payload)
        # The writer knows all fields of its own schema, so others are no fields at all.
        if len(unknown_fields.UnknownFieldSet(message)):
            raise DecodeError
        return message

    def parse(self, payloads: list[bytes]) -> Parsed:
        parsed = Parsed([], [], undeclared=set(self._undeclared))
        messages: list[Any] = []
        for index, payload in enumerate(payloads):
            try:
                messages.append(self.read(payload))
            except DecodeError:
                parsed.unreadable[index] = f"not a whole {self._name} message"
                messages.append(None)
        for field, found in zip(self._fields, self._found, strict=True):
            leaves = []
            if found is not None:
                takes, kind = found
                plain = messages
                for take in takes:
                    plain = [None if value is None else take(value) for value in plain]
                leaves = [(pa.array(plain, plain_type(kind)), kind)]
            values, misfits = column(leaves, len(messages), field)
            parsed.columns.append(values)
            parsed.misfits.append(misfits)
        return parsed


def _find(message: Descriptor, path: tuple[str, ...]) -> tuple[list[Take], Kind] | None:
    """How the value at a path is taken from a message, and its kind."""
    takes: list[Take] = []
    kind = Kind("record")
    as_plain: Take = _nothing
    for position, name in enumerate(path):
        field = None if message is None else message.fields_by_name.get(name)
        if field is None:
            return None
        takes.append(_getter(field))
        kind, as_plain = _plain(field)
        inside = position + 1 < len(path)
        if inside and field.label == FieldDescriptor.LABEL_REPEATED:
            return None
        message = field.message_type
    return [*takes, as_plain], kind


def _getter(field: FieldDescriptor) -> Take:
    name, get = field.name, attrgetter(field.name)
    if not field.has_presence:
        return get
    return lambda message: get(message) if message.HasField(name) else None


def _plain(field: FieldDescriptor) -> tuple[Kind, Take]:
    """The kind of a field, and how its value becomes a plain one."""
    if field.label != FieldDescriptor.LABEL_REPEATED:
        return _plain_item(field)
    if field.message_type is None or not field.message_type.GetOptions().map_entry:
        kind, take = _plain_item(field)
        return array_of(kind), lambda items: [take(item) for item in items]
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    if key.type != FieldDescriptor.TYPE_STRING:
        return Kind("record"), _nothing
    kind, take = _plain_item(value)
    return map_of(kind), lambda entries: [
        {"key": key, "value": take(item)} for key, item in entries.items()
    ]


def _plain_item(field: FieldDescriptor) -> tuple[Kind, Take]:
    if field.type == FieldDescriptor.TYPE_ENUM:
        places = {value.number: place for place, value in enumerate(field.enum_type.values)}
        symbols = tuple(value.name for value in field.enum_type.values)
        return Kind("string", labels=symbols), lambda number: places.get(number, -1)
    if field.message_type is None:
        return Kind(KINDS.get(field.type, "bigint"), unsigned=field.type in UNSIGNED), _same
    if field.message_type.full_name == TIMESTAMP:
        return Kind("timestamp", epoch="microseconds"), _microseconds
    if field.message_type.full_name in WRAPPERS:
        kind, _ = _plain_item(field.message_type.fields_by_name["value"])
        return kind, attrgetter("value")
    return Kind("record"), _nothing


def _same(value: Any) -> Any:
    return value


def _nothing(_value: Any) -> dict[str, Any]:
    return {}


def _microseconds(time: Any) -> int:
    count = int(time.seconds) * 1_000_000 + int(time.nanos) // 1_000
    return count if abs(count) < BEYOND else -BEYOND
