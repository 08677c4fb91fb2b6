"""Avro, by a schema in a file or by the registry's schema that each record names.

pyruhvro turns a block into Arrow at once. It gives up on a block for a single bad record, does not
know all types and does not check text, so it gets a schema of the same bytes in simple types:
enums and times are whole numbers, maps are arrays of entries. What it refuses, fastavro reads by
the same schema, record by record. The meaning of the values is added to the columns of both.
"""

import io
import json
import secrets
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyruhvro  # type: ignore[import-untyped]

from ingestion.errors import StreamFileError
from ingestion.formats import Field, Parsed, Payloads
from ingestion.formats.binary import Kind, array_of, column, fits, map_of, merge, plain_type
from ingestion.formats.registry import RegistryDecoder

# A record has no end mark, so bytes that are cut short or too long can still decode to something.
# A number set behind the record must come out whole behind it. Nobody can know it.
END = secrets.token_bytes(7) + b"\x3f"
(END_NUMBER,) = struct.unpack("<d", END)

FEW = 16  # records of which fastavro reads each
PARTS = 8  # into which a block is divided when pyruhvro refuses it
MOST_TYPES = 10_000
MOST_BRANCHES = 16  # each branch of a union costs pyruhvro memory for every record
PRIMITIVES = {"long": "bigint", "bytes": "binary"}
TIMES = {
    f"{zone}timestamp-{short}": unit
    for zone in ("", "local-")
    for short, unit in (
        ("millis", "milliseconds"),
        ("micros", "microseconds"),
        ("nanos", "nanoseconds"),
    )
}


class AvroDecoder:
    """Records by one schema."""

    def __init__(self, schema_text: str, fields: list[Field]) -> None:
        self._fields = fields
        try:
            self._reader = Reader([json.loads(schema_text)], fields)
        except Exception as error:
            raise StreamFileError(f"the Avro schema cannot be read: {error}") from error

    def parse(self, payloads: Payloads) -> Parsed:
        rows = [row for row, payload in enumerate(payloads.raw) if payload is not None]
        present = [payload for payload in payloads.raw if payload is not None]
        return merge([(rows, self._reader.parse(present))], self._fields, len(payloads))


class RegistryAvroDecoder(RegistryDecoder):
    """Records by the schemas that their ids name."""

    def make_reader(self, number: int, rest: bytes) -> "Reader":  # noqa: ARG002
        return Reader(self.registry.avro(number), self.fields, name_undeclared=True)


def problem(schema_text: str, field: Field) -> str | None:
    """Why a schema does not give this field in this type; None when it does."""
    try:
        kind = _Translation([json.loads(schema_text)]).kind
    except Exception as error:
        return f"the Avro schema cannot be read: {error}"
    kinds = [found for found in _kinds_at(kind, field.path) if found.name != "null"]
    if not kinds:
        return f"the Avro schema has no field {'.'.join(field.path)}"
    if any(fits(found, field.type, field.epoch) for found in kinds):
        return None
    names = " or ".join(dict.fromkeys(found.name for found in kinds))
    hint = " without epoch" if any(fits(kind, field.type, "seconds") for kind in kinds) else ""
    return f"the Avro schema has {names}, the column is {field.type}{hint}"


def _kinds_at(kind: Kind, path: Sequence[str]) -> Iterator[Kind]:
    if kind.name == "union":
        for branch in kind.parts:
            yield from _kinds_at(branch, path)
    elif not path:
        yield kind
    elif kind.name == "record" and path[0] in kind.labels:
        yield from _kinds_at(kind.parts[kind.labels.index(path[0])], path[1:])


class Reader:
    """Reads records of one schema, the last of a list in which each may name those before it."""

    def __init__(
        self, schemas: list[Any], fields: list[Field], name_undeclared: bool = False
    ) -> None:
        self._fields = fields
        translation = _Translation(schemas)
        self._kind = translation.kind
        names = set(self._kind.labels) if self._kind.name == "record" and name_undeclared else set()
        self._undeclared = names - {field.path[0] for field in fields if field.path}
        parts = [{"name": "record", "type": translation.plain}, {"name": "end", "type": "double"}]
        frame = {"type": "record", "name": "Frame", "fields": parts[:1]}
        self._schema: Any = _without_negatives(fastavro.parse_schema(frame))
        self._is_fast = translation.is_fast
        text = json.dumps({**frame, "fields": parts})
        self._fast_schema = text.replace('"bytes"', '"string"')  # pyruhvro does not look into it
        self._form = _form(self._kind, [field.path for field in fields])

    def parse(self, payloads: list[bytes]) -> Parsed:
        pieces, read, others = self._read_fast(payloads)
        parts: list[tuple[Sequence[int], Parsed]] = []
        if pieces:
            parts.append((read, self._columns(pa.concat_arrays(pieces))))
        if others or not pieces:
            parts.append((others, self._judge([payloads[row] for row in others])))
        return merge(parts, self._fields, len(payloads))

    def _read_fast(self, payloads: list[bytes]) -> tuple[list[pa.Array], list[int], list[int]]:
        """What pyruhvro can read, of which records that is, and those that are left."""
        if not self._is_fast:
            return [], [], list(range(len(payloads)))
        pieces: list[pa.Array] = []
        read: list[int] = []
        others: list[int] = []
        ended = [payload + END for payload in payloads]
        waiting = [range(len(payloads))]
        while waiting:
            rows = waiting.pop()
            if len(rows) <= FEW:
                others += rows
                continue
            try:
                batch = pyruhvro.deserialize_array(ended[rows.start : rows.stop], self._fast_schema)
            except ValueError:
                step = -(-len(rows) // PARTS)
                starts = range(0, len(rows), step)
                waiting += [rows[start : start + step] for start in reversed(starts)]
                continue
            is_whole = pc.equal(batch["end"], END_NUMBER)
            if pc.all(is_whole).as_py():
                pieces.append(batch["record"])
                read += rows
            else:
                pieces.append(batch["record"].filter(is_whole))
                for row, whole in zip(rows, is_whole.to_pylist(), strict=True):
                    (read if whole else others).append(row)
        return pieces, read, others

    def _judge(self, payloads: list[bytes]) -> Parsed:
        records, unreadable = [], {}
        for index, payload in enumerate(payloads):
            stream = io.BytesIO(payload)
            try:
                record: Any = fastavro.schemaless_reader(stream, self._schema, None)
                if stream.read(1):
                    raise EOFError
            except Exception:  # it has no error of its own for bytes that are no record
                unreadable[index] = "not a whole Avro record"
                record = {"record": None}
            records.append(record["record"])
        parsed = self._columns(pa.array(records, self._form))
        parsed.unreadable = unreadable
        return parsed

    def _columns(self, records: pa.Array) -> Parsed:
        parsed = Parsed([], [], undeclared=set(self._undeclared))
        for field in self._fields:
            found = list(_find(records, self._kind, field.path, None))
            values, misfits = column(found, len(records), field)
            parsed.columns.append(values)
            parsed.misfits.append(misfits)
        return parsed


def _find(
    values: pa.Array, kind: Kind, path: Sequence[str], present: pa.Array | None
) -> Iterator[tuple[pa.Array, Kind]]:
    """The values at a path, by kind; null where a record has none or one of another kind."""
    if kind.name == "union":
        is_fast = pa.types.is_union(values.type)
        for number, branch in enumerate(kind.parts):
            if branch.name == "null":
                continue
            if is_fast:
                inside, here = values.field(number).field(0), pc.equal(values.type_codes, number)
            else:
                inside, here = values.field(f"b{number}"), values.is_valid()
            yield from _find(inside, branch, path, _both(present, here))
    elif path:
        if kind.name == "record" and path[0] in kind.labels:
            number = kind.labels.index(path[0])
            if values.null_count:  # then what is inside may be anything
                present = _both(present, values.is_valid())
            yield from _find(values.field(f"f{number}"), kind.parts[number], path[1:], present)
    elif kind.name == "record":
        there = pc.and_(values.is_valid(), True if present is None else present)
        yield pc.if_else(there, True, pa.scalar(None, pa.bool_())), kind
    elif present is not None:
        yield pc.if_else(present, values, pa.scalar(None, values.type)), kind
    else:
        yield values, kind


def _both(first: pa.Array | None, other: pa.Array) -> pa.Array:
    return other if first is None else pc.and_(first, other)


def _form(kind: Kind, paths: list[Sequence[str]]) -> pa.DataType:
    """The Arrow type for records that fastavro has read, with what the paths need."""
    if kind.name == "union":
        return pa.struct(
            [(f"b{number}", _form(branch, paths)) for number, branch in enumerate(kind.parts)]
        )
    if kind.name == "record":
        below = {
            number: [path[1:] for path in paths if path and path[0] == label]
            for number, label in enumerate(kind.labels)
        }
        return pa.struct(
            [
                (f"f{number}", _form(kind.parts[number], rest))
                for number, rest in below.items()
                if rest
            ]
        )
    return plain_type(kind)


# --- schemas ----------------------------------------------------------------------------------


class _Translation:
    """A schema as the kind of its values, and as simple types for the same bytes."""

    def __init__(self, schemas: list[Any]) -> None:
        self._named: dict[str, Any] = {}
        self._count = 0
        self.is_fast = True
        for schema in schemas:
            last = fastavro.parse_schema(schema, self._named)
        self.kind, self.plain = self._translate(last, ())

    def _translate(self, schema: Any, within: tuple[str, ...]) -> tuple[Kind, Any]:
        self._count += 1
        if self._count > MOST_TYPES:
            raise ValueError(f"it has more than {MOST_TYPES:,} types")
        if isinstance(schema, list):
            return self._union(schema, within)
        if isinstance(schema, str) and schema in self._named:
            return self._translate(self._named[schema], within)
        if isinstance(schema, str):
            schema = {"type": schema}
        match schema["type"]:
            case "record" | "error":
                return self._record(schema, within)
            case "array":
                item, plain = self._translate(schema["items"], within)
                if _is_empty(plain):
                    raise ValueError("it has arrays whose items have no bytes")
                return array_of(item), {"type": "array", "items": plain}
            case "map":
                item, plain = self._translate(schema["values"], within)
                return map_of(item), {
                    "type": "array",
                    "items": self._plain_record({"key": "bytes", "value": plain}),
                }
            case "enum":
                return Kind("string", labels=tuple(schema["symbols"])), "long"
            case "fixed":
                self.is_fast = False
                plain = {"type": "fixed", "name": f"T{self._count}", "size": schema["size"]}
                return _decimal(schema) or Kind("binary"), plain
            case str(name) if name not in self._named:
                return self._primitive(name, schema)
            case other:
                return self._translate(other, within)

    def _primitive(self, name: str, schema: dict[str, Any]) -> tuple[Kind, str]:
        logical = schema.get("logicalType")
        match name:
            case "int":
                return Kind("date" if logical == "date" else "int"), "long"
            case "long" if logical in TIMES:
                return Kind("timestamp", epoch=TIMES[logical]), "long"
            case "bytes":
                return _decimal(schema) or Kind("binary"), "bytes"
            case "string":
                return Kind("string"), "bytes"
        return Kind(PRIMITIVES.get(name, name)), name

    def _record(self, schema: dict[str, Any], within: tuple[str, ...]) -> tuple[Kind, Any]:
        name, fields = schema["name"], schema["fields"]
        if name in within:  # neither reader bounds its depth, and bytes may claim any
            raise ValueError(f"{name} contains itself, and recursive schemas are not supported")
        below = [self._translate(field["type"], (*within, name)) for field in fields]
        plain = self._plain_record({f"f{number}": part for number, (_, part) in enumerate(below)})
        self.is_fast = self.is_fast and bool(below)
        labels = tuple(field["name"] for field in fields)
        return Kind("record", tuple(kind for kind, _ in below), labels), plain

    def _union(self, schema: list[Any], within: tuple[str, ...]) -> tuple[Kind, Any]:
        below = [self._translate(branch, within) for branch in schema]
        others = [kind for kind, plain in below if plain != "null"]
        if len(below) == 2 and len(others) == 1:
            return others[0], [plain for _, plain in below]
        self.is_fast = self.is_fast and len(below) <= MOST_BRANCHES
        plains = [  # a record around a branch says which it was
            plain if plain == "null" else self._plain_record({f"b{number}": plain})
            for number, (_, plain) in enumerate(below)
        ]
        return Kind("union", tuple(kind for kind, _ in below)), plains

    def _plain_record(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        parts = [{"name": name, "type": plain} for name, plain in fields.items()]
        return {"type": "record", "name": f"T{self._count}", "fields": parts}


def _decimal(schema: dict[str, Any]) -> Kind | None:
    if schema.get("logicalType") != "decimal":
        return None
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(digits, int) or not 0 <= scale <= digits <= 38:
        return None
    return Kind(f"decimal({digits},{scale})")


def _is_empty(plain: Any) -> bool:
    if not isinstance(plain, dict):
        return bool(plain == "null")
    if plain["type"] == "record":
        return all(_is_empty(field["type"]) for field in plain["fields"])
    return bool(plain.get("size") == 0)


class _Branches(list[Any]):
    """Branches of a union, for fastavro. It counts a negative number from the end: beyond it."""

    def __len__(self) -> int:
        return sys.maxsize // 2


def _without_negatives(schema: Any) -> Any:
    if isinstance(schema, list):
        return _Branches(_without_negatives(branch) for branch in schema)
    if not isinstance(schema, dict):
        return schema
    changed = {
        key: _without_negatives(value) if key in ("type", "items") else value
        for key, value in schema.items()
    }
    if "fields" in schema:
        changed["fields"] = [_without_negatives(field) for field in schema["fields"]]
    return changed
